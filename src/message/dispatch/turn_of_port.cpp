#include "dispatch/turn_of_port.hpp"

#include <chrono>

#include "client/client_rest.hpp"
#include "dispatch/dispatcher_state.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;
using detail::ClientRest;
using detail::PortGate;

bool Dispatcher::State::has_turn() noexcept {
    // A port gives it back, too, with what it left behind.
    int at = gate->turn_at.load(std::memory_order_acquire);
    while (at != PortGate::of_dispatcher) {
        if (at == PortGate::of_port) return false;
        if (gate->turn_at.compare_exchange_weak(at, PortGate::of_dispatcher,
                                                std::memory_order_acquire,
                                                std::memory_order_relaxed)) {
            return true;
        }
    }
    return true;
}

void Dispatcher::State::take_turn() noexcept {
    base::NapParker nap;
    (void)base::wait_until([this] { return has_turn(); }, Deadline::never(),
                           {.spin = std::chrono::nanoseconds{0}}, nap);
}

void Dispatcher::State::offer_turn() noexcept {
    gate->turn_at.store(base::current_core(), std::memory_order_release);
}

bool detail::take_turn_of_dispatcher(PortGate& gate) {
    int here = base::current_core();
    // Those that wait on other processors only read.
    if (gate.turn_at.load(std::memory_order_relaxed) != here) return false;
    if (!gate.turn_at.compare_exchange_strong(here, PortGate::of_port, std::memory_order_acquire,
                                              std::memory_order_relaxed)) {
        return false;
    }
    Dispatcher::State& dispatcher = *gate.dispatcher;
    dispatcher.is_of_port = true;
    dispatcher.turn_of_port();
    dispatcher.is_of_port = false;
    // Where the thread is to take one, no port takes another one before it.
    gate.turn_at.store(dispatcher.owes_turn ? PortGate::of_dispatcher : here,
                       std::memory_order_release);
    return true;
}

void Dispatcher::State::turn_of_port() noexcept {
    const base::WaitsByPolicy here;
    try {
        for (Served& port : ports) {
            if (port.state->has_left.load(std::memory_order_acquire)) {
                unqueue(port);  // its parting is for the thread
            } else {
                (void)take(port);
            }
        }
        for (const auto& server : servers) {
            if (server->first != nullptr && may_send(*server)) (void)send(*server);
            (void)receive(*server);
        }
        if (owes_answers) publish();
    } catch (...) {
        // It is no affair of this port's: the thread meets what failed in its own turn.
        owes_turn = true;
    }
    turns_of_ports.store(turns_of_ports.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
}

bool Dispatcher::State::may_send(Server& server) {
    if (server.lacks == 0 || server.ended != Status::ok) return true;
    if (server.first->first->is_cancelled.load(std::memory_order_relaxed)) return true;
    return ClientRest::has_room(server.client, server.lacks);
}

}  // namespace millrace::message
