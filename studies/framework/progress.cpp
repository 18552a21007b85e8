#include "progress.hpp"

#include <cstdio>
#include <numeric>

#include <unistd.h>

#include <fmt/format.h>

#include "command_line/output.hpp"

namespace millrace::bench {
namespace {

std::string in_minutes(double seconds) {
    const auto whole = static_cast<int>(seconds + 0.5);
    return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::vector<double> costs)
    : terminal_{isatty(STDERR_FILENO) != 0},
      costs_{std::move(costs)},
      all_{std::accumulate(costs_.begin(), costs_.end(), 0.0)} {}

void Progress::before(std::size_t index, const std::string& what) {
    const double gone = static_cast<double>((base::Clock::now() - start_).count()) / 1e9;
    // Until something is known, the guess; then what it has taken so far.
    const double left = done_ < 0.02 * all_ ? all_ - done_ : gone / done_ * (all_ - done_);
    if (terminal_) {
        // A line that is broken could not be taken back.
        const std::string line =
            fmt::format("{} of {}, {} left: {}", index + 1, costs_.size(), in_minutes(left), what);
        fmt::print(stderr, "\r\033[K{}", line.substr(0, tools::output_width() - 1));
    } else if (index * 10 / costs_.size() != tenth_ || index == 0) {
        tenth_ = index * 10 / costs_.size();
        fmt::print(stderr, "{} of {} points, {} left\n", index, costs_.size(), in_minutes(left));
    }
    std::fflush(stderr);
    done_ += costs_[index];
}

void Progress::told(const std::string& line) const {
    fmt::print(stderr, "{}{}\n", terminal_ ? "\r\033[K" : "", line);
    std::fflush(stderr);
}

void Progress::over() const {
    if (terminal_) fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
}

}  // namespace millrace::bench
