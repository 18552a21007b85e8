// The time that both ends of a shaped link go by. Used by the link model and by executors.
#pragma once

#include <ctime>

#include <cstdint>
#include <limits>

namespace millrace::soft {

inline constexpr std::int64_t cable_never = std::numeric_limits<std::int64_t>::max();

/// CLOCK_MONOTONIC in ns: what one process writes, another compares, to the nanosecond
/// (base::Clock may be some µs apart between processes).
[[nodiscard]] inline std::int64_t cable_now() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace millrace::soft
