// Waits that adapt: how long one looks before it sleeps, and who has the processor meanwhile, by
// what the last waits of the same end were like. Used by wait_until for a policy that adapts, and
// kept by whoever waits for one peer again and again (Parker::estimate).
//
// Looking. A wait spins at first, for 20 us; then it offers the processor between looks
// (yielding.hpp). Once an offer has been taken, there are more threads than processors: then it
// spins for 3 us only, since what a peer that runs does not answer within these, it has no
// processor for. Behind 200 us of looking it sleeps. An offer that was taken counts for 4 us of
// these, however long the others ran: who waits among many threads need not sleep because it is not
// its turn. It is made for processors that the threads of one program share: a program that
// computes keeps a processor that it is offered for its whole turn, some milliseconds.
//
// Sleeping at once. Where the last waits looked for longer than 16 wake-ups from sleep, counted so,
// for each time that what they waited for came meanwhile, the next ones sleep without a look: then
// the processor is worth more than the microseconds that are lost. A wait that gave up, at its
// deadline or as it was cancelled, has looked in vain as one that slept has, once it and those
// behind it have looked for 200 us together. How long a sleep took says nothing of looking: in a
// crowd it is long because it is not one's turn. Now and then one looks all the same, at every 16th
// wait at first and up to every 256th while that is in vain, and if what it waits for comes in
// time, the next ones look again.
//
// Moving. Where what is awaited comes behind an offer again and again, and never while it spins,
// the peer's thread may have the same processor: the scheduler places a thread that is woken beside
// the one that wakes it, and sees no reason to part two that both run. Such a wait moves its thread
// to another one of its processors, if it has several.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// From an event to the thread that slept for it, on this machine: measured once, at the first call
/// (about 1 ms). 2 us to 1 ms.
[[nodiscard]] std::chrono::nanoseconds wake_up_cost();

/// Why a wait did what it did.
enum class WaitReason : std::uint8_t {
    none_yet,    ///< nothing has been waited for
    short_gaps,  ///< it looked: what is awaited comes soon
    crowded,     ///< it looked, and offered the processor early, as others need it
    long_gaps,   ///< it slept at once
    trial,       ///< it looked, to see whether gaps have become short
};
/// "looks, as gaps are short beside a wake-up", say.
[[nodiscard]] std::string_view describe(WaitReason reason) noexcept;

/// What is known of an end's waits, for people.
struct WaitFacts {
    /// Mean of the last waits, weighted by 1/8 each, without what others ran meanwhile, but with
    /// sleeps.
    std::chrono::nanoseconds expected_gap{0};
    /// Of the last that looked, weighted so: for how long, counted as above, and how many of them
    /// saw what they waited for come (0 to 1).
    std::chrono::nanoseconds looked{0};
    double found = 0;
    std::chrono::nanoseconds wake_up_cost{0};
    WaitReason reason = WaitReason::none_yet;  ///< of what the last wait did
    std::uint64_t spun = 0;                    ///< waits that ended while they had the processor
    std::uint64_t offered = 0;                 ///< … behind an offer that was taken
    std::uint64_t slept = 0;                   ///< … behind a sleep
    std::uint64_t moved = 0;                   ///< times that the thread was moved
};

/// Of one end. One thread.
class WaitEstimate {
  public:
    WaitEstimate() noexcept = default;
    /// `cost`: what a wake-up takes, instead of what was measured.
    explicit WaitEstimate(std::chrono::nanoseconds cost);

    /// How a wait is to go, in ticks.
    struct Plan {
        std::uint64_t spin = 0;   ///< so long it spins,
        std::uint64_t offer = 0;  ///< then looks, offering the processor; then it sleeps
    };
    /// A wait begins at `now`, in ticks.
    [[nodiscard]] Plan begin(std::uint64_t now);
    /// An offer of the processor was taken and came back at `now`: how many ticks it counts for.
    [[nodiscard]] std::uint64_t taken(std::uint64_t now) noexcept {
        crowded_until_ = now + crowded_for_;
        return taken_costs_;
    }

    /// How a wait ended in which what is awaited came.
    enum class End : std::uint8_t { spun, offered, slept };
    /// It had looked for `looked` ticks, counted as above, and slept for `slept`. True: the peer's
    /// thread seems to have the same processor.
    [[nodiscard]] bool ended(std::uint64_t looked, std::uint64_t slept, End how) noexcept;
    /// It ended without that, having looked for so long.
    void gave_up(std::uint64_t looked) noexcept;
    void note_move() noexcept { ++moved_; }

    [[nodiscard]] WaitFacts facts() const;

  private:
    void learn_costs(std::chrono::nanoseconds cost);
    void note_look(std::uint64_t ticks, bool found) noexcept;

    // In ticks. 0: not known yet.
    std::uint64_t cost_ = 0;
    std::uint64_t spin_ = 0;
    std::uint64_t crowded_spin_ = 0;
    std::uint64_t offer_ = 0;
    std::uint64_t taken_costs_ = 0;
    std::uint64_t crowded_for_ = 0;

    std::uint64_t gap_ = 0;  ///< in 1/8 of a tick, as the next
    std::uint64_t looked_ = 0;
    std::uint64_t found_ = 0;    ///< of `always_found`
    std::uint64_t carried_ = 0;  ///< ticks that waits looked which gave up since the last end
    std::uint64_t crowded_until_ = 0;
    std::uint64_t spun_ = 0;
    std::uint64_t offered_ = 0;
    std::uint64_t slept_ = 0;
    std::uint64_t moved_ = 0;
    std::uint32_t since_trial_ = 0;
    std::uint32_t trial_at_ = 0;
    std::uint32_t offered_in_a_row_ = 0;
    std::uint32_t spun_in_a_row_ = 0;
    std::uint32_t move_at_ = 0;
    bool has_looked_ = false;
    bool sleeps_at_once_ = false;
    WaitReason reason_ = WaitReason::none_yet;
};

}  // namespace millrace::base
