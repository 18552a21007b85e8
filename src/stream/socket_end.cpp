// How a socket ends: by the peer, by this side, by a broken connection; and how each end learns
// what the other one had.
#include "socket_core.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace millrace::stream {

using base::Status;

void Socket::Core::end_by_peer() noexcept {
    if (end.ended() != Status::ok) return;
    const connect::PeerState peer = end.link().peer_now();
    // What it sent before its end has landed before we learnt of the end: look once more.
    if (slots.has_next()) take_messages();
    if (end.ended() != Status::ok) return;
    // And what it had of ours by then is sent, whether or not the device still said so.
    (void)end.window().reap();
    const bool had_all = peer == connect::PeerState::closed && peer_had_all();
    while (!in_flight.empty() && (had_all || end.window().done(in_flight.front().ticket))) {
        connection->written(in_flight.front().places);
        in_flight.pop();
    }
    if (peer != connect::PeerState::closed) {
        break_off_because([&] { return end::cause_of_loss(end.link(), end.window()); });
    } else if (connection->receiver().ended()) {
        break_off(Status::closed);
    } else {
        break_off_because(
            [] { return std::string{"the peer closed before the end of its stream"}; });
    }
}

void Socket::Core::break_off(Status how) noexcept {
    (void)end.end(how);
    is_quiet = false;
    // From here on the peer writes to no receive, and the device reads no send.
    end.link().queue_pair().fail();
    connection->break_off_sending();
}

void Socket::Core::end_copy() noexcept {
    is_copy = is_quiet = false;
    (void)end.end(Status::peer_lost);
    connection->break_off();
    act();
}

bool Socket::Core::all_delivered() noexcept {
    if (!connection->sender().ended() || !in_flight.empty()) return false;
    // FIN leaves after all else, and completes after it.
    return end.window().done(last_ticket) ||
           (end.window().reap() == Status::ok && end.window().done(last_ticket));
}

std::uint64_t Socket::Core::arrived() noexcept {
    if (slots.has_next()) take_messages();
    return connection->receiver().sequence() + connection->receiver().buffered();
}

}  // namespace millrace::stream
