// The manager's commands for multicast groups. Whoever joins is told the group's GID, and librdmacm
// attaches the queue pair to it; the soft device knows who belongs to a group, so nobody else is
// asked.
#include <rdma/rdma_user_cm.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "device_port.hpp"
#include "manager.hpp"

namespace millrace::cm {
namespace {

constexpr std::uint32_t multicast_join_event = 12;  ///< RDMA_CM_EVENT_MULTICAST_JOIN
constexpr std::uint32_t every_queue_pair = 0xffffff;

/// As the kernel maps an IP address to a group: ff0e::ffff:a.b.c.d, or the IPv6 address itself.
[[nodiscard]] Gid group_of(const Address& address) noexcept {
    Gid gid{};
    if (address.family() == AF_INET) {
        gid[0] = 0xff;
        gid[1] = 0x0e;
        gid[10] = gid[11] = 0xff;
    }
    std::memcpy(gid.data() + gid.size() - address.byte_count(), address.bytes(),
                address.byte_count());
    return gid;
}

}  // namespace

int Manager::join_ip(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_join_ip_mcast>();
    if (!request.has_room_for(sizeof(rdma_ucm_create_id_resp))) return ENOSPC;
    const auto address = Address::from(&command.addr, sizeof command.addr);
    if (!address) return EINVAL;
    return join_group(channel, command.id, *address, command.uid, command.response, request);
}

int Manager::join(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_join_mcast>();
    if (!request.has_room_for(sizeof(rdma_ucm_create_id_resp))) return ENOSPC;
    const auto address = Address::from(&command.addr, command.addr_size);
    // One that only sends is a member all the same: its program attaches no queue pair.
    if (!address || command.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) return EINVAL;
    return join_group(channel, command.id, *address, command.uid, command.response, request);
}

int Manager::join_group(Channel& channel, std::uint32_t handle, const Address& address,
                        std::uint64_t uid, std::uint64_t response, const Request& request) {
    const auto [id, error] = find(channel, handle);
    if (id == nullptr) return error;
    const bool is_placed = id->state == IdState::bound || id->state == IdState::address_resolved;
    if (!is_placed || !id->has_device || id->type != IBV_QPT_UD || address.is_any()) return EINVAL;
    const std::uint32_t name = next_membership_;
    if (const int refused = request.answer(response, rdma_ucm_create_id_resp{name})) return refused;
    auto membership = std::make_unique<Membership>(Membership{.id = id, .uid = uid});
    QueuedEvent event;
    event.about = id;
    event.membership = membership.get();
    event.response.uid = uid;
    event.response.id = name;
    event.response.event = multicast_join_event;
    auto& datagrams = event.response.param.ud;
    datagrams.qp_num = every_queue_pair;
    datagrams.qkey = datagram_queue_key;
    datagrams.ah_attr = way_to(group_of(address), id->source);
    datagrams.ah_attr.grh.traffic_class = id->type_of_service;
    memberships_.emplace(name, std::move(membership));
    ++next_membership_;
    queue(channel, std::move(event));
    return 0;
}

int Manager::leave(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_destroy_id>();
    if (!request.has_room_for(sizeof(rdma_ucm_destroy_id_resp))) return ENOSPC;
    const auto found = memberships_.find(command.id);
    if (found == memberships_.end()) return ENOENT;
    const Membership& membership = *found->second;
    if (membership.id->channel != &channel) return EINVAL;
    std::erase_if(channel.events,
                  [&](const QueuedEvent& event) { return event.membership == &membership; });
    show_news(channel);
    const std::uint32_t reported = membership.events_reported;
    memberships_.erase(found);
    return request.answer(command.response, rdma_ucm_destroy_id_resp{reported});
}

}  // namespace millrace::cm
