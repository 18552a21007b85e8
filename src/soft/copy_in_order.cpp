// The general case of copy_in_order.hpp: explicit vector stores, because a compiler is free to
// turn a loop of plain ones into memcpy, whose order of stores is nobody's promise.
#include "copy_in_order.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::soft::detail {
namespace {

std::uintptr_t address_of(const std::byte* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

/// What is being copied; the pieces below move it forward.
struct Cursor {
    std::byte* to;
    const std::byte* from;
    std::size_t left;
};

template <class Word>
inline void advance_by(Cursor& at) noexcept {
    store_after_all<Word>(at.to, at.from);
    at.to += sizeof(Word);
    at.from += sizeof(Word);
    at.left -= sizeof(Word);
}

/// Up to the next 16-byte boundary of the destination.
inline void copy_head(Cursor& at) noexcept {
    if ((address_of(at.to) & 1) != 0 && at.left >= 1) advance_by<std::uint8_t>(at);
    if ((address_of(at.to) & 2) != 0 && at.left >= 2) advance_by<std::uint16_t>(at);
    if ((address_of(at.to) & 4) != 0 && at.left >= 4) advance_by<std::uint32_t>(at);
    if ((address_of(at.to) & 8) != 0 && at.left >= 8) advance_by<std::uint64_t>(at);
}

/// At most 16 bytes: whole words first, then what is left of the last word, ascending. At a
/// destination aligned for the largest store that still fits.
inline void copy_tail(Cursor& at) noexcept {
    if (at.left > 8) advance_by<std::uint64_t>(at);
    if (at.left >= 8) {
        advance_by<std::uint64_t>(at);
        return;
    }
    if ((at.left & 4) != 0) advance_by<std::uint32_t>(at);
    if ((at.left & 2) != 0) advance_by<std::uint16_t>(at);
    if ((at.left & 1) != 0) advance_by<std::uint8_t>(at);
}

#if defined(__x86_64__)

/// Keeps the compiler from exchanging two stores; the processor keeps their order by itself.
inline void keep_order() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

const __m128i* vector16(const std::byte* pointer) noexcept {
    return reinterpret_cast<const __m128i*>(pointer);
}
__m128i* vector16(std::byte* pointer) noexcept { return reinterpret_cast<__m128i*>(pointer); }

/// Leaves 1 to 16 bytes.
inline void copy_body_16(Cursor& at) noexcept {
    while (at.left > 64) {
        const __m128i a = _mm_loadu_si128(vector16(at.from));
        const __m128i b = _mm_loadu_si128(vector16(at.from + 16));
        const __m128i c = _mm_loadu_si128(vector16(at.from + 32));
        const __m128i d = _mm_loadu_si128(vector16(at.from + 48));
        _mm_store_si128(vector16(at.to), a);
        keep_order();
        _mm_store_si128(vector16(at.to + 16), b);
        keep_order();
        _mm_store_si128(vector16(at.to + 32), c);
        keep_order();
        _mm_store_si128(vector16(at.to + 48), d);
        keep_order();
        at.to += 64;
        at.from += 64;
        at.left -= 64;
    }
    while (at.left > 16) {
        _mm_store_si128(vector16(at.to), _mm_loadu_si128(vector16(at.from)));
        keep_order();
        at.to += 16;
        at.from += 16;
        at.left -= 16;
    }
}

__attribute__((target("avx"))) const __m256i* vector32(const std::byte* pointer) noexcept {
    return reinterpret_cast<const __m256i*>(pointer);
}
__attribute__((target("avx"))) __m256i* vector32(std::byte* pointer) noexcept {
    return reinterpret_cast<__m256i*>(pointer);
}

/// From a 16-byte boundary; leaves 1 to 144 bytes.
__attribute__((target("avx"))) void copy_body_32(Cursor& at) noexcept {
    if ((address_of(at.to) & 16) != 0) {
        _mm_store_si128(vector16(at.to), _mm_loadu_si128(vector16(at.from)));
        keep_order();
        at.to += 16;
        at.from += 16;
        at.left -= 16;
    }
    std::byte* to = at.to;
    const std::byte* from = at.from;
    std::size_t left = at.left;
    while (left > 128) {
        const __m256i a = _mm256_loadu_si256(vector32(from));
        const __m256i b = _mm256_loadu_si256(vector32(from + 32));
        const __m256i c = _mm256_loadu_si256(vector32(from + 64));
        const __m256i d = _mm256_loadu_si256(vector32(from + 96));
        _mm256_store_si256(vector32(to), a);
        keep_order();
        _mm256_store_si256(vector32(to + 32), b);
        keep_order();
        _mm256_store_si256(vector32(to + 64), c);
        keep_order();
        _mm256_store_si256(vector32(to + 96), d);
        keep_order();
        to += 128;
        from += 128;
        left -= 128;
    }
    at = {to, from, left};
}

/// False while static objects are still being made: then the narrow stores do it.
const bool has_avx = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx") != 0;
}();

#endif

}  // namespace

void copy_in_order_any(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    Cursor at{to, from, bytes};
    if ((address_of(to) & 15) != 0) copy_head(at);
#if defined(__x86_64__)
    if (at.left > 192 && has_avx) copy_body_32(at);
    copy_body_16(at);
#else
    if (at.left > 16) {
        const std::size_t body = (at.left - 1) & ~std::size_t{7};
        std::memcpy(at.to, at.from, body);
        at = {at.to + body, at.from + body, at.left - body};
    }
#endif
    copy_tail(at);
}

}  // namespace millrace::soft::detail
