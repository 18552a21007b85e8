#include "client/client_rest.hpp"

#include <utility>

#include "client/client_state.hpp"
#include "client/client_access.hpp"

namespace millrace::message::detail {

using base::Status;

namespace {

/// Something that was said to the server waits for room, or a request does that the window allows.
[[nodiscard]] bool lacks_room(const Client::State& client, std::size_t lacking) noexcept {
    return !client.line->is_clear() || (lacking != 0 && !client.calls.is_full());
}

}  // namespace

bool ClientRest::has_room(Client& client, std::size_t lacking) {
    Client::State& its = ClientAccess::state(client);
    return !its.calls.is_full() && its.line->is_clear() &&
           its.core().find_room(lacking) != Status::full;
}

bool ClientRest::has_news(Client& client, std::size_t lacking) {
    Client::State& its = ClientAccess::state(client);
    Piece piece;
    if (its.core().find_piece(piece, false) != Status::empty || its.line->fetch_is_due()) {
        return true;
    }
    return lacks_room(its, lacking) && its.core().find_room(lacking) != Status::full;
}

void ClientRest::begin(Client& client, std::unique_ptr<connect::Readiness>& readiness,
                       std::size_t lacking) {
    Client::State& its = ClientAccess::state(client);
    Channel::Core& core = its.core();
    core.wants_room = lacks_room(its, lacking);
    core.wanted_size = lacking;
    core.readiness = std::move(readiness);
    core.rest();
    readiness = std::move(core.readiness);
}

void ClientRest::end(Client& client, connect::Readiness& readiness) {
    Channel::Core& core = ClientAccess::core(client);
    if (!readiness.end(*core.sleeper)) {
        core.sleeper->retract();  // what came without an announcement is taken, too
        // Told once, by the socket: the next look finds it.
        (void)core.link.peer_now();
    }
    core.falls_asleep = false;
    core.wants_room = false;
    readiness.hush();
}

}  // namespace millrace::message::detail
