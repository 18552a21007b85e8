// Fetches the cache lines that the next WRITEs of a stream will store to. They are in the peer's
// cache, where it read them one lap of its ring ago; asked for early, they travel while other
// work is done. Called by the executor for WRITEs that follow one another in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/base/detail/prefetch.hpp"

namespace millrace::soft {

/// Beyond what a peer that has caught up looks at: taking the line it polls would slow it down.
inline constexpr std::size_t bytes_ahead = 256;
/// Larger copies have enough lines under way by themselves, but none between two of them.
inline constexpr std::size_t largest_fetched_ahead = 256;
/// For that time: as much as a core can have under way. What it asks for beyond that waits, and
/// with it whatever it does next.
inline constexpr std::size_t most_fetched_between = 2048;

using base::fetch_to_write;

/// After a WRITE of `bytes` at `to`: as many lines, `bytes_ahead` further on, each once in a
/// stream. They need not be mapped.
inline void fetch_lines_ahead(const std::byte* to, std::size_t bytes) noexcept {
    constexpr std::uintptr_t line = 64;
    const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(to) + bytes_ahead + bytes;
    for (std::uintptr_t at = (end - bytes + line - 1) & ~(line - 1); at < end; at += line) {
        fetch_to_write(reinterpret_cast<const std::byte*>(at));
    }
}

/// After a large WRITE of `bytes` that ends at `end`: the first lines of the next one, which travel
/// while its program writes what it is to carry. Neither its beginning nor its end, where a reader
/// looks for it.
[[gnu::noinline]] inline void fetch_lines_of_next(const std::byte* end,
                                                  std::size_t bytes) noexcept {
    constexpr std::size_t line = 64;
    if (bytes < 4 * bytes_ahead) return;
    std::size_t fetched = bytes - 2 * bytes_ahead;
    if (fetched > most_fetched_between) fetched = most_fetched_between;
    const auto begin = reinterpret_cast<std::uintptr_t>(end) + bytes_ahead;
    for (std::uintptr_t at = begin; at < begin + fetched; at += line) {
        fetch_to_write(reinterpret_cast<const std::byte*>(at));
    }
}

}  // namespace millrace::soft
