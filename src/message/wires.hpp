// Which wire goes with which transport: what a client and a server ask for one. wires.cpp is the
// only place that knows all of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/held_bytes.hpp"
#include "millrace/message/server.hpp"
#include "wire.hpp"

namespace millrace::message {

/// The largest ring for requests that a client lets its server have, in bytes.
inline constexpr std::size_t largest_server_ring = std::size_t{64} << 20;

/// What carries a session's messages: rings of a queue pair, or a wire.
[[nodiscard]] constexpr bool is_by_wire(connect::Transport transport) noexcept {
    return transport != connect::Transport::rc;
}
/// The same of a client with these options, and of a server's clients by that transport.
[[nodiscard]] inline bool is_by_wire(const ClientOptions& options) noexcept {
    return is_by_wire(options.transport) || options.requests == Transfer::shared;
}
[[nodiscard]] inline bool is_by_wire(const ServerOptions& options,
                                     connect::Transport transport) noexcept {
    return is_by_wire(transport) || options.polling == Polling::shared;
}

/// Throws Error (invalid_argument): what these options ask for, their transport does not have.
void check_transport(const ClientOptions& options);
void check_transports(const ServerOptions& options);

/// A client's wire to `link.transport`. Throws Error as connect::connect, and Link::exchange.
[[nodiscard]] std::unique_ptr<Wire> connect_wire(const connect::Address& server,
                                                 const connect::LinkOptions& link,
                                                 const ClientOptions& options,
                                                 const base::Deadline& deadline);

/// Those of one server.
struct WireHosts {
    /// Of the transports that go by wire and that the server takes; `link` is what it will listen
    /// with. Throws Error (resource_exhausted, verbs).
    WireHosts(const ServerOptions& options, connect::LinkOptions& link,
              const std::shared_ptr<HeldBytes>& held);
    /// Throws Error as WireHost::meet.
    [[nodiscard]] std::unique_ptr<Wire> meet(connect::Link link);

    std::vector<std::unique_ptr<WireHost>> all;

  private:
    std::vector<connect::Transport> transports_;  ///< of `all`
};

}  // namespace millrace::message
