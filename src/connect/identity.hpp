// Which soft devices can reach each other. Used by the handshake, so that two processes whose
// devices merely have the same name are not connected to nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::connect {

/// This host's name.
[[nodiscard]] std::string host_name();

/// What the soft device of this process can reach, in words: fabric, user, host (by its boot
/// identity, since names repeat) and the namespaces that part processes of one host. Throws Error.
[[nodiscard]] std::string soft_fabric();

/// Are both texts of processes of one machine?
[[nodiscard]] bool is_one_machine(std::string_view own, std::string_view others);

/// One thing in which two such texts differ.
struct Parting {
    std::string_view what;  ///< "pid namespace"
    std::string_view own;
    std::string_view others;
    std::string_view remedy;
};
/// All of them, of two machines only that; none where nothing of what is known here differs:
/// another build's texts may. Refers to both.
[[nodiscard]] std::vector<Parting> what_parts(std::string_view own, std::string_view others);

}  // namespace millrace::connect
