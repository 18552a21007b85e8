// Median and spread of repeated measurements.
#include "statistics.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::bench {

double quantile(std::vector<double> values, double fraction) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double place = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(std::floor(place));
    const auto above = std::min(below + 1, values.size() - 1);
    const double part = place - static_cast<double>(below);
    return values[below] + (values[above] - values[below]) * part;
}

Summary summarize(const std::vector<double>& values, int discarded) {
    Summary summary;
    summary.median = quantile(values, 0.5);
    summary.low = quantile(values, 0.25);
    summary.high = quantile(values, 0.75);
    summary.least = quantile(values, 0.0);
    summary.most = quantile(values, 1.0);
    summary.rounds = static_cast<int>(values.size());
    summary.discarded = discarded;
    return summary;
}

}  // namespace millrace::bench
