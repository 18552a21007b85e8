// The copy that an executor makes: payload whose last byte somebody may be polling on. Called for
// every work request that moves bytes. docs/soft/execution.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

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

/// As `copy_in_order`, without a call, and with one jump for all lengths.
[[gnu::always_inline]] inline void copy_words_in_order(std::byte* to, const std::byte* from,
                                                       std::size_t bytes) noexcept {
    std::byte* const to_end = to + bytes;
    const std::byte* const from_end = from + bytes;
    const auto copy_word = [&](std::size_t before_end) {
        detail::store_after_all<std::uint64_t>(to_end - before_end, from_end - before_end);
    };
    switch (bytes / 8) {
        case 16: copy_word(128); [[fallthrough]];
        case 15: copy_word(120); [[fallthrough]];
        case 14: copy_word(112); [[fallthrough]];
        case 13: copy_word(104); [[fallthrough]];
        case 12: copy_word(96); [[fallthrough]];
        case 11: copy_word(88); [[fallthrough]];
        case 10: copy_word(80); [[fallthrough]];
        case 9: copy_word(72); [[fallthrough]];
        case 8: copy_word(64); [[fallthrough]];
        case 7: copy_word(56); [[fallthrough]];
        case 6: copy_word(48); [[fallthrough]];
        case 5: copy_word(40); [[fallthrough]];
        case 4: copy_word(32); [[fallthrough]];
        case 3: copy_word(24); [[fallthrough]];
        case 2: copy_word(16); [[fallthrough]];
        case 1: copy_word(8); break;
        default: __builtin_unreachable();
    }
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
