// When requests are due that are offered at a rate, whatever became of those before: like those of
// very many users that do not know of each other. Latencies count from then, so that a server that
// stops for a moment is not asked less often meanwhile, and each request that it delays shows.
// Called by what loads a server (crowd.hpp).
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>

#include "millrace/base/clock.hpp"

namespace millrace::workload {

/// One sender's. Times between requests are exponentially distributed.
class Pace {
  public:
    /// `per_second` is more than 0. The first request is due some time after `start`.
    Pace(double per_second, std::uint32_t seed, base::Clock::time_point start)
        : mean_ns_{1e9 / per_second}, random_{seed}, due_{start} {
        next();
    }

    [[nodiscard]] base::Clock::time_point due() const noexcept { return due_; }
    [[nodiscard]] bool is_due() const noexcept { return base::Clock::now() >= due_; }
    void next() noexcept {
        const double part = std::uniform_real_distribution<double>{}(random_);
        due_ += std::chrono::nanoseconds{static_cast<std::int64_t>(-mean_ns_ * std::log1p(-part))};
    }
    /// Sleeps until the request is due. Nobody else could say that it is.
    void sleep() const { std::this_thread::sleep_until(due_); }
    /// base::ticks() when it was due.
    [[nodiscard]] std::uint64_t due_ticks() const noexcept {
        const auto late = base::Clock::now() - due_;
        return base::ticks() - base::ticks_in(late);
    }

  private:
    double mean_ns_;
    std::mt19937_64 random_;
    base::Clock::time_point due_;
};

/// Sleeps of this thread end when they are due, as far as the kernel can: not up to 50 us later, so
/// that it may end several together.
void end_sleeps_at_once() noexcept;

}  // namespace millrace::workload
