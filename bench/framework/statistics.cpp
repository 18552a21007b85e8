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

namespace {

struct Seldom {
    double of_one;      ///< how often
    double deviations;  ///< of Gauss's curve, which are exceeded as often
};
constexpr Seldom one_in_ten{0.1, 1.2816};
constexpr Seldom one_in_two_hundred{0.005, 2.5758};

/// Of how many values, from the least on, the largest lies below the median of endless ones but for
/// that seldom a time: as often as that few of so many throws of a coin show heads. At least 1.
std::size_t values_beside_median(std::size_t of, const Seldom& seldom) {
    // Of many the heads are spread as by Gauss, and the powers below would be too small for a
    // double.
    if (of > 500) {
        const auto all = static_cast<double>(of);
        return static_cast<std::size_t>((all - seldom.deviations * std::sqrt(all)) / 2);
    }
    double exactly = std::pow(0.5, static_cast<double>(of));  // `heads` of them
    double fewer = exactly;
    std::size_t heads = 0;
    while (fewer <= seldom.of_one && heads < of) {
        exactly *= static_cast<double>(of - heads) / static_cast<double>(heads + 1);
        fewer += exactly;
        ++heads;
    }
    return std::max<std::size_t>(heads, 1);
}

}  // namespace

Summary summarize(const std::vector<double>& values, int discarded) {
    Summary summary;
    if (!values.empty()) {
        auto sorted = values;
        std::sort(sorted.begin(), sorted.end());
        const std::size_t beside = values_beside_median(values.size(), one_in_ten);
        summary.median_low = sorted[beside - 1];
        summary.median_high = sorted[values.size() - beside];
        const std::size_t far = values_beside_median(values.size(), one_in_two_hundred);
        summary.median_least = sorted[far - 1];
        summary.median_most = sorted[values.size() - far];
    }
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
