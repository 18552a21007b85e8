// Times of single calls, of which every 17th is taken: a prime, so that no batch or lap hides
// between them. Used by the drivers of streams.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "millrace/base/clock.hpp"

namespace millrace::bench {

class CallTimes {
  public:
    static constexpr std::uint32_t stride = 17;
    static constexpr std::size_t most = 1U << 17;

    CallTimes() { samples_.reserve(most); }
    void add(std::uint64_t ticks) {
        if (samples_.size() < most) samples_.push_back(ticks);
    }
    /// The mean without the slowest hundredth (a core that was taken away is no call's cost); 0 if
    /// there is none.
    [[nodiscard]] double mean_ns() {
        if (samples_.empty()) return 0;
        const std::size_t kept = samples_.size() - samples_.size() / 100;
        std::nth_element(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(kept - 1),
                         samples_.end());
        const auto sum =
            std::accumulate(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(kept),
                            std::uint64_t{0});
        constexpr std::chrono::milliseconds known{1};
        const double ns_per_tick = 1e6 / static_cast<double>(base::ticks_in(known));
        return static_cast<double>(sum) * ns_per_tick / static_cast<double>(kept);
    }

  private:
    std::vector<std::uint64_t> samples_;
};

}  // namespace millrace::bench
