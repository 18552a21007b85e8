#include "device_port.hpp"

#include <cstring>

#include "millrace/soft/device.hpp"

namespace millrace::cm {

DevicePort device_port() noexcept {
    DevicePort port;
    int count = 0;
    ibv_device* const device = soft::device_list(&count)[0];
    port.guid = soft::get_device_guid(device);
    port.index = static_cast<std::uint32_t>(soft::get_device_index(device));
    ibv_port_attr attributes{};
    if (soft::query_port(nullptr, port.number, &attributes) == 0) {
        port.lid = attributes.lid;
        port.mtu = attributes.active_mtu;
        port.is_ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    }
    return port;
}

PlacedGid gid_of_address(const Address& address) noexcept {
    ibv_gid wanted{};
    if (address.family() == AF_INET) wanted.raw[10] = wanted.raw[11] = 0xff;
    std::memcpy(wanted.raw + sizeof wanted.raw - address.byte_count(), address.bytes(),
                address.byte_count());
    PlacedGid own;
    ibv_gid_entry entry{};
    ibv_port_attr port{};
    static_cast<void>(soft::query_port(nullptr, 1, &port));
    for (int index = 0; index < port.gid_tbl_len; ++index) {
        if (soft::query_gid_entry(nullptr, 1, static_cast<std::uint32_t>(index), &entry) != 0) {
            continue;
        }
        const PlacedGid found{entry.gid, static_cast<std::uint8_t>(index)};
        const bool is_first = index < 2;
        if (is_first) own = found;  // of two versions of RoCE, the second
        if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
            std::memcmp(entry.gid.raw, wanted.raw, sizeof wanted.raw) == 0) {
            return found;
        }
    }
    return own;
}

ib_uverbs_ah_attr way_to(std::span<const std::uint8_t, 16> gid, const Address& source) noexcept {
    const DevicePort port = device_port();
    ib_uverbs_ah_attr way{};
    way.port_num = port.number;
    way.dlid = port.lid;
    way.is_global = port.is_ethernet ? 1 : 0;
    std::memcpy(way.grh.dgid, gid.data(), gid.size());
    way.grh.sgid_index = gid_of_address(source).index;
    way.grh.hop_limit = 64;
    return way;
}

}  // namespace millrace::cm
