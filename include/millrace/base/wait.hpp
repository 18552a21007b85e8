// The wait strategy: spin with pause, then yield, then sleep through a parker. Every wait of the
// library goes through `wait_until`, so nothing spins blindly and nothing waits without a limit.
// The policy alone says when the processor is given away: what is asked in between does not.
#pragma once

#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/system_calls.hpp"
#include "millrace/base/wait_estimate.hpp"
#include "millrace/base/yielding.hpp"

namespace millrace::base {

/// Tells the processor that this is a spin loop.
inline void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// How a wait escalates, by time, as an iteration takes anything from a nanosecond to a context
/// switch. By the default, message clients of many threads take turns: crowd.hpp.
struct WaitPolicy {
    std::chrono::nanoseconds spin{std::chrono::microseconds{20}};    ///< busy, with pause
    std::chrono::nanoseconds yield{std::chrono::microseconds{200}};  ///< then yielding.hpp
    /// Then sleep through the parker. False: yield until the deadline (lowest latency on an
    /// otherwise idle core, at the price of that core).
    bool sleep = true;
    /// By what the last waits were like, and not as said above: wait_estimate.hpp.
    bool adapts = false;
    /// A wait that adapts, or takes turns, and finds what it waits for on its own processor, may
    /// move the calling thread to another one of those that it may run on. The thread's affinity
    /// is narrowed for that and set back as it was: what somebody else sets meanwhile (taskset -p,
    /// a cpuset) is undone. Not for a thread whose placement somebody decides.
    bool moves = false;

    [[nodiscard]] static constexpr WaitPolicy polling() noexcept {
        return {.yield = std::chrono::nanoseconds::max(), .sleep = false};
    }
    [[nodiscard]] static constexpr WaitPolicy blocking() noexcept {
        return {.spin = std::chrono::nanoseconds{0}, .yield = std::chrono::nanoseconds{0}};
    }
    [[nodiscard]] static constexpr WaitPolicy adaptive() noexcept { return {.adapts = true}; }
};

/// How a waiter sleeps without losing a wake-up; higher floors implement it over completion
/// channels and sockets. `wait_until` calls, in this order:
///   1. `prepare()`  announce the intention to sleep to whoever must wake us (set the sleep flag,
///                   arm the completion queue). What it announces must be visible to the waker
///                   before `prepare` returns.
///   2. the condition once more;
///   3. either `park(limit, cancellation)`: sleep at most `limit`, return early when woken
///      (spurious returns are allowed) and when `cancellation` is requested, whose descriptor is
///      watched; null: nothing but the time ends it early. Or, when the condition held, nothing;
///   4. `retract()`  withdraw the announcement.
class Parker {
  public:
    virtual ~Parker() = default;
    virtual void prepare() = 0;
    virtual void park(std::chrono::nanoseconds limit, const Cancellation* cancellation) = 0;
    virtual void retract() = 0;

    /// How long it may sleep before the condition is looked at again. max(): whatever makes it
    /// true, or hopeless, ends the sleep.
    [[nodiscard]] virtual std::chrono::nanoseconds patience() const noexcept { return slice; }
    static constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{50};
    /// Of whoever waits by it again and again: what is known of these waits. Null: each begins
    /// anew.
    [[nodiscard]] virtual WaitEstimate* estimate() noexcept { return nullptr; }
    /// park() until `deadline`, its cancellation, or its patience is over.
    void sleep(const Deadline& deadline);
};

/// A parker that does not sleep by itself only: what it announced stands, so that somebody else can
/// sleep for it, a program's own event loop for one. `park` is made of these two steps and a sleep
/// between them.
class StandingParker : public Parker {
  public:
    enum class Rest : std::uint8_t {
        sleep,  ///< what is awaited raises an event
        look,   ///< something has come meanwhile
        nap,    ///< it is on its way, or something is missing, and nothing will announce it
    };
    /// Behind prepare() and a look that found nothing: what remains to be done before one may
    /// sleep, and whether one may. Never blocks.
    [[nodiscard]] virtual Rest settle() = 0;
    /// Behind settle(): how long a sleep may last at most, where something that is awaited comes by
    /// the clock and raises no event.
    [[nodiscard]] virtual std::chrono::nanoseconds longest_sleep() const noexcept {
        return std::chrono::nanoseconds::max();
    }
    /// Behind that sleep or nap, before retract().
    virtual void woken(Rest from) = 0;
    /// How long to nap: 20 µs, and with each nap behind another twice as long, up to 1 ms.
    [[nodiscard]] std::chrono::nanoseconds next_nap() noexcept;
    /// Behind a sleep: the next nap is the shortest again.
    void end_naps() noexcept { nap_ = std::chrono::nanoseconds::zero(); }

  private:
    std::chrono::nanoseconds nap_{0};
};

/// A parker for conditions nobody announces: sleeps in growing slices (50 µs to 1 ms).
class NapParker final : public Parker {
  public:
    void prepare() override {}
    void park(std::chrono::nanoseconds limit, const Cancellation* cancellation) override;
    void retract() override {}

  private:
    std::chrono::nanoseconds nap_{std::chrono::microseconds{50}};
};

namespace detail {

/// The last step of a wait.
template <class Ready>
[[gnu::noinline]] Status sleep_until(Ready&& ready, const Deadline& deadline, Parker& parker) {
    for (;;) {
        parker.prepare();
        if (ready()) {
            parker.retract();
            return Status::ok;
        }
        if (deadline.cancelled() || deadline.expired()) {
            parker.retract();
            // A wake-up that came meanwhile may be for this one alone.
            if (ready()) return Status::ok;
            return deadline.cancelled() ? Status::cancelled : Status::timed_out;
        }
        parker.sleep(deadline);
        parker.retract();
        if (ready()) return Status::ok;
    }
}

/// A wait that adapts, behind a look that was vain.
template <class Ready>
[[gnu::noinline]] Status wait_by_estimate(Ready&& ready, const Deadline& deadline,
                                          WaitEstimate& estimate, Parker& parker, bool moves) {
    const auto ended = [&](std::uint64_t looked, std::uint64_t slept, WaitEstimate::End how) {
        const bool is_to_move = estimate.ended(looked, slept, how);
        if (is_to_move && moves && leave_this_core()) estimate.note_move();
        return Status::ok;
    };
    const auto gave_up = [&](std::uint64_t looked, Status how) {
        estimate.gave_up(looked);
        return how;
    };
    const std::uint64_t start = ticks();
    const WaitEstimate::Plan plan = estimate.begin(start);
    std::uint64_t now = start;
    while (now - start < plan.spin) {
        for (int i = 0; i < 16; ++i) {
            pause();
            if (ready()) return ended(ticks() - start, 0, WaitEstimate::End::spun);
        }
        now = ticks();
        if (deadline.cancelled()) return gave_up(now - start, Status::cancelled);
        if (deadline.expired()) return gave_up(now - start, Status::timed_out);
    }
    std::uint64_t looked = now - start;
    const std::uint64_t longest_look = looked + plan.offer;
    Yielding yielding{yields_of_process()};
    yielding.begin(now, 0);
    while (looked < longest_look) {
        const std::uint64_t before = now;
        const bool was_taken = yielding.due(before) && yielding.offer();
        if (!was_taken) pause();
        const bool has_come = ready();
        now = ticks();
        looked += was_taken ? estimate.taken(now) : now - before;
        if (has_come) {
            return ended(looked, 0,
                         was_taken ? WaitEstimate::End::offered : WaitEstimate::End::spun);
        }
        if (deadline.cancelled()) return gave_up(looked, Status::cancelled);
        if (deadline.expired()) return gave_up(looked, Status::timed_out);
    }
    const Status status = sleep_until(ready, deadline, parker);
    if (status != Status::ok) return gave_up(looked, status);
    return ended(looked, ticks() - now, WaitEstimate::End::slept);
}

}  // namespace detail

/// Waits until `ready()` is true. Returns `Status::ok`, `timed_out` or `cancelled`. `ready` is
/// called at least once, even when the deadline has passed. No allocation; throws nothing that
/// `ready` or the parker does not throw. After each sleep, and where the parker's patience() is
/// over (50 ms, if something may come that ends no sleep), `ready` is asked again, so `ready` is
/// also the place to look after the peer's life.
template <class Ready>
Status wait_until(Ready&& ready, const Deadline& deadline, const WaitPolicy& policy,
                  Parker& parker) {
    if (ready()) return Status::ok;
    const WaitsByPolicy here;
    if (policy.adapts) {
        WaitEstimate first;
        WaitEstimate* const known = parker.estimate();
        return detail::wait_by_estimate(ready, deadline, known != nullptr ? *known : first, parker,
                                        policy.moves);
    }
    const std::uint64_t start = ticks();
    const std::uint64_t spin_ticks = ticks_in(policy.spin);
    while (ticks() - start < spin_ticks) {
        for (int i = 0; i < 16; ++i) {
            pause();
            if (ready()) return Status::ok;
        }
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    const std::uint64_t yield_ticks = ticks_in(policy.yield);
    const std::uint64_t yield_start = ticks();
    Yielding yielding{yields_of_process()};
    yielding.begin(yield_start, 0);
    while (!policy.sleep || ticks() - yield_start < yield_ticks) {
        if (yielding.due(ticks())) {
            yielding.offer();
        } else {
            pause();
        }
        if (ready()) return Status::ok;
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    return detail::sleep_until(ready, deadline, parker);
}

}  // namespace millrace::base
