// What a connection is told of the soft device and its port: which device it is, and by which GIDs
// two addresses of this host reach each other. Called by the commands that say it to librdmacm.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <span>

#include "address.hpp"

namespace millrace::cm {

struct DevicePort {
    __be64 guid = 0;
    std::uint32_t index = 0;  ///< as ibv_get_device_index has it
    std::uint8_t number = 1;
    std::uint16_t lid = 0;
    ibv_mtu mtu = IBV_MTU_4096;
    bool is_ethernet = true;
};
[[nodiscard]] DevicePort device_port() noexcept;

struct PlacedGid {
    ibv_gid gid{};
    std::uint8_t index = 0;  ///< in the port's table
};
/// Of an address of this host; the loopback's, and those that the port's table has not, are reached
/// by the port's own.
[[nodiscard]] PlacedGid gid_of_address(const Address& address) noexcept;

/// The way to a GID, of a peer or a group, from an address of this host.
[[nodiscard]] ib_uverbs_ah_attr way_to(std::span<const std::uint8_t, 16> gid,
                                       const Address& source) noexcept;

inline constexpr std::uint32_t datagram_queue_key = 0x01234567;  ///< RDMA_UDP_QKEY

}  // namespace millrace::cm
