// Ports on one host: a port is an abstract Unix socket of its name, which the kernel frees with the
// process. Whoever listens has the socket listen; whoever connects goes from its own socket to the
// listener's, and the two are the connection's carrier.
//
//   \0millrace-cm/<user>/<fabric>/<space>/<address>/<port>[+<number>]
//
//   space    tcp, udp, ib, ipoib
//   address  8 or 32 hexadecimal digits; *4 and *6: all addresses of a family, *6 of both;
//            *6o: of IPv6 only
//   number   of ids that share a port (RDMA_OPTION_ID_REUSEADDR) before one of them listens
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "../soft/system/descriptor.hpp"
#include "address.hpp"
#include "mad.hpp"

namespace millrace::cm {

/// Where ports are apart from others.
struct Realm {
    uid_t user = 0;
    std::string fabric;  ///< of a long name, its hash
    PortSpace space = PortSpace::tcp;
};
/// Of this user, and the fabric that MILLRACE_FABRIC names: a program may change both later. Throws
/// base::Error if it is no name. To be called by the program's threads.
[[nodiscard]] Realm own_realm(PortSpace space);

struct PortOptions {
    bool shared = false;       ///< RDMA_OPTION_ID_REUSEADDR
    bool family_only = false;  ///< RDMA_OPTION_ID_AFONLY: `::` is not for IPv4
};

/// Takes the port of `address`, or a free one where that is 0, and says it there. An errno value as
/// the kernel's: EADDRINUSE, EADDRNOTAVAIL (a wildcard is in the way), EACCES (a privileged port).
[[nodiscard]] int take_port(const Realm& realm, Address& address, PortOptions options,
                            soft::Descriptor& socket) noexcept;

/// Takes the port once more, on other terms; where those are refused (EADDRINUSE, EADDRNOTAVAIL),
/// it stays as it was.
[[nodiscard]] int change_port(const Realm& realm, const Address& address, PortOptions before,
                              PortOptions after, soft::Descriptor& socket) noexcept;

/// From now on others can connect to the port that `socket` has taken. A shared one becomes the
/// only one: EADDRINUSE if others share it.
[[nodiscard]] int listen_on_port(const Realm& realm, const Address& address, PortOptions options,
                                 int backlog, soft::Descriptor& socket) noexcept;

/// Connects the socket that has taken a port to who of this user listens at `address`: 0,
/// ECONNREFUSED (nobody does), or EAGAIN (nobody is there to take more of them at the moment).
[[nodiscard]] int connect_to_port(const Realm& realm, const Address& address,
                                  soft::Descriptor& socket) noexcept;

/// Is the process at the other end one of that user's? To be asked once it is connected.
[[nodiscard]] bool is_of_user(int socket, uid_t user) noexcept;

}  // namespace millrace::cm
