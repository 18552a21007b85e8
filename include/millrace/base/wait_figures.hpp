// What the statistics page of an end shows of its waits, if they adapt (wait_estimate.hpp): what
// they expect, what the last one did and why, and how they ended. Used by ends that have a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/base/statistics.hpp"
#include "millrace/base/wait_estimate.hpp"

namespace millrace::base {

/// The figures of a page: `own`, and those of waits behind its counters, gauges and states. `own`
/// alone, if the waits do not adapt.
[[nodiscard]] std::vector<Figure> with_waits(std::span<const Figure> own, bool adapts);

/// Sets the figures of waits, which are those from `first` on (StatisticsPage::counter()).
void show_waits(StatisticsPage& page, std::size_t first, const WaitFacts& facts) noexcept;

/// When to show them: to make the facts takes some divisions, which is too much for each message.
class WaitsToShow {
  public:
    /// A wait may have ended; the end has slept so often. True behind each sleep, and each 16th
    /// time.
    [[nodiscard]] bool is_due(std::uint64_t sleeps) noexcept {
        if (sleeps == sleeps_ && ++since_ < 16) return false;
        sleeps_ = sleeps;
        since_ = 0;
        return true;
    }

  private:
    std::uint64_t sleeps_ = 0;
    std::uint32_t since_ = 15;
};

}  // namespace millrace::base
