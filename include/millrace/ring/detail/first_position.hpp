// Where the byte counts begin of the rings that this process makes: where their kind says, but for
// tests of counters that wrap. The sender of a ring or of a message channel asks; its peer
// is told.
#pragma once

#include <atomic>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::ring::detail {

inline constexpr std::uint64_t no_first_position = ~std::uint64_t{0};
inline std::atomic<std::uint64_t> first_position_of_rings{no_first_position};

/// `usual`, unless a test has chosen another one. From any thread.
[[nodiscard]] inline std::uint64_t first_position(std::uint64_t usual) noexcept {
    const std::uint64_t chosen = first_position_of_rings.load(std::memory_order_relaxed);
    return chosen == no_first_position ? usual : chosen;
}

/// For tests: rings that are made while it lives begin at `position`, a multiple of 64 for channels
/// of messages and of 8 for others. One at a time.
class FirstPosition {
  public:
    explicit FirstPosition(std::uint64_t position) noexcept {
        first_position_of_rings.store(position, std::memory_order_relaxed);
    }
    ~FirstPosition() {
        first_position_of_rings.store(no_first_position, std::memory_order_relaxed);
    }
    FirstPosition(const FirstPosition&) = delete;
    FirstPosition& operator=(const FirstPosition&) = delete;
};

}  // namespace millrace::ring::detail
