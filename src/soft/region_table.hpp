// This process's registered memory: the owner's side of the region table (layout.hpp). Called by
// the node. Thread-safe; `valid` neither locks nor waits.
//
// The owner looks into entries of its own: what peers are shown is a copy that it never reads, so
// that whoever came to write there would change no right of anybody's in this process.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "fabric.hpp"
#include "layout.hpp"
#include "mapping.hpp"
#include "region_facts.hpp"

namespace millrace::soft {

class RegionTable {
  public:
    /// `shown`: the table in the node's memory, which outlives this. Throws `base::Error`.
    explicit RegionTable(RegionEntry* shown);

    /// As Node::add_region, invalidate_region, release_region.
    [[nodiscard]] int add(void* address, std::size_t length, std::uint64_t iova,
                          std::uint32_t access, std::uint32_t pd, LocalRegion& region);
    [[nodiscard]] int add_nothing(std::uint32_t pd, LocalRegion& region);
    [[nodiscard]] std::uint32_t add_window();
    void bind_window(std::uint32_t key, const RegionEntry& parent,
                     const WindowFacts& window) noexcept;
    void release_window(std::uint32_t key) noexcept;
    void invalidate(std::uint32_t key) noexcept;
    void release(std::uint32_t key, bool quarantine) noexcept;

    /// The entry of a key whose index is in the table, valid or not.
    [[nodiscard]] const RegionEntry* entry(std::uint32_t key) const noexcept {
        return index_of_key(key) < regions_per_node ? &entries()[index_of_key(key)] : nullptr;
    }
    /// The entry if `key` is registered now.
    [[nodiscard]] const RegionEntry* valid(std::uint32_t key) const noexcept {
        const RegionEntry* found = entry(key);
        if (found == nullptr) return nullptr;
        return found->key_word.load(std::memory_order_acquire) == key_word_of(key) ? found
                                                                                   : nullptr;
    }

    /// Is, or was last, the entry of that index a window's? Valid or not.
    [[nodiscard]] bool is_window(std::uint32_t key) const noexcept;

    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  private:
    /// A key that nothing has yet, or 0: none is left. With the mutex.
    [[nodiscard]] std::uint32_t new_key();

    [[nodiscard]] RegionEntry* entries() const noexcept {
        return reinterpret_cast<RegionEntry*>(own_.memory());
    }
    /// Fills the entry in, here and for peers. With the mutex.
    void publish(std::uint32_t index, const RegionFacts& facts) noexcept;

    Mapping own_;  ///< what this process looks at: memory of its own
    RegionEntry* shown_;
    std::mutex mutex_;
    std::uint32_t never_used_ = 0;
    std::deque<std::uint32_t> freed_;  ///< indices, oldest first
    std::vector<std::uint8_t> generations_;
    int last_descriptor_ = -1;  ///< likely to be that of the next region too
};

}  // namespace millrace::soft
