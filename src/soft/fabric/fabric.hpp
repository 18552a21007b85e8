// The fabric: peers' nodes, blocks, registered memory and how bytes get from one to the other.
// (This process's own node: node.hpp.) Everything below verbs objects, nothing about queue pairs
// but where their blocks lie. Called by the verbs objects of this folder only. docs/soft/node.md
// has the design.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "fabric/atomic_locks.hpp"
#include "fabric/copy_in_order.hpp"
#include "layout/copy_box_layout.hpp"
#include "layout/layout.hpp"
#include "millrace/base/clock.hpp"
#include "system/descriptor.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

class Node;
struct NewsPage;
struct RegionFacts;

/// What a block is for: only queue pairs' indices are part of a number that peers know.
enum class BlockUse { queue_pair, other };

/// Memory of a queue pair, or of what it needs: shared, page aligned, zeroed. `memory` is this
/// process's mapping.
struct Block {
    std::byte* memory = nullptr;
    std::size_t size = 0;
    std::uint32_t index = 0;       ///< within its node; of a queue pair, below queue_pairs_per_node
    std::uint32_t generation = 0;  ///< never 0
};

/// The `pid` of a Reach that leads nowhere: zeros come from there, and bytes vanish in it.
inline constexpr pid_t nowhere = -1;
/// Who executes for longer is stopped.
inline constexpr std::chrono::milliseconds longest_execution{1000};

/// Where a registered range can be reached from this process.
struct Reach {
    std::byte* direct = nullptr;  ///< mapped here: plain loads and stores
    std::uint64_t remote = 0;     ///< else: this address in process `pid`, by process_vm_*
    pid_t pid = 0;
};
/// The same memory from so many bytes on.
[[nodiscard]] inline Reach advance(Reach reach, std::uint64_t bytes) noexcept {
    if (reach.direct != nullptr) {
        reach.direct += bytes;
    } else {
        reach.remote += bytes;
    }
    return reach;
}

/// How a copy between two ranges ended.
enum class CopyResult {
    ok,
    bad_address,  ///< the memory is registered but not there (unmapped since)
    denied,       ///< the operating system refuses process_vm_* (ptrace rights)
    peer_gone,    ///< the process is not the one it was
    busy,         ///< its owner, asked to copy, does not (yet): to be tried again, as a whole
    no_answer,    ///< its owner began to copy and did not come back: perhaps copied
    owners,       ///< only the process whose request it is can do it
    abandoned,    ///< pages did not come, and a thread of ours waits for them: copied at any time
};

/// What is asked of the owner of memory that this process may not copy from or to.
struct AskedCopy {
    std::uint64_t box = 0;         ///< NewsLine::copy_box of the queue pair
    std::uint32_t queue_pair = 0;  ///< the owner's, by index: through which the right is had
    CopyPurpose purpose{};
    std::uint32_t key = 0;       ///< of a region or a window
    std::uint32_t receive = 0;   ///< for CopyPurpose::receive
    std::uint64_t address = 0;   ///< in the owner's process
    std::byte* local = nullptr;  ///< ours; null: zeros are written, or what is read is forgotten
    std::size_t bytes = 0;
};

/// Another process's node (or our own, when both queue pairs live here), as seen from here.
/// Thread-safe. Kept alive by shared_ptr; mappings go with the last reference.
class PeerNode {
  public:
    PeerNode(std::uint32_t number, pid_t pid, bool self) noexcept
        : number_{number}, pid_{pid}, self_{self} {}
    virtual ~PeerNode() = default;
    [[nodiscard]] const NodeIdentity& identity() const noexcept { return identity_; }
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    [[nodiscard]] bool is_self() const noexcept { return self_; }
    /// Both sides can rely on membarrier for asymmetric fences (see fences.hpp).
    [[nodiscard]] bool asymmetric_fences() const noexcept { return asymmetric_fences_; }

    /// False once the process is gone, has exec'd, or closed the device. Costs a load: the truth
    /// is refreshed by `Node::check_liveness`.
    [[nodiscard]] virtual bool alive() const noexcept = 0;

    /// Asks the kernel, at most every 10 ms, whether `pid` still is the process that this node
    /// belongs to; false marks the peer as gone. Before each system call that names the pid.
    [[nodiscard]] virtual bool same_process() noexcept = 0;

    /// Asks the kernel now whether it is alive; false marks the peer as gone.
    [[nodiscard]] virtual bool still_there() noexcept { return alive(); }

    /// Makes an epoll readable when it goes, until `Node::check_liveness` has found that. False,
    /// with errno: it cannot be. Our own node has nothing to tell.
    [[nodiscard]] virtual bool watch_from(int /*epoll*/) noexcept { return true; }

    /// How long to wait for its process to leave our memory. A moment, where somebody has just
    /// waited in vain: it may be in many connections.
    [[nodiscard]] std::chrono::milliseconds patience() const noexcept {
        const bool in_vain =
            !self_ && base::ticks() - standstill_ < base::ticks_in(longest_execution);
        return in_vain ? std::chrono::milliseconds{10} : longest_execution;
    }
    void note_standstill() noexcept { standstill_ = base::ticks(); }

    /// Maps the block `index` if its generation is `generation` (0: whatever it is
    /// now). nullopt: no such block. The mapping stays until `unmap_block`.
    [[nodiscard]] virtual std::optional<Block> map_block(std::uint32_t index,
                                                         std::uint32_t generation) = 0;
    virtual void unmap_block(const Block& block) noexcept = 0;

    /// What excludes atomics on its memory from each other.
    [[nodiscard]] virtual AtomicLocks& atomic_locks() noexcept = 0;

    /// The table entry of `key`'s index. The caller validates `key_word`, before and (being cached)
    /// each time.
    [[nodiscard]] virtual const RegionEntry* region(std::uint32_t key) const noexcept = 0;

    /// How to reach the first byte of the region as it was under `key`: maps it if it can be mapped
    /// (read only unless `writable`), cached per key word. Cold path. nullopt: it may not be
    /// written. What it returns stays mapped until the PeerNode goes or `retire_stale` hands the
    /// mapping out, whatever the owner does. `facts`: what `read_region` read of the entry. Who
    /// checks must check these, and not look at the entry again: its owner may change it meanwhile.
    [[nodiscard]] virtual std::optional<Reach> reach(const RegionFacts& facts, std::uint32_t key,
                                                     bool writable) = 0;

    /// The same memory for the program itself, to be written: mapped as long as the pointer lives,
    /// whatever the owner does. Null: it cannot be mapped.
    [[nodiscard]] virtual std::shared_ptr<std::byte> map(const RegionFacts& facts,
                                                         std::uint32_t key) = 0;

    /// Takes the mappings of regions that are no longer registered out of the cache, to the end of
    /// `retired`. They are still mapped: the caller drops them when every executor of this process
    /// that may have checked such a key before this call has finished its copy. May throw
    /// std::bad_alloc, with nothing done.
    virtual void retire_stale(std::vector<std::shared_ptr<void>>& retired) = 0;

    /// Opens the write end of the bell pipe with that descriptor number in the peer: a descriptor
    /// of ours (shared with whoever has it already), or nullptr. A system call each time, to see
    /// whether the number still names the same pipe: ask per connection, not per ring.
    [[nodiscard]] virtual std::shared_ptr<const Descriptor> bell(
        int descriptor_in_peer) noexcept = 0;

    /// The news page (news_page.hpp) in the peer's block `index`, shared with whoever has it
    /// already; nullptr: there is none. Must be given back before the PeerNode goes.
    [[nodiscard]] std::shared_ptr<NewsPage> news_page(std::uint32_t index,
                                                      std::uint32_t generation);

    /// The operating system does not let us copy from and to its memory: `transfer` is `denied`.
    [[nodiscard]] virtual bool copies_refused() const noexcept { return false; }
    /// False: copying there now may take as long as somebody else likes (remote_pages.hpp).
    [[nodiscard]] virtual bool pages_there(std::uint64_t, std::size_t) noexcept { return true; }
    /// It has turned out so.
    virtual void note_copies_refused() noexcept {}
    /// It says that it may copy from nobody.
    [[nodiscard]] virtual bool cannot_copy() const noexcept { return false; }
    /// Asks the peer to copy (copy_asker.hpp). Waits for it.
    [[nodiscard]] virtual CopyResult ask_for_copy(const AskedCopy&) noexcept {
        return CopyResult::denied;
    }

    /// In a child after fork: closes what would make the peer believe that its parent lives.
    virtual void abandon() noexcept {}

    /// Adds the numbers of its queue pairs that are attached to the group. May throw.
    virtual void members(const std::array<std::uint8_t, 16>& group,
                         std::vector<std::uint32_t>& found) const = 0;
    /// Raises its membership epoch, if it can be reached.
    virtual void announce_membership() noexcept = 0;

  protected:
    NodeIdentity identity_{};
    bool asymmetric_fences_ = false;

  private:
    std::atomic<std::uint64_t> standstill_{0};
    const std::uint32_t number_;
    const pid_t pid_;
    const bool self_;
    std::mutex news_mutex_;
    std::map<std::uint64_t, std::weak_ptr<NewsPage>> news_;  ///< by generation and index
};

/// Copies `bytes` where exactly one of the two may lie in another process. Waits for pages of the
/// other's that are not there, but not for long: `abandoned`.
[[nodiscard]] CopyResult transfer(const Reach& to, const Reach& from, std::size_t bytes,
                                  PeerNode& peer) noexcept;
/// Says, once, what to do about `denied`.
void tell_copies_denied(pid_t pid) noexcept;

/// Where a block lies: in which file (its node's, not owned) and at which offset.
struct FilePlace {
    int file = -1;
    std::uint64_t offset = 0;
};

}  // namespace millrace::soft
