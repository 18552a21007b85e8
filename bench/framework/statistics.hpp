// Median and spread of repeated measurements. Used by everything that prints a figure.
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::bench {

/// What a set of rounds says. `low` and `high` are the quartiles.
struct Summary {
    double median = 0;
    double low = 0;
    double high = 0;
    double least = 0;
    double most = 0;
    /// Where the median of endless rounds lies: one time in ten below, one in ten above. Of fewer
    /// than four rounds these are the least and the most, which say less.
    double median_low = 0;
    double median_high = 0;
    /// The same for one time in two hundred, and of fewer than eight rounds.
    double median_least = 0;
    double median_most = 0;
    int rounds = 0;     ///< that counted
    int discarded = 0;  ///< whose cache-line time was an outlier
};

/// The value below which `fraction` (0 to 1) of `values` lie, interpolated. 0 if there are none.
[[nodiscard]] double quantile(std::vector<double> values, double fraction);

[[nodiscard]] Summary summarize(const std::vector<double>& values, int discarded = 0);

}  // namespace millrace::bench
