// Sockets for the handshake: bound, accepted, connected; TCP and Unix. Used by the listener and by
// connect().
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "millrace/connect/address.hpp"

namespace millrace::connect {

/// A numeric socket address.
struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t size = 0;
    [[nodiscard]] const sockaddr* raw() const noexcept {
        return reinterpret_cast<const sockaddr*>(&storage);
    }
};

/// The numeric addresses behind `address`; asks the resolver for names, which may block as long as
/// the system's resolver is configured to. Throws Error (not_found: unknown host) naming
/// `attempted`.
[[nodiscard]] std::vector<SocketAddress> resolve(const Address& address, bool to_listen,
                                                 const char* attempted);

/// A listening socket, and what is to be known of it.
struct Listening {
    Descriptor socket;
    Address address;   ///< with the port that was chosen
    dev_t device = 0;  ///< a Unix path's file, to unlink only our own
    ino_t inode = 0;
};
/// Throws Error.
[[nodiscard]] Listening listen_on(const Address& address);
/// Removes the path of a Unix socket, if it is still the one that was bound.
void unlink_own(const Listening& listening) noexcept;

/// What every connected socket of a link gets: close-on-exec, non-blocking (both by its creator),
/// no delay, keepalive that notices a dead host within some five seconds.
void prepare_connected(int socket) noexcept;

/// Takes what is there, some 64 KiB at most, out of a socket that is about to be closed: closing
/// with unread data resets the connection, which may overtake the last words.
void drain(int socket) noexcept;

/// Its own and its peer's; of size 0, where the system does not say.
[[nodiscard]] SocketAddress own_name(int socket) noexcept;
[[nodiscard]] SocketAddress other_name(int socket) noexcept;
/// "127.0.0.1:4711"; for Unix sockets what `fallback` says.
[[nodiscard]] std::string peer_text(int socket, const Address& fallback);
[[nodiscard]] Address peer_address(int socket, const Address& fallback);
[[nodiscard]] Address local_address(int socket, const Address& fallback);
/// A TCP socket that has connected to itself, as may happen on an ephemeral port without listener.
[[nodiscard]] bool connected_to_itself(int socket) noexcept;

}  // namespace millrace::connect
