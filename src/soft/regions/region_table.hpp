// This process's registered memory: the owner's side of the region table (layout.hpp). Called by
// the node. Thread-safe; `valid` neither locks nor waits.
//
// The owner looks into entries of its own: what peers are shown is a copy that it never reads, so
// that whoever came to write there would change no right of anybody's in this process.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "layout/layout.hpp"
#include "regions/region_facts.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

class RegionTable {
  public:
    /// `shown`: the table in the node's memory, which outlives this. While `usable` is false,
    /// nothing is registered, and what is stays. Throws `base::Error`.
    RegionTable(RegionEntry* shown, std::shared_ptr<const std::atomic<bool>> usable);

    /// Registers [address, address+length). 0 and `region`, or an errno value (EFAULT when the
    /// range is not mapped or not writable though the access asks for it, EINVAL for illegal
    /// access flags, ENOMEM when the table is full).
    [[nodiscard]] int add(void* address, std::size_t length, std::uint64_t iova,
                          std::uint32_t access, std::uint32_t pd, LocalRegion& region);
    /// Registers what has no memory behind it: every address is good.
    [[nodiscard]] int add_nothing(std::uint32_t pd, LocalRegion& region);
    /// A key for a memory window, not valid before it is bound; 0: none is left.
    [[nodiscard]] std::uint32_t add_window();
    /// Makes `key`, which has the index of the window's, valid for a part of the region `parent`.
    /// Returns its word.
    std::uint64_t bind_window(std::uint32_t key, const RegionEntry& parent,
                              const WindowFacts& window) noexcept;
    void release_window(std::uint32_t key) noexcept;
    /// Clears the key word; the caller then waits out the executors and calls `release`, which lets
    /// the index be used again.
    void invalidate(std::uint32_t key) noexcept;
    void release(std::uint32_t key) noexcept;

    /// The entry of the key's index, valid or not.
    [[nodiscard]] const RegionEntry* entry(std::uint32_t key) const noexcept {
        return &entries()[index_of_key(key)];
    }
    /// The entry if `key` is registered now: one load and compare. Null: it is not.
    [[nodiscard]] const RegionEntry* valid(std::uint32_t key) const noexcept {
        const RegionEntry* found = entry(key);
        return is_word_of(found->key_word.load(std::memory_order_acquire), key) ? found : nullptr;
    }

    /// Is, or was last, the entry of that index a window's? Valid or not.
    [[nodiscard]] bool is_window(std::uint32_t key) const noexcept;

    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  private:
    /// A key that nothing has yet, or 0: none is left. With the mutex. May throw.
    [[nodiscard]] std::uint32_t new_key();
    /// The key of that index may be another's, some time. With the mutex.
    void give_back(std::uint32_t index) noexcept;

    [[nodiscard]] RegionEntry* entries() const noexcept {
        return reinterpret_cast<RegionEntry*>(own_.memory());
    }
    /// Fills the key's entry in, here and for peers. Returns its word. With the mutex.
    std::uint64_t publish(std::uint32_t key, const RegionFacts& facts) noexcept;

    [[nodiscard]] bool usable() const noexcept { return usable_->load(std::memory_order_acquire); }

    const std::shared_ptr<const std::atomic<bool>> usable_;
    Mapping own_;  ///< what this process looks at: memory of its own
    RegionEntry* shown_;
    std::mutex mutex_;
    std::uint32_t never_used_ = 0;
    std::deque<std::uint32_t> freed_;   ///< indices, oldest first
    std::vector<std::uint16_t> salts_;  ///< of the last key of an index; 0: it had none
    std::uint64_t published_ = 0;       ///< registrations and bindings
    int last_descriptor_ = -1;          ///< likely to be that of the next region too
};

}  // namespace millrace::soft
