// When a completion was written: one stamp per entry of a completion sub-ring, in the blocks of
// queue pairs whose completion queues tell times. Written by whoever completes, just behind the
// entry, and read by the poller. A stamp that is not there (yet) says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "system/cable_time.hpp"

namespace millrace::soft {

/// Two words that belong together or are not believed, so that nobody has to wait for the other.
struct alignas(16) CompletionStamp {
    std::atomic<std::uint64_t> time;   ///< as `cable_now`
    std::atomic<std::uint64_t> check;  ///< of that and the entry's position
};
static_assert(sizeof(CompletionStamp) == 16);

[[nodiscard]] constexpr std::uint64_t check_of_stamp(std::uint64_t time,
                                                     std::uint32_t position) noexcept {
    // Odd factor: different positions, different products. Never 0 for fresh memory's time of 0.
    return time ^ (std::uint64_t{position} + (std::uint64_t{1} << 32)) * 0x9e3779b97f4a7c15U;
}

inline void put_stamp(CompletionStamp& stamp, std::uint32_t position) noexcept {
    const auto now = static_cast<std::uint64_t>(cable_now());
    stamp.time.store(now, std::memory_order_relaxed);
    stamp.check.store(check_of_stamp(now, position), std::memory_order_relaxed);
}

/// nullopt: not written yet, or already another entry's.
[[nodiscard]] inline std::optional<std::uint64_t> read_stamp(const CompletionStamp& stamp,
                                                             std::uint32_t position) noexcept {
    const std::uint64_t time = stamp.time.load(std::memory_order_relaxed);
    if (stamp.check.load(std::memory_order_relaxed) != check_of_stamp(time, position)) {
        return std::nullopt;
    }
    return time;
}

}  // namespace millrace::soft
