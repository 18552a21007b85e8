// Datagram queue pairs: their way to RTS, address handles, multicast groups.
#include "millrace/verbs/datagram.hpp"

#include <cerrno>
#include <cstdint>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "failure.hpp"
#include "gid_text.hpp"
#include "millrace/base/log.hpp"
#include "millrace/verbs/memory.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {
namespace {

// modify_qp, attach_mcast and the like return an errno value, or -1 and set it.
int error_of(int result) noexcept { return result > 0 ? result : (errno != 0 ? errno : EIO); }

}  // namespace

AddressHandle::AddressHandle(AddressHandle&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_} {}

AddressHandle& AddressHandle::operator=(AddressHandle&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    return *this;
}

AddressHandle::~AddressHandle() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = path_->destroy_ah(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs", "destroy an address handle: {}",
                  base::describe_errno(error));
    }
}

AddressHandle ProtectionDomain::create_address_handle(const QueuePairAddress& peer,
                                                      const PathOptions& path) {
    ibv_ah_attr attributes{};
    attributes.dlid = peer.lid;
    attributes.port_num = path.port;
    if (path.gid_index >= 0 && peer.has_gid) {
        attributes.is_global = 1;
        attributes.grh.dgid = peer.gid;
        attributes.grh.sgid_index = static_cast<std::uint8_t>(path.gid_index);
        attributes.grh.hop_limit = path.hop_limit;
    }
    errno = 0;
    ibv_ah* const raw = path_->create_ah(raw_, &attributes);
    if (raw == nullptr) {
        throw_call_failed(
            "create an address handle",
            fmt::format("port {} of {} to LID {}{}", path.port, raw_->context->device->name,
                        peer.lid,
                        attributes.is_global != 0 ? fmt::format(", GID {}", text_of(peer.gid))
                                                  : std::string{}),
            "check that the port is active and the GID index valid here; RoCE needs the peer's "
            "GID");
    }
    return AddressHandle{raw, *path_};
}

DatagramQueuePair ProtectionDomain::create_datagram_queue_pair(QueuePairOptions options) {
    options.type = IBV_QPT_UD;
    return DatagramQueuePair{create_queue_pair(options), *path_};
}

void DatagramQueuePair::start(std::uint8_t port, std::uint32_t key,
                              std::uint32_t own_packet_sequence) {
    const auto move = [&](const char* transition, ibv_qp_attr attributes, int mask) {
        errno = 0;
        const int result = path_->modify_qp(raw(), &attributes, mask);
        if (result == 0) return;
        base::throw_errno(error_of(result), fmt::format("move a queue pair from {}", transition),
                          fmt::format("datagram queue pair {} of {} (port {}, Q_Key {:#x})",
                                      number(), raw()->context->device->name, port, key),
                          "check that the port is active; start a queue pair once");
    };
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = port;
    attributes.qkey = key;
    move("RESET to INIT", attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    attributes.qp_state = IBV_QPS_RTR;
    move("INIT to RTR", attributes, IBV_QP_STATE);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = own_packet_sequence & 0xffffff;
    move("RTR to RTS", attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

GroupMembership DatagramQueuePair::join(const ibv_gid& group, std::uint16_t lid) {
    errno = 0;
    if (const int result = path_->attach_mcast(raw(), &group, lid); result != 0) {
        base::throw_errno(error_of(result), "join a multicast group",
                          fmt::format("queue pair {} of {}, group {}", number(),
                                      raw()->context->device->name, text_of(group)),
                          "the GID must be a multicast one (ff…), and the device must have room");
    }
    return GroupMembership{raw(), *path_, group, lid};
}

GroupMembership::GroupMembership(GroupMembership&& other) noexcept
    : queue_pair_{std::exchange(other.queue_pair_, nullptr)},
      path_{other.path_},
      group_{other.group_},
      lid_{other.lid_} {}

GroupMembership& GroupMembership::operator=(GroupMembership&& other) noexcept {
    GroupMembership taken{std::move(other)};
    std::swap(queue_pair_, taken.queue_pair_);
    std::swap(path_, taken.path_);
    std::swap(group_, taken.group_);
    std::swap(lid_, taken.lid_);
    return *this;
}

GroupMembership::~GroupMembership() {
    if (queue_pair_ != nullptr && is_parents(queue_pair_->context)) return;
    try {
        leave();
    } catch (const std::exception& error) {
        base::log(base::LogLevel::error, "verbs", "{}", error.what());
    }
}

void GroupMembership::leave() {
    ibv_qp* const member = std::exchange(queue_pair_, nullptr);
    if (member == nullptr) return;
    errno = 0;
    if (const int result = path_->detach_mcast(member, &group_, lid_); result != 0) {
        base::throw_errno(error_of(result), "leave a multicast group",
                          fmt::format("queue pair {} of {}, group {}", member->qp_num,
                                      member->context->device->name, text_of(group_)),
                          "end a membership before its queue pair, and join a group once");
    }
}

}  // namespace millrace::verbs
