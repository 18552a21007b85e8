// This process's node: takes a number by binding its socket, makes its memory, knows its regions
// and its peers. Called by the verbs objects of this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/node_memory.hpp"
#include "layout/hazard.hpp"
#include "layout/layout.hpp"
#include "regions/region_table.hpp"
#include "system/descriptor.hpp"

namespace millrace::soft {

class Liveness;

/// One per process and fabric, made by the first open_device, closed with the last close_device;
/// not inherited by fork (the child's calls fail with ENODEV).
class Node {
  public:
    /// The process's node. Throws `base::Error` if the fabric cannot be joined (all numbers
    /// taken, abstract sockets or memfd refused, another user squats on the name). `slot`: what a
    /// new one's number is to leave by wire_slots.
    [[nodiscard]] static std::shared_ptr<Node> join(
        std::string_view fabric, std::optional<std::uint32_t> slot = std::nullopt);

    /// By `join`.
    Node(std::string_view fabric, bool membarrier, std::optional<std::uint32_t> slot);
    ~Node();
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    /// False in a child made by fork: allocate_block, RegionTable::add and peer then fail with
    /// ENODEV, the rest does nothing. The child may `join` anew.
    [[nodiscard]] bool usable() const noexcept { return usable_->load(std::memory_order_acquire); }
    [[nodiscard]] std::uint32_t number() const noexcept { return name_.number; }
    [[nodiscard]] const NodeIdentity& identity() const noexcept { return memory_->identity(); }
    [[nodiscard]] bool membarrier() const noexcept { return memory_->membarrier(); }
    [[nodiscard]] AtomicLocks& atomic_locks() noexcept { return memory_->atomic_locks(); }

    /// A zeroed block; nullopt (errno set) when none is left for that use.
    [[nodiscard]] std::optional<Block> allocate_block(std::size_t size,
                                                      BlockUse use = BlockUse::queue_pair);
    /// Gives it back: the directory entry is freed, the pages are punched out and reused. With
    /// `quarantine`, offset and index are never used again.
    void free_block(const Block& block, bool quarantine) noexcept {
        if (usable()) memory_->free(block, quarantine);
    }
    [[nodiscard]] FilePlace place_of(const Block& block) noexcept {
        return memory_->place_of(block);
    }
    [[nodiscard]] CopyBell& copy_bell() noexcept { return memory_->membership().copy_bell; }

    /// Of this process: what is registered.
    [[nodiscard]] RegionTable& regions() noexcept { return *regions_; }
    [[nodiscard]] const RegionTable& regions() const noexcept { return *regions_; }

    /// The peer node with that number, connecting to it if it is not known yet. nullptr: there is
    /// none now, or it is not ours to talk to (logged). Cold path, never blocks for long.
    /// `is_free`: becomes true where no process has the number, and stays where that is unknown.
    [[nodiscard]] std::shared_ptr<PeerNode> peer(std::uint32_t number, bool* is_free = nullptr);

    /// The numbers of all nodes that there are now, ours included. Reads /proc. May throw.
    [[nodiscard]] std::vector<std::uint32_t> node_numbers() const;
    /// Our multicast memberships: `groups_per_node` entries; and the epoch that everybody's have.
    [[nodiscard]] GroupEntry* groups() noexcept { return memory_->groups(); }
    [[nodiscard]] std::atomic<std::uint32_t>& membership() noexcept {
        return memory_->membership().epoch;
    }

    /// Looks (one system call) whether any peer has gone since; returns true if one has.
    bool check_liveness() noexcept;
    /// Readable when `check_liveness` has something to find. To be polled, not to be put into an
    /// epoll that there may be many of: see PeerNode::watch_from.
    [[nodiscard]] int liveness_descriptor() const noexcept;

    // Of fork.
    void lock_for_fork();
    void unlock_after_fork();
    /// In the child, all locks held. Closes what would keep the node's name, or the belief that
    /// its process lives, beyond the parent's end.
    void abandon_in_child();

  private:
    struct Name {
        Descriptor socket;
        std::uint32_t number = 0;
    };
    [[nodiscard]] static Name take_number(std::string_view fabric,
                                          std::optional<std::uint32_t> slot);
    void drop_connections() noexcept;

    const std::string fabric_;
    Name name_;
    const std::shared_ptr<NodeMemory> memory_;
    const std::shared_ptr<std::atomic<bool>> usable_;
    const std::shared_ptr<RegionTable> regions_;
    const std::shared_ptr<Liveness> liveness_;
    const std::shared_ptr<PeerNode> self_;

    std::mutex peers_mutex_;
    std::unordered_map<std::uint32_t, std::weak_ptr<PeerNode>> peers_;
};

/// A key of this process that was taken back, for who asks whether a hazard is about it.
class FencedKey {
  public:
    FencedKey(const Node& node, std::uint32_t key) noexcept;
    /// May what runs under the hazard, if it is odd, touch the region? `mine`: the halves of its
    /// names that are keys of this process (NamedBy).
    [[nodiscard]] bool may_be_in(const Hazard& hazard, unsigned mine) const noexcept;

  private:
    [[nodiscard]] bool is(std::uint32_t named) const noexcept;
    [[nodiscard]] bool in_pair(std::uint64_t pair, unsigned mine) const noexcept;

    const Node& node_;
    std::uint32_t index_;
    bool window_;
};

}  // namespace millrace::soft
