// What a consumer does to give space back: it stores its progress, which the producer READs; pushes
// the credit, if that is the design; and rings a producer that sleeps. Used by Receiver, and by the
// Intake of pull data, which gives the space of each run that has arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/front.hpp"
#include "millrace/ring/detail/meeting.hpp"
#include "millrace/ring/detail/space.hpp"
#include "millrace/ring/position.hpp"

namespace millrace::ring::detail {

/// One thread; never blocks, throws or allocates, but for meet().
template <SpaceNotification S>
class SpaceGiver {
  public:
    void meet(const Meeting& met) {
        const std::uint64_t initial = met.terms.initial;
        bell_ = Bell{met.window, met.page().wake, met.theirs.page, met.terms.far_fences};
        if constexpr (S == SpaceNotification::push2) {
            CounterPull taken{met.window, met.theirs.taken,
                              met.memory.slice(offsetof(ReceiverPage, taken_landing), 8)};
            taken.load_from(met.peer.word(met.theirs.taken));
            space_ = SpaceReturn<S>{met.window, std::move(taken), initial};
        } else if constexpr (S == SpaceNotification::push) {
            CounterPush credit{met.window, met.theirs.credit, PositionWord::pack(initial)};
            credit.store_to(met.peer.word(met.theirs.credit));
            space_ = SpaceReturn<S>{std::move(credit)};
        }
    }
    /// The producer may have what lies before `position`.
    void give(Front& front, std::uint64_t position) noexcept {
        const bool wake = bell_.publish(PositionWord::pack(position));
        ++stores_;
        (void)space_.give(position);  // one in flight: settle() gives what is left
        front.returned = position;
        if (wake) [[unlikely]]
            (void)bell_.ring();
    }
    /// Does what give() could not do.
    void settle(const Front& front) noexcept {
        if (space_.owes(front.returned)) (void)space_.give(front.returned);
        if (bell_.owes()) (void)bell_.ring();
    }
    /// True: settle() still has something to do.
    [[nodiscard]] bool owes(const Front& front) const noexcept {
        return space_.owes(front.returned) || bell_.owes();
    }
    [[nodiscard]] std::uint64_t stores() const noexcept { return stores_; }
    [[nodiscard]] std::uint64_t writes() const noexcept { return space_.posted(); }
    [[nodiscard]] std::uint64_t events() const noexcept { return bell_.rung(); }

  private:
    Bell bell_;
    SpaceReturn<S> space_;
    std::uint64_t stores_ = 0;
};

}  // namespace millrace::ring::detail
