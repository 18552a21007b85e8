// CRC-32C, see the header.
#include "lane/checksum.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace millrace::message {

namespace {

constexpr std::uint32_t reflected_polynomial = 0x82f63b78;

constexpr std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> all{};
    for (std::uint32_t byte = 0; byte < all.size(); ++byte) {
        std::uint32_t rest = byte;
        for (int bit = 0; bit < 8; ++bit) {
            rest = (rest >> 1) ^ ((rest & 1) != 0 ? reflected_polynomial : 0);
        }
        all[byte] = rest;
    }
    return all;
}();

#if defined(__x86_64__)
[[gnu::target("sse4.2")]] std::uint32_t by_instruction(std::span<const std::byte> bytes,
                                                       std::uint32_t so_far) noexcept {
    std::uint64_t rest = ~so_far;
    const std::byte* at = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= sizeof(std::uint64_t); left -= sizeof(std::uint64_t)) {
        std::uint64_t word;
        std::memcpy(&word, at, sizeof word);
        rest = _mm_crc32_u64(rest, word);
        at += sizeof word;
    }
    auto last = static_cast<std::uint32_t>(rest);
    for (; left != 0; --left) last = _mm_crc32_u8(last, static_cast<std::uint8_t>(*at++));
    return ~last;
}
#elif defined(__ARM_FEATURE_CRC32)
std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t so_far) noexcept {
    std::uint32_t rest = ~so_far;
    const std::byte* at = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= sizeof(std::uint64_t); left -= sizeof(std::uint64_t)) {
        std::uint64_t word;
        std::memcpy(&word, at, sizeof word);
        rest = __crc32cd(rest, word);
        at += sizeof word;
    }
    for (; left != 0; --left) rest = __crc32cb(rest, static_cast<std::uint8_t>(*at++));
    return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t so_far) noexcept {
    std::uint32_t rest = ~so_far;
    for (const std::byte byte : bytes) {
        rest = (rest >> 8) ^ table[(rest ^ static_cast<std::uint32_t>(byte)) & 0xff];
    }
    return ~rest;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t so_far) noexcept {
#if defined(__x86_64__)
    static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    return has_instruction ? by_instruction(bytes, so_far) : crc32c_by_table(bytes, so_far);
#elif defined(__ARM_FEATURE_CRC32)
    return by_instruction(bytes, so_far);
#else
    return crc32c_by_table(bytes, so_far);
#endif
}

}  // namespace millrace::message
