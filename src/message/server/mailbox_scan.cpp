// The kernels, each compiled for its instructions whatever the rest of the build is compiled for.
//
// They look at [from, count) in vectors: the first lies at `from`, the next ones at multiples of
// the vector's size in memory, and the last one ends at `count`. So some bytes are loaded twice,
// and one that was empty at first may not be at last: an answer before `from` is masked out, and
// any other is a mailbox that is not empty now.
#include "millrace/message/detail/mailbox_scan.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace millrace::message {

namespace {

/// The compiler shall not know what lies in memory that others write.
[[gnu::always_inline]] inline void forget_memory() noexcept { asm volatile("" : : : "memory"); }

[[nodiscard]] std::size_t scan_scalar(const std::byte* boxes, std::size_t from,
                                      std::size_t count) noexcept {
    for (std::size_t i = from; i < count; ++i) {
        if (*static_cast<const volatile std::byte*>(boxes + i) != std::byte{0}) return i;
    }
    return count;
}

/// From an index to the next one whose byte is at a multiple of `width` in memory.
template <std::size_t width>
[[nodiscard, gnu::always_inline]] inline std::size_t next_aligned(const std::byte* boxes,
                                                                  std::size_t index) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(boxes + index);
    return index + (width - address % width);
}

#if defined(__x86_64__)

/// Bit i: byte i is not zero.
[[gnu::always_inline]] inline std::uint32_t not_empty_sse2(const std::byte* at) noexcept {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i empty = _mm_cmpeq_epi8(bytes, _mm_setzero_si128());
    return static_cast<std::uint32_t>(_mm_movemask_epi8(empty)) ^ 0xffffU;
}

[[nodiscard]] std::size_t scan_sse2(const std::byte* boxes, std::size_t from,
                                    std::size_t count) noexcept {
    constexpr std::size_t width = 16;
    if (count < from + width) return scan_scalar(boxes, from, count);
    forget_memory();
    for (std::size_t i = from;;) {
        const std::uint32_t mask = not_empty_sse2(boxes + i);
        if (mask != 0) return i + static_cast<std::size_t>(__builtin_ctz(mask));
        if (i + width == count) return count;
        i = next_aligned<width>(boxes, i);
        if (i + width > count) i = count - width;
    }
}

[[nodiscard, gnu::target("sse4.2")]] std::size_t scan_pcmpestri(const std::byte* boxes,
                                                                std::size_t from,
                                                                std::size_t count) noexcept {
    constexpr std::size_t width = 16;
    if (count < from + width) return scan_scalar(boxes, from, count);
    forget_memory();
    const __m128i needle = _mm_setzero_si128();
    for (std::size_t i = from;;) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(boxes + i));
        const int found = _mm_cmpestri(needle, 1, bytes, width, _SIDD_NEGATIVE_POLARITY);
        if (found != width) return i + static_cast<std::size_t>(found);
        if (i + width == count) return count;
        i = next_aligned<width>(boxes, i);
        if (i + width > count) i = count - width;
    }
}

[[gnu::target("avx2")]] inline std::uint32_t not_empty_avx2(const std::byte* at) noexcept {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i empty = _mm256_cmpeq_epi8(bytes, _mm256_setzero_si256());
    return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(empty));
}

// Peers write mailboxes while a vector of them is read: a byte that is set comes by this look or by
// the next one. The thread sanitizer sees the aligned loads here, and takes that for a race.
[[nodiscard, gnu::target("avx2"), gnu::no_sanitize_thread]] std::size_t scan_avx2(
    const std::byte* boxes, std::size_t from, std::size_t count) noexcept {
    constexpr std::size_t width = 32;
    if (count < from + width) return scan_sse2(boxes, from, count);
    forget_memory();
    for (std::size_t i = from;;) {
        const std::uint32_t mask = not_empty_avx2(boxes + i);
        if (mask != 0) return i + static_cast<std::size_t>(__builtin_ctz(mask));
        if (i + width == count) return count;
        i = next_aligned<width>(boxes, i);
        // Four at once, as long as nothing is there.
        for (; i + 4 * width <= count; i += 4 * width) {
            const auto* const at = reinterpret_cast<const __m256i*>(boxes + i);
            const __m256i any = _mm256_or_si256(
                _mm256_or_si256(_mm256_load_si256(at), _mm256_load_si256(at + 1)),
                _mm256_or_si256(_mm256_load_si256(at + 2), _mm256_load_si256(at + 3)));
            if (_mm256_testz_si256(any, any) == 0) break;
        }
        if (i == count) return count;
        if (i + width > count) i = count - width;
    }
}

#elif defined(__aarch64__)

[[nodiscard]] std::size_t scan_neon(const std::byte* boxes, std::size_t from,
                                    std::size_t count) noexcept {
    constexpr std::size_t width = 16;
    if (count < from + width) return scan_scalar(boxes, from, count);
    forget_memory();
    const auto load = [boxes](std::size_t at) noexcept {
        return vld1q_u8(reinterpret_cast<const std::uint8_t*>(boxes + at));
    };
    for (std::size_t i = from;;) {
        const uint8x16_t bytes = load(i);
        // Four bits for each byte.
        const std::uint64_t mask = vget_lane_u64(
            vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(vtstq_u8(bytes, bytes)), 4)), 0);
        if (mask != 0) return i + static_cast<std::size_t>(__builtin_ctzll(mask)) / 4;
        if (i + width == count) return count;
        i = next_aligned<width>(boxes, i);
        for (; i + 4 * width <= count; i += 4 * width) {
            const uint8x16_t any = vorrq_u8(vorrq_u8(load(i), load(i + width)),
                                            vorrq_u8(load(i + 2 * width), load(i + 3 * width)));
            if (vmaxvq_u8(any) != 0) break;
        }
        if (i == count) return count;
        if (i + width > count) i = count - width;
    }
}

#endif

}  // namespace

std::string_view name_of(ScanKernel kernel) noexcept {
    switch (kernel) {
        case ScanKernel::scalar: return "scalar";
        case ScanKernel::sse2: return "sse2";
        case ScanKernel::pcmpestri: return "pcmpestri";
        case ScanKernel::avx2: return "avx2";
        case ScanKernel::neon: return "neon";
    }
    return "unknown";
}

bool is_available(ScanKernel kernel) noexcept {
    switch (kernel) {
        case ScanKernel::scalar: return true;
#if defined(__x86_64__)
        case ScanKernel::sse2: return true;
        case ScanKernel::pcmpestri: return __builtin_cpu_supports("sse4.2") != 0;
        case ScanKernel::avx2: return __builtin_cpu_supports("avx2") != 0;
        default: return false;
#elif defined(__aarch64__)
        case ScanKernel::neon: return true;
        default: return false;
#else
        default: return false;
#endif
    }
}

ScanKernel best_scan_kernel() noexcept {
    static const ScanKernel best = [] {
        for (const ScanKernel kernel : {ScanKernel::avx2, ScanKernel::neon, ScanKernel::sse2}) {
            if (is_available(kernel)) return kernel;
        }
        return ScanKernel::scalar;
    }();
    return best;
}

Scan scan_by(ScanKernel kernel) noexcept {
    switch (kernel) {
#if defined(__x86_64__)
        case ScanKernel::sse2: return scan_sse2;
        case ScanKernel::pcmpestri: return scan_pcmpestri;
        case ScanKernel::avx2: return scan_avx2;
#elif defined(__aarch64__)
        case ScanKernel::neon: return scan_neon;
#endif
        default: return scan_scalar;
    }
}

}  // namespace millrace::message
