// Which soft devices can reach each other. Used by the handshake, so that two processes whose
// devices merely have the same name are not connected to nothing.
#pragma once

#include <string>

namespace millrace::connect {

/// This host's name.
[[nodiscard]] std::string host_name();

/// What the soft device of this process can reach, in words: fabric, user, host (by its boot
/// identity, since names repeat) and the namespaces that part processes of one host. Throws Error.
[[nodiscard]] std::string soft_fabric();

}  // namespace millrace::connect
