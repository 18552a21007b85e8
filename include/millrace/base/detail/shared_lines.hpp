// How cache lines go between processors, as far as it decides what to do with them. Used by the
// receiving ends of rings, channels and byte streams.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Whether a reader of lines that another processor fills should store to each when it is done with
/// it. On AMD's processors a line that was only read stays with its writer, too, shared; there a
/// fetch to write (prefetch.hpp) does nothing, and each store to it has to wait until the reader's
/// copy is gone, one line after the other. One that the reader has stored to is the reader's alone:
/// the writer fetches such lines ahead, many at once. Measured in docs/performance.md.
[[nodiscard]] inline bool readers_take_lines() noexcept {
#if defined(__x86_64__)
    static const bool amd = [] {
        __builtin_cpu_init();
        return __builtin_cpu_is("amd") != 0;
    }();
    return amd;
#else
    return false;
#endif
}

/// What such a reader does with `bytes` at `at` when it is done with them: stores to each line what
/// stands there. Nobody may write to these bytes meanwhile; those beside them are left alone.
inline void take_lines(std::byte* at, std::size_t bytes) noexcept {
    constexpr std::uintptr_t line = 64;
    const auto end = reinterpret_cast<std::uintptr_t>(at) + bytes;
    for (auto here = reinterpret_cast<std::uintptr_t>(at); here < end;
         here = (here | (line - 1)) + 1) {
        auto* const byte = reinterpret_cast<volatile std::byte*>(here);
        *byte = *byte;
    }
}

/// Memory that is used in turns and is larger than this has left the reader's own cache (the second
/// level) when its writer comes round to it: there is nothing to gain then, and the lines would
/// have to be fetched to be stored to.
[[nodiscard]] inline std::size_t most_taken_bytes() noexcept {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    static const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
    constexpr long found = 0;
#endif
    constexpr std::size_t least = std::size_t{512} << 10;  // that AMD's have had since 2017
    return found > 0 ? static_cast<std::size_t>(found) : least;
}

}  // namespace millrace::base
