// The copy that an executor makes: payload whose last byte somebody may be polling on.
// Called for every work request that moves bytes. docs/soft-device.md, "Execution".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// The thread sanitizer takes a vector store for a race with whoever polls a word in the middle of
// it: for it, and only for it, everything is copied by atomic words.
#if defined(__SANITIZE_THREAD__)
#define MILLRACE_COPY_BY_ATOMIC_WORDS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MILLRACE_COPY_BY_ATOMIC_WORDS 1
#endif
#endif

namespace millrace::soft {

namespace detail {

/// Every size and alignment. Out of line.
void copy_in_order_any(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// One naturally aligned store that nothing before it may pass (on x86-64 an ordinary move).
template <class Word>
inline void store_after_all(std::byte* to, const std::byte* from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof word);
    std::atomic_ref<Word>{*reinterpret_cast<Word*>(to)}.store(word, std::memory_order_release);
}

#if defined(__x86_64__)
/// 16 bytes to a multiple of 16.
[[gnu::always_inline]] inline void store_two_words(std::byte* to, const std::byte* from) noexcept {
    _mm_store_si128(reinterpret_cast<__m128i*>(to),
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the processor keeps the order
}
#endif

}  // namespace detail

/// Does `copy_words_in_order` do it: flags, counters, and small items with their marks?
[[nodiscard]] inline bool is_copied_in_words([[maybe_unused]] const std::byte* to,
                                             [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MILLRACE_COPY_BY_ATOMIC_WORDS)
    return false;
#else
    constexpr std::size_t most = 128;
    return ((reinterpret_cast<std::uintptr_t>(to) | bytes) & 7) == 0 && bytes - 1 < most;
#endif
}

/// As `copy_in_order`, without a call.
[[gnu::always_inline]] inline void copy_words_in_order(std::byte* to, const std::byte* from,
                                                       std::size_t bytes) noexcept {
    if (bytes == 8) [[likely]] {
        detail::store_after_all<std::uint64_t>(to, from);
        return;
    }
#if defined(__x86_64__)
    std::byte* const end = to + bytes;
    if ((reinterpret_cast<std::uintptr_t>(to) & 8) != 0) {
        detail::store_after_all<std::uint64_t>(to, from);
        to += 8;
        from += 8;
    }
    if (end - to > 64) {
        detail::store_two_words(to, from);
        detail::store_two_words(to + 16, from + 16);
        detail::store_two_words(to + 32, from + 32);
        detail::store_two_words(to + 48, from + 48);
        to += 64;
        from += 64;
    }
    if (end - to > 32) {
        detail::store_two_words(to, from);
        detail::store_two_words(to + 16, from + 16);
        to += 32;
        from += 32;
    }
    if (end - to > 16) {
        detail::store_two_words(to, from);
        to += 16;
        from += 16;
    }
    if (end - to > 8) {
        detail::store_after_all<std::uint64_t>(to, from);
        to += 8;
        from += 8;
    }
    detail::store_after_all<std::uint64_t>(to, from);
#else
    for (std::size_t at = 0; at < bytes; at += 8) {
        detail::store_after_all<std::uint64_t>(to + at, from + at);
    }
#endif
}

/// Stores `bytes` with naturally aligned stores, each byte once; the last up to 8 bytes (down to
/// the last 8-byte boundary of the destination) last, with release order. On x86-64 all stores
/// are in increasing address order; elsewhere only the tail's place is promised. The source may
/// be volatile to other writers; overlapping ranges are not supported.
[[gnu::always_inline]] inline void copy_in_order(std::byte* to, const std::byte* from,
                                                 std::size_t bytes) noexcept {
    if (is_copied_in_words(to, bytes)) {
        copy_words_in_order(to, from, bytes);
        return;
    }
    detail::copy_in_order_any(to, from, bytes);
}

}  // namespace millrace::soft
