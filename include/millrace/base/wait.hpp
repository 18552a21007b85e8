// The wait strategy: spin with pause, then yield, then sleep through a parker. Every wait of the
// library goes through `wait_until`, so nothing spins blindly and nothing waits without a limit.
// The policy alone says when the processor is given away: what is asked in between does not.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/contention.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/yielding.hpp"
#include "millrace/base/status.hpp"

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
/// switch. Where processors are scarce, one that sleeps goes on otherwise (contention.hpp): in a
/// crowd of this process's threads it spins for less and does not count their turns; where other
/// programs compute it offers nothing, and spins only while that finds what it waits for.
struct WaitPolicy {
    std::chrono::nanoseconds spin{std::chrono::microseconds{20}};    ///< busy, with pause
    std::chrono::nanoseconds yield{std::chrono::microseconds{200}};  ///< then yielding.hpp
    /// Then sleep through the parker. False: yield until the deadline (lowest latency on an
    /// otherwise idle core, at the price of that core).
    bool sleep = true;
    /// A wait that finds what it waits for behind offers alone may move the calling
    /// thread to another one of the processors that it may run on. The thread's affinity
    /// is narrowed for that and set back as it was: what somebody else sets meanwhile (taskset -p,
    /// a cpuset) is undone. Not for a thread whose placement somebody decides.
    bool moves = false;

    [[nodiscard]] static constexpr WaitPolicy polling() noexcept {
        return {.yield = std::chrono::nanoseconds::max(), .sleep = false};
    }
    [[nodiscard]] static constexpr WaitPolicy blocking() noexcept {
        return {.spin = std::chrono::nanoseconds{0}, .yield = std::chrono::nanoseconds{0}};
    }
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

/// None for none, which ticks_in() does not know.
[[nodiscard]] inline std::uint64_t ticks_of_step(std::chrono::nanoseconds step) noexcept {
    return step.count() == 0 ? 0 : ticks_in(step);
}

}  // namespace detail

/// Waits until `ready()` is true. Returns `Status::ok`, `timed_out` or `cancelled`. `ready` is
/// called at least once, even when the deadline has passed. No allocation; throws nothing that
/// `ready` or the parker does not throw. After each sleep, and where the parker's patience() is
/// over (50 ms, if something may come that ends no sleep), `ready` is asked again, so `ready` is
/// also the place to look after the peer's life.
template <class Ready>
Status wait_until(Ready&& ready, const Deadline& deadline, const WaitPolicy& policy, Parker& parker,
                  Contention& contention = contention_of_process) {
    if (ready()) return Status::ok;
    const WaitsByPolicy here;
    const std::uint64_t start = ticks();
    std::uint64_t spin_ticks = detail::ticks_of_step(policy.spin);
    SpinHabit* habit = nullptr;  // of a thread that spins on a busy machine
    if (policy.sleep && contention.is_crowd(start)) {
        spin_ticks = std::min(spin_ticks, ticks_in(Contention::spin));
    } else if (policy.sleep && contention.is_busy(start)) {
        if (detail::spin_habit.spins()) {
            habit = &detail::spin_habit;
        } else {
            spin_ticks = 0;
        }
    }
    std::uint64_t now = start;
    for (; now - start < spin_ticks; now = ticks()) {
        for (int i = 0; i < 16; ++i) {
            pause();
            if (!ready()) continue;
            if (habit != nullptr) habit->note(true);
            return Status::ok;
        }
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    if (habit != nullptr) habit->note(false);
    const std::uint64_t longest_look = detail::ticks_of_step(policy.yield);
    std::uint64_t looked = 0;
    Yielding yielding{yields_of_process()};
    yielding.begin(now, 0);
    while (!policy.sleep || (looked < longest_look && !contention.is_busy(now))) {
        const std::uint64_t before = now;
        Taken taken = Taken::not_at_all;
        if (yielding.due(before)) {
            taken = yielding.offer();
        } else {
            pause();
        }
        if (ready()) {
            if (policy.moves && taken != Taken::not_at_all) {
                detail::came_behind_offer(start, ticks());
            }
            return Status::ok;
        }
        now = ticks();
        looked += taken == Taken::by_crowd ? ticks_in(Contention::offer_costs) : now - before;
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
    return detail::sleep_until(ready, deadline, parker);
}

}  // namespace millrace::base
