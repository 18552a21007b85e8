// Listening on the kernel's TCP. For what subcommands do without Millrace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include <netdb.h>

#include "descriptor.hpp"

namespace millrace::workload {

/// Calls `use(socket, address)` for what the host has, until it answers true. An empty host: to
/// listen, all of this one's addresses. Throws Error (not_found).
void for_each_address(const std::string& host, std::uint16_t port, int flags,
                      const std::function<bool(Descriptor&, const addrinfo&)>& use);
/// Port 0: the system chooses. Throws Error: the address is in use, or none of this host …
[[nodiscard]] Descriptor tcp_listen(const std::string& host, std::uint16_t port);
/// Of a bound socket. Throws Error.
[[nodiscard]] std::uint16_t tcp_port(const Descriptor& listener);

}  // namespace millrace::workload
