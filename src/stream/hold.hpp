// How long a send waits for an advertisement that is late (Sender::awaits_advert). Used by
// Socket::Core, which hands it the time. One thread.
//
// To wait costs the time of waiting; to turn to the ring costs the receiver a copy, and the
// sender the time until its turn is known at the receiver and new advertisements have come from
// there. So it waits for as long as that would cost, and at most 200 ms: then it loses no more than
// twice what would have been best. The way to the receiver and back is what a WRITE takes until it
// completes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"

namespace millrace::stream {

class Hold {
  public:
    /// A WRITE completed that was posted at `posted`: both base::ticks(). What is looked for
    /// is the least of late: more time may have passed before somebody looked, and what is more
    /// than the longest way says nothing.
    void note_write(std::uint64_t posted, std::uint64_t now) noexcept {
        static const std::uint64_t longest = base::ticks_in(longest_part);
        // The clocks of two processors may differ a little.
        const std::uint64_t took = std::min(now > posted ? now - posted : 1, longest);
        if (took < round_trip_ || round_trip_ == 0) {
            round_trip_ = took;
        } else {
            round_trip_ += (took - round_trip_) / 64;
        }
    }
    /// A send waits at `place` of the stream; if it went to the ring, `bytes` would have to be
    /// copied. True: it has waited long enough.
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
    /// Of the way, which is longer than any on Earth and back; and of the copy, for what is longer
    /// than any ring.
    static constexpr std::chrono::nanoseconds longest_part{100'000'000};
    /// At 4 GB/s, which is what is read from memory that another processor has written.
    [[nodiscard]] static std::uint64_t copying(std::uint64_t bytes) noexcept {
        const auto longest = static_cast<std::uint64_t>(longest_part.count());
        return base::ticks_in(std::chrono::nanoseconds{std::min(bytes / 4, longest)});
    }

    std::uint64_t round_trip_ = 0;  ///< ticks; 0: none is known
    std::uint64_t place_ = 0;
    std::uint64_t end_ = 0;
    bool is_running_ = false;
};

}  // namespace millrace::stream
