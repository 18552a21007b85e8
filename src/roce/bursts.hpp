// How many short messages may be under way. What one call of `Requester::send` lets out is a burst:
// a doorbell, a poll or an acknowledgement makes such a call. A burst costs the system much the
// same however many short packets it has, so messages that are posted one by one are to leave
// together: while there are `most` bursts and `most_packets` short packets without an
// acknowledgement, short messages wait. (Nagle's rule, RFC 896, allows one burst; a message that
// has nobody to wait for would then wait for an acknowledgement that waits for the peer's next
// poll.) A list of requests is one burst, however long it is, and is not held up; nor are what
// fills packets, and the few short messages that tell of it.
#pragma once

#include <array>
#include <cstdint>

#include "psn.hpp"

namespace millrace::roce {

class Bursts {
  public:
    static constexpr std::uint32_t most = 4;
    static constexpr std::uint32_t most_packets = 16;

    void clear() noexcept {
        acknowledged_ = left_;
        packets_ = leaving_ = 0;
    }
    [[nodiscard]] bool must_wait() const noexcept {
        return left_ - acknowledged_ >= most && packets_ >= most_packets;
    }
    /// A short packet leaves.
    void add() noexcept { ++leaving_; }
    /// What has left since the last time, up to before `end`, is a burst. One without short packets
    /// does not count; one more than can be remembered is part of the last one.
    void left(std::uint32_t end) noexcept {
        if (leaving_ == 0) return;
        const bool is_full = left_ - acknowledged_ == bursts_.size();
        Burst& burst = bursts_[(is_full ? left_ - 1 : left_++) % bursts_.size()];
        burst = {end, (is_full ? burst.packets : 0) + leaving_};
        packets_ += leaving_;
        leaving_ = 0;
    }
    /// Everything before `psn` is acknowledged.
    void acknowledged(std::uint32_t psn) noexcept {
        for (; acknowledged_ != left_; ++acknowledged_) {
            const Burst& first = bursts_[acknowledged_ % bursts_.size()];
            if (psn_distance(first.end, psn) > 0) return;
            packets_ -= first.packets;
        }
    }

  private:
    struct Burst {
        std::uint32_t end;  ///< PSN
        std::uint32_t packets;
    };
    std::array<Burst, 16> bursts_{};
    std::uint32_t acknowledged_ = 0;  ///< indices; they wrap
    std::uint32_t left_ = 0;
    std::uint32_t packets_ = 0;  ///< short ones, of all bursts
    std::uint32_t leaving_ = 0;  ///< of the next one
};

}  // namespace millrace::roce
