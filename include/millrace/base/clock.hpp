// The monotonic clock of the library: the processor's counter where it can be trusted.
//
// Reading CLOCK_MONOTONIC costs some 20 to 50 ns, the time stamp counter about 8. At first use
// the counter is calibrated against CLOCK_MONOTONIC, and it is only used if the processor says
// it is invariant and the two agree; otherwise `Clock` reads CLOCK_MONOTONIC.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace millrace::base {

/// Nanoseconds on CLOCK_MONOTONIC's time line. A std::chrono clock. Thread-safe, never blocks.
class Clock {
  public:
    using rep = std::int64_t;
    using period = std::nano;
    using duration = std::chrono::nanoseconds;
    using time_point = std::chrono::time_point<Clock>;
    static constexpr bool is_steady = true;

    [[nodiscard]] static time_point now() noexcept;

    /// True if `now()` reads the processor's counter rather than the system clock.
    [[nodiscard]] static bool uses_processor_counter() noexcept;
};

/// The raw processor counter, for cheap intervals whose unit does not matter. Monotonic per core.
[[nodiscard]] inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    std::uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
#endif
}

/// How many `ticks()` make the given duration. Calibrated once; at least 1.
[[nodiscard]] std::uint64_t ticks_in(std::chrono::nanoseconds duration) noexcept;

}  // namespace millrace::base
