#include "client/client_rest.hpp"

#include <optional>

#include "client/client_access.hpp"
#include "client/client_state.hpp"

namespace millrace::message::detail {

namespace {

/// Something that was said to the server waits for room, or a request does that the window allows.
[[nodiscard]] bool lacks_room(const Client::State& client, std::size_t lacking) noexcept {
    return !client.line.is_clear() || (lacking != 0 && !client.calls.is_full());
}

}  // namespace

int ClientRest::watch(Client& client, std::chrono::nanoseconds spin) {
    return ClientAccess::ring(client).watch(spin);
}

void ClientRest::unwatch(Client& client) noexcept { ClientAccess::ring(client).unwatch(); }

bool ClientRest::has_room(Client& client, std::size_t lacking) {
    const Client::State& its = ClientAccess::state(client);
    return !its.calls.is_full() && its.line.is_clear() && its.ring()->finds_room(lacking);
}

bool ClientRest::has_news(Client& client, std::size_t lacking) {
    const Client::State& its = ClientAccess::state(client);
    return its.ring()->has_news() || its.ring()->fetch_is_due() ||
           (lacks_room(its, lacking) && its.ring()->finds_room(lacking));
}

void ClientRest::begin(Client& client, std::size_t lacking) {
    const bool lacks = lacks_room(ClientAccess::state(client), lacking);
    ClientAccess::ring(client).fall_asleep(lacks ? std::optional{lacking} : std::nullopt);
}

void ClientRest::end(Client& client) { ClientAccess::ring(client).wake(); }

}  // namespace millrace::message::detail
