// When a consumer that has drained its ring leaves its producer alone for a moment. Used by a
// Receiver's wait(), where a producer of this machine lays items that are found by their marks.
//
// A consumer that is faster than its producer drains the ring again and again. Each look for the
// next item then takes the line that the producer is filling, and what its processor fetches ahead
// takes those that the producer has asked for to fill next: small items travel one line at a time,
// and both sides wait for lines most of the time. A consumer that looks further ahead instead, at a
// line that nobody writes to yet, leaves the producer its lines until that one is filled; by then
// many are whole, and travel one after the other.
//
// That must cost no latency where latency is what counts. So it is only done after a long run of
// items, which has shown that they come in streams; no further ahead than half that run, so that as
// many are likely to come; and for no longer than a run takes, `for_each` item that one looks
// ahead, after which one looks at the front as ever. An item that comes alone, or after a short
// run, is looked for without a pause.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/language.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::ring::detail {

/// One thread. Nothing blocks, throws or allocates.
class StandBack {
  public:
    static constexpr std::uint64_t shortest_run = 64;  ///< items
    static constexpr std::uint64_t farthest = 1024;    ///< items
    static constexpr std::chrono::nanoseconds for_each{8};
    static constexpr std::chrono::nanoseconds longest = farthest * for_each;

    /// Nothing is in front, and all up to the position `consumed` was taken, items of `slot` bytes:
    /// how many items further on to look, in a ring of `ring_bytes`. 0: the front is to be looked
    /// at without a pause. At most a quarter of the ring, so that the producer does not wait for
    /// room meanwhile.
    [[nodiscard]] std::uint64_t drained(std::uint64_t consumed, std::uint64_t slot,
                                        std::uint64_t ring_bytes) noexcept {
        const std::uint64_t run = consumed - std::exchange(drained_, consumed);
        if (run < shortest_run * slot) return 0;
        const std::uint64_t ahead = std::min({run / 2, farthest * slot, ring_bytes / 4}) / slot;
        if (ahead != 0) ++times_;
        return ahead;
    }
    /// Leaves the front alone until `is_there()`, for what drained() has said to be ahead.
    template <class IsThere>
    static void wait(std::uint64_t items, const base::Deadline& deadline, IsThere&& is_there) {
        const std::uint64_t limit = base::ticks_in(
            std::min<std::chrono::nanoseconds>(items * for_each, deadline.remaining()));
        const std::uint64_t start = base::ticks();
        do {
            if (is_there()) return;
            base::pause();
        } while (base::ticks() - start < limit);
    }
    /// How often the front was left alone.
    [[nodiscard]] std::uint64_t times() const noexcept { return times_; }
    /// The ring begins at position `initial`.
    void begin(std::uint64_t initial) noexcept { drained_ = initial; }

  private:
    std::uint64_t drained_ = 0;  ///< what was consumed when a wait last found the ring empty
    std::uint64_t times_ = 0;
};

}  // namespace millrace::ring::detail
