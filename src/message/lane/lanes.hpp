// Which lane goes with which transport: what a client and a server ask for one. lanes.cpp is the
// only place that knows all of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lane/any_lane.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"

namespace millrace::message {

/// The largest ring for requests that a client lets its server have, in bytes.
inline constexpr std::size_t largest_server_ring = std::size_t{64} << 20;

/// What carries a session's messages by this transport: no rings of a queue pair.
[[nodiscard]] constexpr bool has_no_rings(connect::Transport transport) noexcept {
    return transport != connect::Transport::rc;
}
/// The same of a client with these options, and of a server's clients by that transport.
[[nodiscard]] inline bool has_no_rings(const ClientOptions& options) noexcept {
    return has_no_rings(options.transport) || options.requests == Transfer::shared;
}
[[nodiscard]] inline bool has_no_rings(const ServerOptions& options,
                                       connect::Transport transport) noexcept {
    return has_no_rings(transport) || options.polling == Polling::shared;
}

/// Throws Error (invalid_argument): what these options ask for, their transport does not have.
void check_transport(const ClientOptions& options);
void check_transports(const ServerOptions& options);

/// A client's lane by `link.transport`. Throws Error as connect::connect, and Link::exchange.
[[nodiscard]] std::unique_ptr<NetworkLane> connect_network_lane(const connect::Address& server,
                                                                const connect::LinkOptions& link,
                                                                const ClientOptions& options,
                                                                const base::Deadline& deadline);

/// Those of one server.
struct LaneHosts {
    /// Of the transports that have no rings and that the server takes; `link` is what it will
    /// listen with. Throws Error (resource_exhausted, verbs).
    LaneHosts(const ServerOptions& options, connect::LinkOptions& link,
              const std::shared_ptr<HeldBytes>& held);
    /// Throws Error as LaneHost::meet.
    [[nodiscard]] std::unique_ptr<NetworkLane> meet(connect::Link link);

    std::vector<std::unique_ptr<LaneHost>> all;

  private:
    std::vector<connect::Transport> transports_;  ///< of `all`
};

}  // namespace millrace::message
