// What is known of a registered region: to its owner, and to peers, who take a consistent copy of
// a region table entry that its owner may be changing.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "layout/layout.hpp"

namespace millrace::soft {

/// RegionEntry as plain values.
struct RegionFacts {
    std::uint64_t key_word;
    std::uint64_t iova;
    std::uint64_t length;
    std::uint64_t address;
    std::uint32_t access;
    std::uint32_t pd;
    std::int32_t descriptor;
    std::uint32_t device;
    std::uint64_t inode;
    std::uint64_t file_offset : 62;
    std::uint64_t kind : 2;
};
static_assert(sizeof(RegionFacts) == sizeof(RegionEntry));

/// nullopt: the entry is not that of `key`, or stopped being it while it was read.
[[nodiscard]] inline std::optional<RegionFacts> read_region(const RegionEntry& entry,
                                                            std::uint32_t key) noexcept {
    constexpr std::size_t count = sizeof(RegionEntry) / sizeof(std::uint64_t);
    struct Words {
        std::uint64_t word[count];
    } words;
    const std::uint64_t key_word = entry.key_word.load(std::memory_order_acquire);
    if (!is_word_of(key_word, key)) return std::nullopt;
    // Word by word with acquire order: the second look at the key comes after all of them.
    auto* source = const_cast<std::uint64_t*>(reinterpret_cast<const std::uint64_t*>(&entry));
    for (std::size_t i = 0; i < count; ++i) {
        words.word[i] = std::atomic_ref<std::uint64_t>{source[i]}.load(std::memory_order_acquire);
    }
    words.word[0] = key_word;
    if (entry.key_word.load(std::memory_order_relaxed) != key_word) return std::nullopt;
    return std::bit_cast<RegionFacts>(words);
}

/// A region of this process.
struct LocalRegion {
    std::uint32_t key = 0;
    std::byte* address = nullptr;
    std::uint64_t iova = 0;
    std::size_t length = 0;
    std::uint32_t access = 0;
    std::uint32_t pd = 0;
};

/// What a memory window shows of the region that it is bound to.
struct WindowFacts {
    std::uint64_t address = 0;  ///< of its first byte, as the region counts
    std::uint64_t iova = 0;     ///< what peers call that byte
    std::uint64_t length = 0;
    std::uint32_t access = 0;
    std::uint32_t pd = 0;  ///< or make_window_pd
};

}  // namespace millrace::soft
