// What the receiver-not-ready timer's codes mean. Used by queue pairs and the link model.
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace::soft {

/// ibv_qp_attr::min_rnr_timer (InfiniBand specification, table "Encoding for RNR NAK timer field").
[[nodiscard]] constexpr std::chrono::microseconds rnr_time(std::uint32_t code) noexcept {
    constexpr std::uint32_t ten_microseconds[32] = {
        65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
        48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return std::chrono::microseconds{10} * ten_microseconds[code & 31];
}

}  // namespace millrace::soft
