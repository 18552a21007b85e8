// Where the byte counts begin of the rings that this process makes: at 0, but for tests of counters
// that wrap. Asked by whoever sends, of rings and of message channels; its peer is told.
#pragma once

#include <atomic>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::ring::detail {

inline std::atomic<std::uint64_t> first_position_of_rings{0};

/// From any thread.
[[nodiscard]] inline std::uint64_t first_position() noexcept {
    return first_position_of_rings.load(std::memory_order_relaxed);
}

/// For tests: rings that are made while it lives begin at `position`, a multiple of 64 for channels
/// of messages and of 8 for others. One at a time.
class FirstPosition {
  public:
    explicit FirstPosition(std::uint64_t position) noexcept {
        first_position_of_rings.store(position, std::memory_order_relaxed);
    }
    ~FirstPosition() { first_position_of_rings.store(0, std::memory_order_relaxed); }
    FirstPosition(const FirstPosition&) = delete;
    FirstPosition& operator=(const FirstPosition&) = delete;
};

}  // namespace millrace::ring::detail
