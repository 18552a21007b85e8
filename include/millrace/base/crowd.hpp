// Waits of threads that share their processors with others of the same process.
//
// Where a process has more threads that wait than processors, who offers its own (yielding.hpp) has
// it back when the others have had it, a millisecond later with some 30 of them. That is no time
// that it has waited in vain: whoever sleeps then, because it was not its turn, costs both ends
// system calls. And who spins for 20 us keeps from running what it waits for.
//
// Where other processes take what is offered, it is better to sleep: a sleeper is woken before
// those who offer. An offer alone does not show who took it, but the processor time that the
// process gets does: where its threads have all processors that they may use, or all but one, on
// which a peer may run, and several of them come back from offers, they take them from each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/base/yielding.hpp"

namespace millrace::base {

/// Of a process, up to now.
struct ProcessorUse {
    std::chrono::nanoseconds time{0};  ///< on a clock
    std::chrono::nanoseconds used{0};  ///< processor time of all threads
    unsigned processors = 1;           ///< that they may run on
};
/// Of this process: some system calls.
[[nodiscard]] ProcessorUse processor_use() noexcept;

/// Whether the threads of a process take each other's offers. All functions from any thread.
class Crowd {
  public:
    /// What a wait in a crowd spins for at most. A peer that runs answers within it.
    static constexpr std::chrono::nanoseconds spin = std::chrono::microseconds{3};
    /// What an offer counts for that a crowd took: two switches and the cache lines they cost.
    static constexpr std::chrono::nanoseconds offer_costs = std::chrono::microseconds{4};
    /// For so long a thread that is answered all the while keeps its processor from the others.
    static constexpr std::chrono::nanoseconds turn = std::chrono::microseconds{100};
    /// The use of processors is asked for once in this time, in which programs that compute have
    /// had turns of theirs, and what it said holds for …
    static constexpr std::chrono::nanoseconds window = std::chrono::milliseconds{8};
    static constexpr std::chrono::nanoseconds holds = std::chrono::milliseconds{24};

    /// A wait by a policy that spins or offers for longer than `longest` takes no part.
    explicit constexpr Crowd(ProcessorUse (*use)() noexcept = processor_use,
                             const WaitPolicy& longest = {}) noexcept
        : use_{use}, longest_{longest} {}

    [[nodiscard]] bool has_part(const WaitPolicy& policy) const noexcept {
        return policy.sleep && !policy.adapts && policy.yield > std::chrono::nanoseconds::zero() &&
               policy.spin <= longest_.spin && policy.yield <= longest_.yield;
    }

    enum class Taken : std::uint8_t {
        not_at_all,
        by_crowd,
        by_others,  ///< for all that is known
    };
    /// Offers the processor.
    Taken offer(Yielding& yielding) noexcept {
        if (!yielding.offer()) return Taken::not_at_all;
        return came_back(ticks(), &detail::waits_by_policy) ? Taken::by_crowd : Taken::by_others;
    }
    /// `thread` came back at `now`, in ticks, from an offer that was taken. True: by the crowd.
    bool came_back(std::uint64_t now, const void* thread) noexcept {
        if (const void* const last = last_.load(std::memory_order_relaxed); last != thread) {
            last_.store(thread, std::memory_order_relaxed);
            if (last != nullptr) several_until_.store(now + ticks_in(holds), relaxed);
        }
        std::uint64_t due = due_.load(relaxed);
        if (!is_before(now, due) &&
            due_.compare_exchange_strong(due, now + ticks_in(window), relaxed)) {
            compare(now);
        }
        return is_here(now);
    }
    /// So it was a short time ago.
    [[nodiscard]] bool is_here(std::uint64_t now) const noexcept {
        return is_before(now, until_.load(relaxed));
    }

  private:
    static constexpr std::memory_order relaxed = std::memory_order_relaxed;
    [[nodiscard]] static bool is_before(std::uint64_t now, std::uint64_t end) noexcept {
        return static_cast<std::int64_t>(end - now) > 0;
    }
    void compare(std::uint64_t now) noexcept;

    ProcessorUse (*use_)() noexcept;
    WaitPolicy longest_;
    alignas(64) std::atomic<std::uint64_t> until_{0};  ///< ticks; read by each wait that spins
    alignas(64) std::atomic<const void*> last_{nullptr};
    std::atomic<std::uint64_t> several_until_{0};
    std::atomic<std::uint64_t> due_{0};
    // What was so when it was last compared. One thread at a time writes it, unless it is kept from
    // running for a window meanwhile; then one comparison is wrong, and the next one is not.
    std::atomic<std::int64_t> time_{0};
    std::atomic<std::int64_t> used_{0};
};

/// Of this process.
inline constinit Crowd crowd_of_process{};

/// Of one thread: its waits that ended behind an offer that the crowd took. Times are in ticks.
class ServedBehindOffers {
  public:
    static constexpr std::chrono::nanoseconds between_moves = std::chrono::milliseconds{100};
    /// One that began at `start` ended at `end`. True: so did the one before it, and nothing came
    /// in between, so what is waited for seems to run on the same processor; and it has not been
    /// true for a while: the scheduler moves threads back to a processor that seems to have few.
    [[nodiscard]] bool note(std::uint64_t start, std::uint64_t end) noexcept;

  private:
    std::uint64_t last_end_ = 0;
    std::uint64_t moved_ = 0;
    unsigned in_a_row_ = 0;
};

namespace detail {
/// Notes such a wait of the calling thread, and moves it to another one of its processors if it
/// shares this one with what it waits for.
void came_behind_offer(std::uint64_t start, std::uint64_t end) noexcept;
}  // namespace detail

/// As wait_until(). In a crowd, a wait by the default policy, or by one that spins and offers for
/// less and then sleeps, spins for a shorter time, and a turn of others does not count for more
/// than the offer. Who asks for longer means it.
template <class Ready>
Status wait_in_turns(Ready&& ready, const Deadline& deadline, const WaitPolicy& policy,
                     Parker& parker, Crowd& crowd = crowd_of_process) {
    if (!crowd.has_part(policy)) return wait_until(ready, deadline, policy, parker);
    if (ready()) return Status::ok;
    const WaitsByPolicy here;
    const std::uint64_t start = ticks();
    const std::uint64_t spin_ticks =
        ticks_in(crowd.is_here(start) ? std::min(policy.spin, Crowd::spin) : policy.spin);
    std::uint64_t now = start;
    for (; now - start < spin_ticks; now = ticks()) {
        for (int i = 0; i < 16; ++i) {
            pause();
            if (ready()) return Status::ok;
        }
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    const std::uint64_t longest_look = ticks_in(policy.yield);
    const std::uint64_t offer_ticks = ticks_in(Crowd::offer_costs);
    std::uint64_t looked = 0;
    Yielding yielding{yields_of_process()};
    yielding.begin(now, 0);
    while (looked < longest_look) {
        const std::uint64_t before = now;
        Crowd::Taken taken = Crowd::Taken::not_at_all;
        if (yielding.due(before)) {
            taken = crowd.offer(yielding);
        } else {
            pause();
        }
        if (ready()) {
            if (policy.moves && taken == Crowd::Taken::by_crowd) {
                detail::came_behind_offer(start, ticks());
            }
            return Status::ok;
        }
        now = ticks();
        looked += taken == Crowd::Taken::by_crowd ? offer_ticks : now - before;
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    return detail::sleep_until(ready, deadline, parker);
}

}  // namespace millrace::base
