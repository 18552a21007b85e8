// This process's node: takes a number by binding its socket, makes its memory, knows its regions
// and its peers. Called by the verbs objects of this folder.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "descriptor.hpp"
#include "fabric.hpp"
#include "layout.hpp"
#include "node_memory.hpp"
#include "region_table.hpp"

namespace millrace::soft {

class Liveness;

/// One per process and fabric, made by the first open_device, closed with the last close_device;
/// not inherited by fork (the child's calls fail with ENODEV).
class Node {
  public:
    /// The process's node. Throws `base::Error` if the fabric cannot be joined (all numbers
    /// taken, abstract sockets or memfd refused, another user squats on the name).
    [[nodiscard]] static std::shared_ptr<Node> join(std::string_view fabric);

    /// By `join`.
    Node(std::string_view fabric, bool membarrier);
    ~Node();
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    /// False in a child made by fork: allocate_block, add_region and peer then fail with ENODEV,
    /// the rest does nothing. The child may `join` anew.
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

    /// Registers [address, address+length). 0 and `region`, or an errno value (EFAULT when the
    /// range is not mapped or not writable though the access asks for it, EINVAL for illegal
    /// access flags, ENOMEM when the table is full).
    [[nodiscard]] int add_region(void* address, std::size_t length, std::uint64_t iova,
                                 std::uint32_t access, std::uint32_t pd, LocalRegion& region) {
        return usable() ? regions_->add(address, length, iova, access, pd, region) : ENODEV;
    }
    /// Registers what has no memory behind it: every address is good.
    [[nodiscard]] int add_nothing(std::uint32_t pd, LocalRegion& region) {
        return usable() ? regions_->add_nothing(pd, region) : ENODEV;
    }
    /// A key for a memory window, not valid before it is bound; 0: none is left.
    [[nodiscard]] std::uint32_t add_window() { return usable() ? regions_->add_window() : 0; }
    /// Makes `key`, which has the index of the window's, valid for a part of the region `parent`.
    void bind_window(std::uint32_t key, const RegionEntry& parent,
                     const WindowFacts& facts) noexcept {
        if (usable()) regions_->bind_window(key, parent, facts);
    }
    void release_window(std::uint32_t key) noexcept {
        if (usable()) regions_->release_window(key);
    }
    /// Clears the key word; the caller then waits out the executors and calls `release_region`,
    /// which lets the index be used again (not with `quarantine`).
    void invalidate_region(std::uint32_t key) noexcept {
        if (usable()) regions_->invalidate(key);
    }
    void release_region(std::uint32_t key, bool quarantine) noexcept {
        if (usable()) regions_->release(key, quarantine);
    }
    /// Local look-up by key for the executor's own side: one load and compare. nullptr: not valid.
    [[nodiscard]] const RegionEntry* local_region(std::uint32_t key) const noexcept {
        return regions_->valid(key);
    }
    /// Is, or was last, the entry of that key's index a memory window's? Whether it is valid or
    /// not.
    [[nodiscard]] bool is_window(std::uint32_t key) const noexcept {
        return regions_->is_window(key);
    }

    /// The peer node with that number, connecting to it if it is not known yet. nullptr: there is
    /// none now, or it is not ours to talk to (logged). Cold path, never blocks for long.
    [[nodiscard]] std::shared_ptr<PeerNode> peer(std::uint32_t number);

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
    [[nodiscard]] static Name take_number(std::string_view fabric);
    void drop_connections() noexcept;

    const std::string fabric_;
    Name name_;
    const std::shared_ptr<NodeMemory> memory_;
    const std::shared_ptr<RegionTable> regions_;
    const std::shared_ptr<std::atomic<bool>> usable_;
    const std::shared_ptr<Liveness> liveness_;
    const std::shared_ptr<PeerNode> self_;

    std::mutex peers_mutex_;
    std::unordered_map<std::uint32_t, std::weak_ptr<PeerNode>> peers_;
};

}  // namespace millrace::soft
