// The general case of copy_in_order.hpp: explicit vector stores, because a compiler is free to
// turn a loop of plain ones into memcpy, whose order of stores is nobody's promise.
#include "fabric/copy_in_order.hpp"

#if defined(__x86_64__) && !defined(MILLRACE_COPY_BY_ATOMIC_WORDS)
#include <immintrin.h>
#endif
#if defined(MILLRACE_COPY_BY_ATOMIC_WORDS)
#include <sanitizer/tsan_interface.h>

#include <cstdint>
#else
#include "system/lines_ahead.hpp"
#endif

namespace millrace::soft::detail {

#if defined(MILLRACE_COPY_BY_ATOMIC_WORDS)

namespace {

/// Stores words as large as the copy that programs have: who polls one synchronises with all of it.
template <class Word>
bool copy_if_aligned(std::byte*& to, const std::byte*& from, std::size_t& bytes) noexcept {
    const auto is_aligned = [](auto* at) {
        return reinterpret_cast<std::uintptr_t>(at) % sizeof(Word) == 0;
    };
    if (!is_aligned(to) || bytes < sizeof(Word)) return false;
    Word word;
    if (is_aligned(from)) {
        auto* source = reinterpret_cast<Word*>(const_cast<std::byte*>(from));
        word = std::atomic_ref<Word>{*source}.load(std::memory_order_acquire);
    } else {
        std::memcpy(&word, from, sizeof word);
    }
    store_after_all<Word>(to, reinterpret_cast<const std::byte*>(&word));
    to += sizeof(Word);
    from += sizeof(Word);
    bytes -= sizeof(Word);
    return true;
}

}  // namespace

void copy_in_order_any(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    while (bytes > 0) {
        // Whoever polls one byte of the tail synchronises with that byte's address.
        if (bytes <= 8) {
            for (std::size_t i = 0; i < bytes; ++i) __tsan_release(to + i);
        }
        copy_if_aligned<std::uint64_t>(to, from, bytes) ||
            copy_if_aligned<std::uint32_t>(to, from, bytes) ||
            copy_if_aligned<std::uint16_t>(to, from, bytes) ||
            copy_if_aligned<std::uint8_t>(to, from, bytes);
    }
}

#else

namespace {

std::uintptr_t address_of(const std::byte* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

/// What is left to copy. Only handed to functions that are inlined, and by value, so that it lives
/// in registers: a trip through memory costs as much as copying a few hundred bytes.
struct Rest {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;

    [[nodiscard]] Rest after(std::size_t copied) const noexcept {
        return {to + copied, from + copied, bytes - copied};
    }
};

template <class Word>
[[nodiscard]] inline Rest copy_word(Rest rest) noexcept {
    store_after_all<Word>(rest.to, rest.from);
    return rest.after(sizeof(Word));
}

/// Up to the next 16-byte boundary of the destination.
[[nodiscard]] inline Rest copy_head(Rest rest) noexcept {
    const auto wants = [&rest](std::size_t size) {
        return (address_of(rest.to) & size) != 0 && rest.bytes >= size;
    };
    if (wants(1)) rest = copy_word<std::uint8_t>(rest);
    if (wants(2)) rest = copy_word<std::uint16_t>(rest);
    if (wants(4)) rest = copy_word<std::uint32_t>(rest);
    if (wants(8)) rest = copy_word<std::uint64_t>(rest);
    return rest;
}

/// At most 16 bytes to a destination aligned for the largest store that still fits: whole words
/// first, then what is left of the last one, ascending.
inline void copy_tail(Rest rest) noexcept {
    if (rest.bytes > 8) rest = copy_word<std::uint64_t>(rest);
    if (rest.bytes == 8) {
        store_after_all<std::uint64_t>(rest.to, rest.from);
        return;
    }
    if ((rest.bytes & 4) != 0) rest = copy_word<std::uint32_t>(rest);
    if ((rest.bytes & 2) != 0) rest = copy_word<std::uint16_t>(rest);
    if ((rest.bytes & 1) != 0) store_after_all<std::uint8_t>(rest.to, rest.from);
}

#if defined(__x86_64__)

/// Keeps the compiler from exchanging two stores; the processor keeps their order by itself.
inline void keep_order() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

inline void copy_16(std::byte* to, const std::byte* from) noexcept {
    _mm_store_si128(reinterpret_cast<__m128i*>(to),
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    keep_order();
}
[[gnu::target("avx")]] inline void copy_32(std::byte* to, const std::byte* from) noexcept {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                       _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    keep_order();
}
[[gnu::target("avx512f")]] inline void copy_64(std::byte* to, const std::byte* from) noexcept {
    _mm512_store_si512(to, _mm512_loadu_si512(from));
    keep_order();
}

[[nodiscard]] inline Rest step_16(Rest rest) noexcept {
    copy_16(rest.to, rest.from);
    return rest.after(16);
}
[[nodiscard, gnu::target("avx")]] inline Rest step_32(Rest rest) noexcept {
    copy_32(rest.to, rest.from);
    return rest.after(32);
}

/// Long copies ask for the lines to come while they store. Not beyond their own end: somebody may
/// be polling there.
constexpr std::size_t block = 256;
constexpr std::size_t read_ahead = 2048;
constexpr std::size_t write_ahead = 512;
/// Behind longer ones, the processor's own prefetchers are ahead of us: 1 MiB takes a fifth longer.
constexpr std::size_t most_fetched = 128 << 10;

inline void fetch_block_ahead(Rest rest) noexcept {
    for (std::size_t line = 0; line < block; line += 64) {
        __builtin_prefetch(rest.from + read_ahead + line);
        fetch_to_write(rest.to + write_ahead + line);
    }
}

/// From a 16-byte boundary to the end.
inline void copy_by_16(Rest rest) noexcept {
    while (rest.bytes > 64) {
        for (std::size_t at = 0; at < 64; at += 16) copy_16(rest.to + at, rest.from + at);
        rest = rest.after(64);
    }
    while (rest.bytes > 16) rest = step_16(rest);
    copy_tail(rest);
}

[[gnu::target("avx")]] void copy_by_32(std::byte* to, const std::byte* from,
                                       std::size_t bytes) noexcept {
    Rest rest{to, from, bytes};
    if ((address_of(rest.to) & 16) != 0) rest = step_16(rest);
    for (; rest.bytes > block; rest = rest.after(block)) {
        if (rest.bytes >= write_ahead + block && bytes <= most_fetched) fetch_block_ahead(rest);
        for (std::size_t at = 0; at < block; at += 32) copy_32(rest.to + at, rest.from + at);
    }
    while (rest.bytes > 32) rest = step_32(rest);
    if (rest.bytes > 16) rest = step_16(rest);
    copy_tail(rest);
}

[[gnu::target("avx512f")]] void copy_by_64(std::byte* to, const std::byte* from,
                                           std::size_t bytes) noexcept {
    Rest rest{to, from, bytes};
    if ((address_of(rest.to) & 16) != 0) rest = step_16(rest);
    if ((address_of(rest.to) & 32) != 0 && rest.bytes > 32) rest = step_32(rest);
    for (; rest.bytes > block; rest = rest.after(block)) {
        if (rest.bytes >= write_ahead + block && bytes <= most_fetched) fetch_block_ahead(rest);
        copy_64(rest.to, rest.from);
        copy_64(rest.to + 64, rest.from + 64);
        copy_64(rest.to + 128, rest.from + 128);
        copy_64(rest.to + 192, rest.from + 192);
    }
    for (; rest.bytes > 64; rest = rest.after(64)) copy_64(rest.to, rest.from);
    if (rest.bytes > 32) rest = step_32(rest);
    if (rest.bytes > 16) rest = step_16(rest);
    copy_tail(rest);
}

/// Until static objects are made, the narrow stores do it.
enum class Width { narrow, avx, avx512 };
const Width width = [] {
    __builtin_cpu_init();
    // Wide stores only on processors that do not slow down for them: those have VBMI2, too.
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vbmi2")) {
        return Width::avx512;
    }
    return __builtin_cpu_supports("avx") ? Width::avx : Width::narrow;
}();

#endif

}  // namespace

void copy_in_order_any(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    Rest rest{to, from, bytes};
    if ((address_of(to) & 15) != 0) rest = copy_head(rest);
#if defined(__x86_64__)
    if (rest.bytes <= 64 || width == Width::narrow) {
        copy_by_16(rest);
    } else if (width == Width::avx) {
        copy_by_32(rest.to, rest.from, rest.bytes);
    } else {
        copy_by_64(rest.to, rest.from, rest.bytes);
    }
#else
    if (rest.bytes > 16) {
        const std::size_t body = (rest.bytes - 1) & ~std::size_t{7};
        std::memcpy(rest.to, rest.from, body);
        rest = rest.after(body);
    }
    copy_tail(rest);
#endif
}

#endif

}  // namespace millrace::soft::detail
