// Waits of threads that share their processors with others of the same process.
//
// Where a process has more threads that wait than processors, who offers its own (yielding.hpp) has
// it back when the others have had it, a millisecond later with some 30 of them. That is no time
// that it has waited in vain: whoever sleeps then, because it was not its turn, costs both ends
// system calls. And who spins for 20 us keeps from running what it waits for.
//
// That it is so shows when an offer was taken and other threads of the process have come back from
// theirs meanwhile. Their turns account for the time if these are short, as turns of threads are
// that wait; a program that computes keeps a processor that it is offered for some milliseconds,
// and there it is better to sleep.
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

/// What the threads of a process know of each other's offers. All functions from any thread.
class Crowd {
  public:
    /// What a wait in a crowd spins for at most. A peer that runs answers within it.
    static constexpr std::chrono::nanoseconds spin = std::chrono::microseconds{3};
    /// What an offer counts for that a crowd took: two switches and the cache lines they cost.
    static constexpr std::chrono::nanoseconds offer_costs = std::chrono::microseconds{4};
    /// Of a thread that waits, from one offer to the next, at most. (A client that is answered
    /// meanwhile has 30 us.)
    static constexpr std::chrono::nanoseconds turn = std::chrono::microseconds{60};
    /// A crowd is here for so long behind the last sign of it.
    static constexpr std::chrono::nanoseconds stays = std::chrono::milliseconds{2};

    /// A program that computes has a turn of some milliseconds.
    static constexpr std::chrono::nanoseconds long_turn = std::chrono::milliseconds{1};
    static constexpr std::chrono::nanoseconds most_lost = std::chrono::milliseconds{100};

    enum class Taken : std::uint8_t {
        not_at_all,
        by_crowd,   ///< the turns of other threads of the process account for the time
        by_others,  ///< they do not
    };
    /// Offers the processor.
    Taken offer(Yielding& yielding) noexcept {
        const std::uint64_t seen = returns();
        const std::uint64_t before = ticks();
        if (!yielding.offer()) return Taken::not_at_all;
        const std::uint64_t now = ticks();
        // Counters of two processors may differ by some ticks.
        return came_back(now, now > before ? now - before : 0, seen);
    }

    /// How often one came back from an offer that was taken.
    [[nodiscard]] std::uint64_t returns() const noexcept {
        return returns_.load(std::memory_order_relaxed);
    }
    /// One came back at `now`, after `away` ticks; there were `seen` returns when it went.
    Taken came_back(std::uint64_t now, std::uint64_t away, std::uint64_t seen) noexcept {
        const std::uint64_t others = returns_.fetch_add(1, std::memory_order_relaxed) - seen;
        const bool is_ours = others != 0 && away <= others * ticks_in(turn);
        // What another thread adds meanwhile may get lost: so many come back that it hardly counts.
        const std::uint64_t lost = lost_.load(std::memory_order_relaxed);
        if (is_ours) {
            if (lost != 0) lost_.store(lost - std::min(lost, away / 4), std::memory_order_relaxed);
            until_.store(now + ticks_in(stays), std::memory_order_relaxed);
            return Taken::by_crowd;
        }
        if (away >= ticks_in(long_turn)) {
            lost_.store(std::min(lost + away, ticks_in(most_lost)), std::memory_order_relaxed);
        }
        return Taken::by_others;
    }
    /// There was a sign of it a short time ago, and other programs take little of the processors:
    /// an offer that they take costs more than spinning.
    [[nodiscard]] bool is_here(std::uint64_t now) const noexcept {
        return static_cast<std::int64_t>(until_.load(std::memory_order_relaxed) - now) > 0 &&
               lost_.load(std::memory_order_relaxed) < ticks_in(long_turn);
    }

  private:
    alignas(64) std::atomic<std::uint64_t> returns_{0};
    alignas(64) std::atomic<std::uint64_t> until_{0};  ///< ticks; read by each wait that spins
    /// To others, in ticks: four times as long in turns of the crowd makes up for it.
    std::atomic<std::uint64_t> lost_{0};
};

/// Of this process.
inline Crowd crowd_of_process;

/// As wait_until(). In a crowd, a wait by a policy that spins, offers and then sleeps spins for a
/// shorter time, and a turn of others does not count for more than the offer.
template <class Ready>
Status wait_in_turns(Ready&& ready, const Deadline& deadline, const WaitPolicy& policy,
                     Parker& parker, Crowd& crowd = crowd_of_process) {
    if (!policy.sleep || policy.adapts || policy.yield <= std::chrono::nanoseconds::zero()) {
        return wait_until(ready, deadline, policy, parker);
    }
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
        if (ready()) return Status::ok;
        now = ticks();
        looked += taken == Crowd::Taken::by_crowd ? offer_ticks : now - before;
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    return detail::sleep_until(ready, deadline, parker);
}

}  // namespace millrace::base
