// Turns that a port takes for its dispatcher. A port that waits on the very processor where the
// dispatcher rests without sleeping keeps it from running: it takes the turn in its place
// (PortGate::turn_at), and offers the processor to the other ports before it sleeps. Used by
// port.cpp; a program whose dispatcher has a processor of its own never comes here.
#pragma once

#include <cstdint>

#include "dispatch/port_state.hpp"
#include "millrace/base/detail/contention.hpp"
#include "millrace/base/detail/yielding.hpp"

namespace millrace::message::detail {

/// A turn for a dispatcher that rests on this processor, as far as a port can: it neither lets
/// anybody in or go nor ends a connection. False: it rests elsewhere, or not at all.
bool take_turn_of_dispatcher(PortGate& gate);

/// A port that sleeps at once, and whose dispatcher polls on the same processor, offers that first,
/// so many times at most: after an offer the other ports have had their turns, and its answers are
/// there. To sleep and to be woken takes longer, and leaves no processor free. Where others than a
/// crowd of this process take what is offered, one waits for their turns in vain, so a port that
/// sees no crowd offers at few waits only, which is how a crowd is found.
inline constexpr int offers_before_sleep = 8;
inline constexpr std::uint32_t waits_between_trials = 128;

template <class Attempt>
base::Status offer_before_sleep(PortOwn& port, base::Status again, const base::Deadline& deadline,
                                Attempt&& attempt) {
    if (!base::contention_of_process.is_crowd(base::ticks()) &&
        ++port.waits % waits_between_trials != 0)
        return again;
    base::Yielding yielding{base::yields_of_process()};
    yielding.begin(base::ticks(), 0);
    if (!yielding.due(base::ticks())) return again;  // it is never offered
    for (int offers = 0; offers < offers_before_sleep; ++offers) {
        if (!take_turn_of_dispatcher(*port.gate)) break;
        base::Status status = attempt();
        if (status != again) return status;
        if (deadline.cancelled() || deadline.expired()) break;
        const base::Taken taken = yielding.offer();
        status = attempt();
        if (status == base::Status::ok) {
            port.gate->spared_sleeps.fetch_add(1, std::memory_order_relaxed);
        }
        if (status != again) return status;
        if (taken == base::Taken::by_others) break;
    }
    return again;
}

}  // namespace millrace::message::detail
