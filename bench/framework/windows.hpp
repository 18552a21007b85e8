// Repeated steps measured in windows: the median window forgives that the system took a core away
// for a moment, which a mean over all would not.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "pair.hpp"
#include "statistics.hpp"

namespace millrace::bench {

/// How many steps a measurement makes in all. Both sides compute it from the same `steps`.
struct Windows {
    static constexpr std::uint64_t count = 20;

    explicit constexpr Windows(std::uint64_t steps) noexcept
        : window{steps / count > 0 ? steps / count : 1}, warm_up{2 * window} {}

    std::uint64_t window;   ///< steps in each
    std::uint64_t warm_up;  ///< steps before the first
    [[nodiscard]] constexpr std::uint64_t total() const noexcept {
        return warm_up + count * window;
    }
};

/// Calls `step(number)` with 1 to `windows.total()`. Returns the nanoseconds per step of the median
/// window.
template <class Step>
double median_step(const Windows& windows, Step&& step) {
    std::uint64_t number = 0;
    while (number < windows.warm_up) step(++number);
    std::vector<double> times(Windows::count);
    for (double& time : times) {
        const auto start = base::Clock::now();
        for (std::uint64_t i = 0; i < windows.window; ++i) step(++number);
        time = nanoseconds_since(start) / static_cast<double>(windows.window);
    }
    return quantile(std::move(times), 0.5);
}

/// The same on average over all windows, which forgives nothing: for comparisons with programs that
/// tell no more than that.
template <class Step>
double mean_step(const Windows& windows, Step&& step) {
    std::uint64_t number = 0;
    while (number < windows.warm_up) step(++number);
    const auto start = base::Clock::now();
    while (number < windows.total()) step(++number);
    return nanoseconds_since(start) / static_cast<double>(windows.total() - windows.warm_up);
}

}  // namespace millrace::bench
