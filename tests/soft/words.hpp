// Words in memory that a device writes while a test looks. For tests of the modes with a link.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "system/cable_time.hpp"

namespace millrace::test {

inline constexpr std::int64_t ms = 1'000'000;

[[nodiscard]] inline std::uint64_t word_at(const std::byte* memory) {
    return std::atomic_ref<const std::uint64_t>{*reinterpret_cast<const std::uint64_t*>(memory)}
        .load(std::memory_order_acquire);
}
inline void put_word(std::byte* memory, std::uint64_t value) {
    std::memcpy(memory, &value, sizeof value);
}

/// When memory first says something else than 0, or 0 after 10 s; nobody calls verbs meanwhile.
[[nodiscard]] inline std::int64_t time_of_change(const std::byte* memory) {
    const std::int64_t end = soft::cable_now() + 10'000 * ms;
    while (word_at(memory) == 0 && soft::cable_now() < end) std::this_thread::yield();
    return word_at(memory) == 0 ? 0 : soft::cable_now();
}

}  // namespace millrace::test
