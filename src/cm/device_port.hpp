// What a connection is told of the soft device and its port: which device it is, and by which GIDs
// two addresses of this host reach each other. Called by the commands that say it to librdmacm.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

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

}  // namespace millrace::cm
