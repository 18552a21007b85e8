// How a socket ends: by the peer, by this side, by a broken connection; and how each end learns
// what the other one had.
#include "socket_core.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace millrace::stream {

using base::Status;

void Socket::Core::end_by_peer() noexcept {
    if (ended != Status::ok) return;
    const connect::PeerState peer = link.peer_now();
    // What it sent before its end has landed before we learnt of the end: look once more.
    if (slots.has_next()) take_messages();
    if (ended != Status::ok) return;
    // And what it had of ours by then is sent, whether or not the device still said so.
    (void)window.reap();
    const bool had_all = peer == connect::PeerState::closed && peer_had_all();
    while (!in_flight.empty() && (had_all || window.done(in_flight.front().ticket))) {
        connection->written(in_flight.front().places);
        in_flight.pop();
    }
    if (peer != connect::PeerState::closed) {
        end_because(Status::peer_lost, [&] { return cause_of_loss(); });
    } else if (connection->receiver().ended()) {
        end(Status::closed);
    } else {
        end_because(Status::peer_lost,
                    [] { return "the peer closed before the end of its stream"; });
    }
}

void Socket::Core::end(Status how) noexcept {
    if (ended != Status::ok) return;
    ended = how;
    is_quiet = false;
    // From here on the peer writes to no receive, and the device reads no send.
    link.queue_pair().fail();
    connection->break_off_sending();
}

void Socket::Core::end_copy() noexcept {
    is_copy = is_quiet = false;
    if (ended == Status::ok) {
        ended = Status::peer_lost;
        why_failed = window.failure();
    }
    connection->break_off();
    act();
}

std::string Socket::Core::cause_of_loss() const { return ring::cause_of_loss(link, window); }

bool Socket::Core::all_delivered() noexcept {
    if (!connection->sender().ended() || !in_flight.empty()) return false;
    // FIN leaves after all else, and completes after it.
    return window.done(last_ticket) || (window.reap() == Status::ok && window.done(last_ticket));
}

bool Socket::Core::peer_had_all() const noexcept {
    const std::span<const std::byte> words = link.last_words();
    if (words.size() != sizeof(LastWords)) return false;
    std::uint64_t arrived = 0;
    std::memcpy(&arrived, words.data(), words.size());
    // A peer that claims more harms nobody.
    return arrived >= connection->sender().sequence() + connection->sender().unsent();
}

void Socket::Core::say_goodbye() noexcept {
    if (slots.has_next()) take_messages();
    const std::uint64_t arrived =
        connection->receiver().sequence() + connection->receiver().buffered();
    LastWords words;
    std::memcpy(words.data(), &arrived, words.size());
    link.say_goodbye(words);
}

}  // namespace millrace::stream
