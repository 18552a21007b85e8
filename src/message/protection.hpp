// Whether clients of a server are kept out of each other's memory: what is refused for that, and
// what the server says of it. Used by server_clients.cpp and server.cpp.
#pragma once

#include <string>

#include "millrace/message/server.hpp"

namespace millrace::message {

/// Throws Error (invalid_argument): what all clients share, of a server that does not trust them.
void check_protection(const ServerOptions& options);
/// Of a server that takes clients by ring, or by datagrams: what one of them can do to the others,
/// and why, in a line.
[[nodiscard]] std::string explain_protection(const ServerOptions& options, Polling polling);

}  // namespace millrace::message
