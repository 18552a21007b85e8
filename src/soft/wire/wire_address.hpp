// Addresses of the wire: how GIDs name them, and which one of this host the process takes. Used by
// the port and by whoever chooses between memory and wire.
//
// The public port is RoCE version 2's, 4791; its GID is the address, IPv4 as ::ffff:a.b.c.d. Where
// another one has that port, a process at an IPv4 address takes any, and tells it to peers of its
// kind by a private GID (an IPv6 address fills a GID, and leaves no room for a port):
//
//   fd 4d 52 00   the prefix, of RFC 4193's space that everybody may use
//   port          2 bytes
//   zeros         6 bytes
//   address       4 bytes
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "wire/ip_address.hpp"

namespace millrace::soft {

inline constexpr std::uint16_t public_wire_port = 4791;
/// What IP, UDP and the longest headers of a packet take of an interface's MTU.
[[nodiscard]] constexpr std::uint32_t wire_header_bytes(const IpAddress& at) noexcept {
    return at.is_ipv4() ? 80 : 100;
}

/// The address, or with another port than 4791 the private GID, of IPv4 alone.
[[nodiscard]] ibv_gid gid_of(const UdpAddress& address) noexcept;
/// Nothing: a host without the wire has such a GID.
[[nodiscard]] std::optional<UdpAddress> udp_address_of(const ibv_gid& gid) noexcept;

/// The longest packet payload for an interface with that MTU, at that address. Nothing: it carries
/// not even 256.
[[nodiscard]] std::optional<ibv_mtu> wire_mtu(std::uint32_t interface_mtu,
                                              const IpAddress& at) noexcept;

/// What MILLRACE_WIRE says.
struct WireChoice {
    enum class Kind : std::uint8_t { off, automatic, named };
    Kind kind = Kind::off;
    /// Of `automatic` the one to be preferred, or none. Port 0: 4791, and where that is taken any.
    UdpAddress address{};
    /// Peers of this host, too, are reached by packets.
    bool always = false;
    /// Every packet has its ICRC, to peers of this machine, too.
    bool checked = false;
    friend bool operator==(const WireChoice&, const WireChoice&) = default;
};
/// "auto", "ADDRESS", "ADDRESS:PORT", an IPv6 address in brackets or not, each with ",always" and
/// ",checked" or not; "" and "off" are off. Throws base::Error (invalid_argument).
[[nodiscard]] WireChoice parse_wire(std::string_view text);
/// Of MILLRACE_WIRE; where it says nothing, as `turn_wire_on_at` has said.
[[nodiscard]] WireChoice wire_of_environment();
/// `automatic` from now on, preferring that address (or none). Any thread.
void turn_wire_on_at(const IpAddress& ip) noexcept;

/// An address of this host that the wire can use.
struct WireInterface {
    IpAddress ip;
    std::uint32_t index = 0;
    std::uint32_t mtu = 0;
    bool is_loopback = false;
};
/// The named one; of `automatic` the first that is not the loopback's, IPv4 before IPv6, else
/// 127.0.0.1. Throws base::Error: this host does not have it, or nothing of it is up.
[[nodiscard]] WireInterface find_wire_interface(const WireChoice& choice);

}  // namespace millrace::soft
