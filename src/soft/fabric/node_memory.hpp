// This process's node memory (layout.hpp), two sealed sparse memfds: the tables (header, directory,
// groups, regions), which nobody but this process can write, and the blocks, which peers write,
// too. Called by the node and by its peer of itself. Thread-safe.
//
// The owner never asks the shared memory what it knows itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fabric/fabric.hpp"
#include "layout/layout.hpp"
#include "system/descriptor.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

class NodeMemory {
  public:
    /// Makes the files and fills in the header. Throws `base::Error`.
    NodeMemory(std::string_view fabric, std::uint32_t number, bool membarrier);

    [[nodiscard]] const NodeIdentity& identity() const noexcept { return identity_; }
    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    [[nodiscard]] bool membarrier() const noexcept { return membarrier_; }
    [[nodiscard]] RegionEntry* regions() const noexcept;
    [[nodiscard]] GroupEntry* groups() const noexcept;
    [[nodiscard]] Membership& membership() const noexcept;

    /// As Node::allocate_block / free_block.
    [[nodiscard]] std::optional<Block> allocate(std::size_t size, BlockUse use);
    void free(const Block& block, bool quarantine) noexcept;
    [[nodiscard]] FilePlace place_of(const Block& block) noexcept;

    /// The same mapping for a peer in this process: it stays until `unshare`, even when the block
    /// is freed before. One address, because two would hide the peers' synchronisation from
    /// the thread sanitizer.
    [[nodiscard]] std::optional<Block> share(std::uint32_t index, std::uint32_t generation);
    void unshare(const Block& block) noexcept;

    [[nodiscard]] AtomicLocks& atomic_locks() noexcept { return *atomic_locks_; }
    /// Tells peers that the node has ended, in good order.
    void end() noexcept;
    /// In a child after fork: the locks and the lifeline are the parent's, and end with it.
    void abandon() noexcept;

    /// Held over fork, so that the child finds it unlocked.
    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  private:
    struct Held {
        Mapping mapping;
        std::uint64_t offset = 0;
        std::uint32_t index = 0;
        std::uint32_t generation = 0;
        std::size_t users = 0;
        bool freed = false;
    };

    [[nodiscard]] DirectoryEntry& directory(std::uint32_t index) const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> take_extent(std::uint64_t size);
    void give_back_extent(std::uint64_t offset, std::uint64_t size);
    [[nodiscard]] bool punch(std::uint64_t offset, std::uint64_t size) const noexcept;
    void drop_user(const Block& block) noexcept;

    void fill_in(NodeHeader& header, std::uint32_t number) const noexcept;
    [[nodiscard]] NodeHeader& header() const noexcept;

    const bool membarrier_;
    const pid_t pid_;
    NodeIdentity identity_;
    std::uint64_t size_ = 0;  ///< of the file of blocks
    Descriptor tables_file_;
    Descriptor file_;      ///< of blocks
    Descriptor lifeline_;  ///< the one write end of a pipe: peers have read ends
    Mapping tables_;
    Mapping first_pages_;  ///< of the file of blocks
    std::optional<AtomicLocks> atomic_locks_;

    std::mutex mutex_;
    std::unordered_map<std::byte*, Held> held_;            ///< blocks by address of their mapping
    std::map<std::uint64_t, std::uint64_t> free_extents_;  ///< offset, size
    std::uint64_t next_extent_ = blocks_offset;  ///< where the last one ended: fresh memory first
    /// Those of one use.
    struct Indices {
        std::uint32_t never_used;
        std::uint32_t end;
        std::deque<std::uint32_t> freed;  ///< oldest first
    };
    [[nodiscard]] Indices& indices(BlockUse use) noexcept {
        return use == BlockUse::queue_pair ? of_queue_pairs_ : of_others_;
    }
    Indices of_queue_pairs_{0, queue_pairs_per_node, {}};
    Indices of_others_{queue_pairs_per_node, blocks_per_node, {}};
    std::vector<std::uint32_t> generations_;  ///< last given, by index
};

}  // namespace millrace::soft
