// Peers of other hosts: the soft device's wire is turned on for the first one. Used by the
// handshake; why the wire is on or off is for errors and explain().
#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "millrace/connect/address.hpp"

namespace millrace::connect {

/// "10.77.0.1" of an IPv4-mapped one, and of a soft device's whose wire has another port than
/// RoCE's; else as IPv6 addresses are written.
[[nodiscard]] std::string text_of(const ibv_gid& gid);

/// Is it an address of IPv4, of either of these kinds? Else it is one of IPv6.
[[nodiscard]] bool is_ipv4(const ibv_gid& gid) noexcept;

/// Turns the wire on, at this host's address of `socket`, which is connected, if the peer's is none
/// of this host's. `peer`: that, to be told. Not where MILLRACE_WIRE says something, which then
/// decides. True: it is on now. That it cannot be had is told by why_no_wire().
[[nodiscard]] bool turn_on_for_peer(int socket, const Address& peer);

/// Why the wire of this process is on, as a clause; or off. Empty: nothing is known of it.
[[nodiscard]] std::string why_wire_is_on();
[[nodiscard]] std::string why_no_wire();

}  // namespace millrace::connect
