// The state of a Client, for the dispatcher's way to it (client_rest.hpp) and for tests.
#pragma once

#include "lane/ring_lane.hpp"
#include "millrace/message/client.hpp"

namespace millrace::message::detail {

struct ClientAccess {
    [[nodiscard]] static Client::State& state(Client& client) noexcept { return *client.state_; }
    /// Until the next reconnect() or close().
    [[nodiscard]] static RingLane& ring(Client& client) noexcept;
};

}  // namespace millrace::message::detail
