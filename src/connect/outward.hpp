// Which addresses lead to other hosts, and turning the soft device's wire on for them, before the
// device opens. Used by Endpoint::shared_to_connect and shared_to_listen; why the wire is on or off
// is for errors and explain().
#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "millrace/connect/address.hpp"

namespace millrace::connect {

/// "10.77.0.1" of an IPv4-mapped one, and of a soft device's whose wire has another port than
/// RoCE's; else as IPv6 addresses are written.
[[nodiscard]] std::string text_of(const ibv_gid& gid);

/// Turns the wire on, where the default device is the soft one, and `address` is one that no
/// process of this machine listens on. Throws Error: its host is not known.
void prepare_to_connect(const Address& address);
/// The same where `address` names one by which other hosts reach this one. An address that means
/// all of them does not: most such listeners serve this machine alone.
void prepare_to_listen(const Address& address);

/// The same for the peer at the other end of `socket`, which is connected, with the device open:
/// for who listens on all addresses, and nobody came from elsewhere before. `peer`: its address, to
/// be told. True: it is on now.
[[nodiscard]] bool prepare_for_peer(int socket, const Address& peer);

/// Why the wire of this process is on, as a clause; or off. Empty: nothing is known of it.
[[nodiscard]] std::string why_wire_is_on();
[[nodiscard]] std::string why_no_wire();

}  // namespace millrace::connect
