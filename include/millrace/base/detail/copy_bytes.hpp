// memcpy() for copies between addresses that programs choose: as fast where the two lie badly to
// each other. Used by byte streams and by long copies for a peer (long_copy.hpp).
//
// glibc leaves copies of 2 KiB and more to one instruction (`rep movsb`) where the processor says
// that this is fast. On AMD's Zen 4 it is not where the target lies 1 to 15 bytes behind the
// source, both modulo 4 KiB: 3.5 GB/s, by whatever length, where it has 50 to 100 otherwise and a
// loop 46.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "millrace/base/language.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace millrace::base {

namespace detail {

/// What glibc copies by a loop of its own in any case.
inline constexpr std::size_t least_moved_as_string = 2048;

[[nodiscard]] inline bool is_slow_as_string(const std::byte* to, const std::byte* from) noexcept {
    constexpr std::uintptr_t page = 4096;
    constexpr std::uintptr_t slow = 15;
    const std::uintptr_t behind =
        (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
    return behind - 1 < slow;
}

#if defined(__x86_64__)
/// As many times 64 bytes as there are, each by four stores one behind the other. How many bytes
/// that were.
template <class Store>
[[gnu::always_inline]] inline std::size_t copy_by_lines(std::byte* to, const std::byte* from,
                                                        std::size_t bytes, Store store) noexcept {
    constexpr std::size_t line = 64;
    const std::size_t whole = bytes / line * line;
    for (const std::byte* const end = from + whole; from != end; to += line, from += line) {
        const auto* const source = reinterpret_cast<const __m128i*>(from);
        auto* const target = reinterpret_cast<__m128i*>(to);
        const __m128i first = _mm_loadu_si128(source);
        const __m128i second = _mm_loadu_si128(source + 1);
        const __m128i third = _mm_loadu_si128(source + 2);
        const __m128i fourth = _mm_loadu_si128(source + 3);
        store(target, first);
        store(target + 1, second);
        store(target + 2, third);
        store(target + 3, fourth);
    }
    return whole;
}

[[gnu::noinline]] inline void copy_in_loop(std::byte* to, const std::byte* from,
                                           std::size_t bytes) noexcept {
    const std::size_t done = copy_by_lines(
        to, from, bytes, [](__m128i* at, __m128i value) { _mm_storeu_si128(at, value); });
    std::memcpy(to + done, from + done, bytes - done);
}
#endif

}  // namespace detail

/// The two must not overlap. `bytes` may be 0.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
    if (bytes >= detail::least_moved_as_string && detail::is_slow_as_string(to, from))
        [[unlikely]] {
        detail::copy_in_loop(to, from, bytes);
        return;
    }
#endif
    std::memcpy(to, from, bytes);
}

}  // namespace millrace::base
