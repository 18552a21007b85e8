// The soft device's one port: its link layer, and its table of GIDs.
//
// As an Ethernet port (RoCE), each address has two places in the table, for RoCE version 1 and 2:
//
//   0, 1   the port's own link-local GID; with the wire, that of its address
//   2, 3   the host's first IPv4 address, as ::ffff:a.b.c.d: index 3 is what most scripts name
//   4, …   other IPv4 addresses, then IPv6 ones; the loopback's only if there are no others
//
// An address keeps its place as long as the process lives; where one goes, its places are empty.
// As an InfiniBand port it has its own GID, at index 0, and no others.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

namespace millrace::soft {

inline constexpr std::uint16_t port_lid = 1;

/// A locally administered identifier, the same in every process of the host.
[[nodiscard]] __be64 device_guid() noexcept;

/// IBV_LINK_LAYER_ETHERNET, or INFINIBAND, as MILLRACE_SOFT_LINK says. What it says wrongly is
/// Ethernet here.
[[nodiscard]] std::uint8_t port_link_layer() noexcept;
/// Throws base::Error (invalid_argument) if MILLRACE_SOFT_LINK says what nobody understands.
void check_port_link_layer();

/// What the wire says of this port: its GID is the first in the table, or the only one.
struct WireFacts {
    ibv_gid gid{};
    std::uint32_t interface = 0;
    ibv_mtu mtu = IBV_MTU_4096;
    bool alone = false;
};
/// When the device is opened; nothing: without the wire. Any thread.
void show_wire(const std::optional<WireFacts>& facts) noexcept;
/// What the packets of this port may carry.
[[nodiscard]] ibv_mtu port_mtu() noexcept;

/// Looks at the host's addresses again and returns how many places the table has.
[[nodiscard]] int count_gids() noexcept;
/// Nothing: there is no such place. An empty place has an entry whose GID is zero.
[[nodiscard]] std::optional<ibv_gid_entry> gid_at(std::uint32_t index) noexcept;
/// Is it one of this host's? Looks at the addresses again where it was not.
[[nodiscard]] bool is_own_gid(const ibv_gid& gid) noexcept;
/// Where it is; -1: nowhere.
[[nodiscard]] int index_of_gid(const ibv_gid& gid, std::uint32_t type) noexcept;

[[nodiscard]] bool is_empty(const ibv_gid& gid) noexcept;
/// ::ffff:a.b.c.d
[[nodiscard]] bool is_ipv4(const ibv_gid& gid) noexcept;
/// ::ffff:a.b.c.d
[[nodiscard]] ibv_gid gid_of_ipv4(__be32 address) noexcept;

}  // namespace millrace::soft
