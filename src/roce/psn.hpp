// Packet sequence numbers: 24 bits that wrap. Two of them are compared by how far apart they are,
// which says something while they are less than 2^23 apart. Called by everything in roce/.
#pragma once

#include <cstdint>

namespace millrace::roce {

inline constexpr std::uint32_t psn_mask = 0xffffff;

[[nodiscard]] constexpr std::uint32_t psn_after(std::uint32_t psn, std::uint32_t count) noexcept {
    return (psn + count) & psn_mask;
}

/// How far `psn` is beyond `from`: negative, if it is before it.
[[nodiscard]] constexpr std::int32_t psn_distance(std::uint32_t psn, std::uint32_t from) noexcept {
    return static_cast<std::int32_t>((psn - from) << 8) >> 8;
}

}  // namespace millrace::roce
