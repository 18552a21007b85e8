// The sizes that memory for items comes in: every 16 bytes up to 128, then eight to each doubling,
// so that at most an eighth is lost. Chunks of one size come from extents, the unit in which memory
// is taken and given back.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

#include "item.hpp"

namespace millrace::kv {

inline constexpr std::size_t least_chunk = 32;

[[nodiscard]] constexpr std::size_t class_of(std::size_t bytes) noexcept {
    if (bytes <= 128) return (std::max(bytes, least_chunk) + 15) / 16 - 2;
    const auto doubling = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;  // 7: 129 to 256
    return 7 + (doubling - 7) * 8 + ((bytes - 1) >> (doubling - 3)) - 8;
}
[[nodiscard]] constexpr std::size_t chunk_of(std::size_t size_class) noexcept {
    if (size_class < 7) return (size_class + 2) * 16;
    const std::size_t doubling = 7 + (size_class - 7) / 8;
    return (9 + (size_class - 7) % 8) << (doubling - 3);
}
inline constexpr std::size_t size_classes = class_of(longest_item) + 1;

/// Whole pages. What does not fit an extent is lost in it; above 32 KiB it is one chunk.
[[nodiscard]] constexpr std::size_t extent_of(std::size_t size_class) noexcept {
    const std::size_t chunk = chunk_of(size_class);
    if (chunk <= (4 << 10)) return 64 << 10;
    if (chunk <= (32 << 10)) return 256 << 10;
    return chunk;
}

static_assert([] {
    for (std::size_t c = 0; c < size_classes; ++c) {
        const bool fits = class_of(chunk_of(c)) == c && class_of(chunk_of(c) + 1) == c + 1;
        if (!fits || extent_of(c) % 4096 != 0 || chunk_of(c) % alignof(Item) != 0) return false;
    }
    return chunk_of(size_classes - 1) >= longest_item;
}());

}  // namespace millrace::kv
