#include "fabric/multicast.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "fabric/node.hpp"
#include "millrace/base/log.hpp"

namespace millrace::soft {
namespace {

/// Guards the group table of this process's node.
std::mutex attaching;

[[nodiscard]] GroupEntry* find(Node& node, const GroupName& group, std::uint32_t index) noexcept {
    for (std::uint32_t i = 0; i < groups_per_node; ++i) {
        GroupEntry& entry = node.groups()[i];
        if (entry.member.load(std::memory_order_relaxed) == index + 1 &&
            std::memcmp(entry.group, group.data(), group.size()) == 0) {
            return &entry;
        }
    }
    return nullptr;
}

/// Tells every node that memberships have changed.
int announce(Node& node) noexcept {
    try {
        for (const std::uint32_t number : node.node_numbers()) {
            if (const auto peer = node.peer(number); peer != nullptr) peer->announce_membership();
        }
        return 0;
    } catch (const std::exception& error) {
        base::log(base::LogLevel::error, "soft",
                  "tell the fabric of a change of a multicast group: {}; senders may not know it",
                  error.what());
        return ENOMEM;
    }
}

}  // namespace

GroupName group_name(const ibv_gid& gid) noexcept {
    GroupName name;
    std::memcpy(name.data(), gid.raw, name.size());
    return name;
}

const std::vector<std::uint32_t>& Groups::members(Node& node, const GroupName& group) {
    // The epoch first: who attaches writes itself down, and raises it then.
    const std::uint32_t epoch = node.membership().load(std::memory_order_acquire);
    if (epoch != epoch_) {
        known_.clear();
        epoch_ = epoch;
    }
    const auto known = known_.find(group);
    if (known != known_.end()) return known->second;
    std::vector<std::uint32_t> found;
    for (const std::uint32_t number : node.node_numbers()) {
        if (const auto peer = node.peer(number); peer != nullptr) peer->members(group, found);
    }
    return known_[group] = std::move(found);
}

bool in_any_group(Node& node, std::uint32_t index) noexcept {
    const std::lock_guard guard{attaching};
    for (std::uint32_t i = 0; i < groups_per_node; ++i) {
        if (node.groups()[i].member.load(std::memory_order_relaxed) == index + 1) return true;
    }
    return false;
}

int join_group(Node& node, const GroupName& name, std::uint32_t index) noexcept {
    {
        const std::lock_guard guard{attaching};
        if (find(node, name, index) != nullptr) return 0;
        GroupEntry* free = nullptr;
        for (std::uint32_t i = 0; i < groups_per_node && free == nullptr; ++i) {
            GroupEntry& entry = node.groups()[i];
            if (entry.member.load(std::memory_order_relaxed) == 0) free = &entry;
        }
        if (free == nullptr) return ENOMEM;
        std::memcpy(free->group, name.data(), name.size());
        free->member.store(index + 1, std::memory_order_release);
    }
    return announce(node);
}

int leave_group(Node& node, const GroupName& name, std::uint32_t index) noexcept {
    {
        const std::lock_guard guard{attaching};
        GroupEntry* const entry = find(node, name, index);
        if (entry == nullptr) return EINVAL;
        entry->member.store(0, std::memory_order_release);
    }
    static_cast<void>(announce(node));  // it has left; who does not know sends in vain
    return 0;
}

}  // namespace millrace::soft
