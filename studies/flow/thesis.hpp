// What work 000, chapter 6, found: its tables 6.1 and 6.2, and what it says about each figure, each
// with the rule by which our measurement agrees or differs. Its figures are not quoted: their
// numbers stand in no text.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measurements.hpp"
#include "studies/framework/verdict.hpp"

namespace millrace::bench {

/// Mb/s that the work's table prints for that column ("Socket", "Basic", "Batching", "Data Mover";
/// "Basic, events" and "Batching, events" are how the work ran those two), if it has that line.
[[nodiscard]] std::optional<double> printed(std::string_view table, std::string_view column,
                                            std::size_t item_bytes);
/// The median, over the lines of table 6.1 up to `most` bytes, of one column divided by another.
[[nodiscard]] double printed_ratio(std::string_view above, std::string_view below,
                                   std::size_t most);
/// A measured number agrees with a printed one if neither is more than a quarter above the other.
[[nodiscard]] bool agrees_with_printed(double measured, double printed) noexcept;

/// The measurements of one mode.
struct View {
    const Measurements& measurements;
    std::string mode;
    double link_megabits = 0;  ///< 0: no link

    [[nodiscard]] std::optional<double> get(std::string_view contestant, std::size_t size,
                                            Quantity quantity) const {
        return measurements.median(mode, contestant, size, quantity);
    }
    /// What one takes divided by what the other takes, run by run: the median over the sizes from
    /// `least` to `most`. Nothing if no size has both.
    [[nodiscard]] std::optional<Summary> ratio(std::string_view above, std::string_view below,
                                               Quantity quantity, std::size_t least = 4,
                                               std::size_t most = 65536) const;
    /// Run by run, the median over those sizes.
    [[nodiscard]] std::optional<Summary> typical(std::string_view contestant, Quantity quantity,
                                                 std::size_t least = 4,
                                                 std::size_t most = 65536) const;
};

/// Nothing: not measured, or the mode has nothing to say about it.
using FlowJudge = std::function<std::optional<StudyVerdict>(const View&)>;

struct Finding {
    std::string_view section;
    std::string_view figure;  ///< whose measurement it needs, and perhaps others of that section
    std::string_view claim;   ///< of the work, in our words
    std::string_view rule;    ///< when we agree
    FlowJudge judge;
};
[[nodiscard]] const std::vector<Finding>& all_findings();

}  // namespace millrace::bench
