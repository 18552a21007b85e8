// The monotonic clock of the library: the processor's counter where it can be trusted.
//
// Reading CLOCK_MONOTONIC costs 15 to 50 ns, more where the kernel must be entered; the processor's
// counter about 8. At first use (some 0.3 ms) the counter is calibrated against CLOCK_MONOTONIC,
// and it is only used if the processor says it is invariant, the kernel trusts it and the two
// agree; otherwise `Clock` reads CLOCK_MONOTONIC. It stays within a few µs of CLOCK_MONOTONIC (in
// the first second within 0.1 ms), so times of different processes can be compared.
#pragma once

#include <chrono>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Nanoseconds on CLOCK_MONOTONIC's time line. A std::chrono clock. Thread-safe, never blocks.
/// Never goes back in one thread. Across threads there is no such promise: the counter is read
/// without a fence, so the processor may read it before an earlier load is done. Who loads a time
/// that another thread stamped, and then reads the clock, may find it earlier than that time, by as
/// much as the load took (some 100 ns). Take such differences as signed, and negative ones as 0.
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
    return __builtin_ia32_rdtsc();  // <x86intrin.h> took half a second of each file's compilation
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
