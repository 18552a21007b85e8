// Multicast groups: which queue pairs of the fabric belong to one. Datagram sends ask for members.
// docs/soft/receives.md, end.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "fabric/fabric.hpp"

namespace millrace::soft {

using GroupName = std::array<std::uint8_t, 16>;

[[nodiscard]] GroupName group_name(const ibv_gid& gid) noexcept;

/// What one sender knows about groups. Not thread-safe.
class Groups {
  public:
    /// The numbers of the group's queue pairs, as of the last attach or detach that was finished
    /// before the call. A system call or more when something has changed. May throw.
    [[nodiscard]] const std::vector<std::uint32_t>& members(Node& node, const GroupName& group);

  private:
    std::map<GroupName, std::vector<std::uint32_t>> known_;
    std::uint32_t epoch_ = 0;
};

/// The queue pair with that index belongs to the group from here on, or no longer. 0 or an errno
/// value.
[[nodiscard]] int join_group(Node& node, const GroupName& name, std::uint32_t index) noexcept;
[[nodiscard]] int leave_group(Node& node, const GroupName& name, std::uint32_t index) noexcept;
/// Is the queue pair with that index attached to any group?
[[nodiscard]] bool in_any_group(Node& node, std::uint32_t index) noexcept;

}  // namespace millrace::soft
