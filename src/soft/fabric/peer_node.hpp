// Peers: another process's node, found by its socket and mapped through /proc, and this process's
// own node seen the same way. Called by the node.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "fabric/fabric.hpp"
#include "fabric/node_memory.hpp"
#include "regions/region_facts.hpp"
#include "regions/region_table.hpp"
#include "system/liveness.hpp"

namespace millrace::soft {

/// Whether a peer may map it to write to it.
[[nodiscard]] inline bool is_shared_and_writable(const RegionFacts& facts) noexcept {
    return static_cast<RegionKind>(facts.kind) == RegionKind::shared_file &&
           (facts.access & IBV_ACCESS_LOCAL_WRITE) != 0;
}

/// Maps what the entry describes from the first byte's page on; `skip`: where in that the first
/// byte is. Empty: it is not (any longer) what the entry says.
[[nodiscard]] Mapping map_region(pid_t pid, const RegionFacts& facts, bool writable,
                                 std::size_t& skip);

/// What PeerNode::members finds in a group table that its owner may be changing.
void find_members(const GroupEntry* table, std::uint32_t node,
                  const std::array<std::uint8_t, 16>& group, std::vector<std::uint32_t>& found);

/// Connects to node `number` of `fabric`. nullptr: there is none, or not one to talk to (logged).
/// May throw std::bad_alloc and, when the process runs out of watches, `base::Error`.
/// `is_free`, unless null: as of Node::peer.
[[nodiscard]] std::shared_ptr<PeerNode> connect_to_node(std::string_view fabric,
                                                        std::uint32_t number,
                                                        std::shared_ptr<Liveness> liveness,
                                                        bool* is_free);

/// This process's node as a peer of itself. `usable` outlives it through `memory`'s owner.
[[nodiscard]] std::shared_ptr<PeerNode> own_node_as_peer(
    std::uint32_t number, std::shared_ptr<NodeMemory> memory, std::shared_ptr<RegionTable> regions,
    std::shared_ptr<const std::atomic<bool>> usable);

}  // namespace millrace::soft
