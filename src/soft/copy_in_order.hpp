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

}  // namespace detail

/// Stores `bytes` with naturally aligned stores, each byte once; the last up to 8 bytes (down to
/// the last 8-byte boundary of the destination) last, with release order. On x86-64 all stores
/// are in increasing address order; elsewhere only the tail's place is promised. The source may
/// be volatile to other writers; overlapping ranges are not supported.
inline void copy_in_order(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if !defined(MILLRACE_COPY_BY_ATOMIC_WORDS)
    if (bytes == 8 && (reinterpret_cast<std::uintptr_t>(to) & 7) == 0) {
        detail::store_after_all<std::uint64_t>(to, from);  // flags and counters
        return;
    }
    if (((reinterpret_cast<std::uintptr_t>(to) | bytes) & 7) == 0 && bytes <= 64) {
        std::size_t done = 0;
#if defined(__x86_64__)
        if ((reinterpret_cast<std::uintptr_t>(to) & 15) == 0) {
            for (; done + 16 < bytes; done += 16) {
                _mm_store_si128(reinterpret_cast<__m128i*>(to + done),
                                _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
                std::atomic_signal_fence(std::memory_order_seq_cst);
            }
        }
#endif
        for (; done < bytes; done += 8) {
            detail::store_after_all<std::uint64_t>(to + done, from + done);
        }
        return;
    }
#endif
    detail::copy_in_order_any(to, from, bytes);
}

}  // namespace millrace::soft
