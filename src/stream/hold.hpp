// How long a send waits for an advertisement that is late (Sender::awaits_advert). Used by
// Socket::Core, which hands it the time. One thread.
//
// To wait costs the time of waiting; to turn to the ring costs the receiver a copy, and the
// sender the time until its turn is known at the receiver and new advertisements have come from
// there. So it waits for as long as that would cost: then it never loses more than twice what would
// have been best. The way to the receiver and back is what a WRITE takes until it completes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"

namespace millrace::stream {

class Hold {
  public:
    /// A WRITE completed that was posted at `posted`: both base::ticks(). What is looked for
    /// is the least of late: more time may have passed before somebody looked.
    void note_write(std::uint64_t posted, std::uint64_t now) noexcept {
        const std::uint64_t took = now - posted;
        if (took < round_trip_ || round_trip_ == 0) {
            round_trip_ = took;
        } else {
            round_trip_ += (took - round_trip_) / 64;
        }
    }
    /// A send that has `bytes` left waits at `place` of the stream. True: it has waited long
    /// enough.
    [[nodiscard]] bool is_over(std::uint64_t place, std::uint64_t bytes,
                               std::uint64_t now) noexcept {
        if (!is_running_ || place != place_) {
            is_running_ = true;
            place_ = place;
            end_ = now + round_trip_ + copying(bytes);
        }
        return now - end_ < ~std::uint64_t{0} / 2;
    }
    /// None waits.
    void stop() noexcept { is_running_ = false; }
    [[nodiscard]] bool is_running() const noexcept { return is_running_; }

  private:
    /// At 4 GB/s, which is what is read from memory that another processor has written; at most
    /// 100 ms, for what is longer than any ring.
    [[nodiscard]] static std::uint64_t copying(std::uint64_t bytes) noexcept {
        const std::chrono::nanoseconds time{std::min<std::uint64_t>(bytes / 4, 100'000'000)};
        return base::ticks_in(time);
    }

    std::uint64_t round_trip_ = 0;  ///< ticks; 0: none is known
    std::uint64_t place_ = 0;
    std::uint64_t end_ = 0;
    bool is_running_ = false;
};

}  // namespace millrace::stream
