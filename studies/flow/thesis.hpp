// What work 000, chapter 6, found: the numbers its text prints (tables 6.1 and 6.2), and what it
// says about each figure, each with the rule by which our measurement agrees or differs. Its
// figures are not quoted: their numbers stand in no text.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measurements.hpp"

namespace millrace::bench {

/// One line of a table: Mb/s.
struct TableLine {
    std::size_t item_bytes;
    double socket;
    double basic;
    double batching;
    double mover;
};
[[nodiscard]] std::span<const TableLine> table_6_1();
[[nodiscard]] std::span<const TableLine> table_6_2();
/// What the work's table prints for that column ("Socket", "Basic", "Batching", "Data Mover";
/// "Basic, events" and "Batching, events" are how the work ran those two), if
/// it has that line.
[[nodiscard]] std::optional<double> printed(std::string_view table, std::string_view column,
                                            std::size_t item_bytes);
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
    /// Median over the sizes from `least` to `most` of what one takes divided by what the other
    /// takes; nothing if no size has both.
    [[nodiscard]] std::optional<double> ratio(std::string_view above, std::string_view below,
                                              Quantity quantity, std::size_t least = 4,
                                              std::size_t most = 65536) const;
    /// Median over those sizes.
    [[nodiscard]] std::optional<double> typical(std::string_view contestant, Quantity quantity,
                                                std::size_t least = 4,
                                                std::size_t most = 65536) const;
};

struct Verdict {
    bool agrees = false;
    std::string measured;  ///< the numbers it was judged by
};

struct Finding {
    std::string_view section;
    std::string_view figure;  ///< whose measurement it needs, and perhaps others of that section
    std::string_view claim;   ///< of the work, in our words
    std::string_view rule;    ///< when we agree
    /// Nothing: not measured, or the mode has nothing to say about it.
    std::function<std::optional<Verdict>(const View&)> judge;
    /// Why it differs, where that is known: in mode fast, and on a link. Else empty.
    std::string_view because_fast{};
    std::string_view because_link{};

    [[nodiscard]] std::string_view because(const View& view) const noexcept {
        return view.link_megabits == 0 ? because_fast : because_link;
    }
};
[[nodiscard]] const std::vector<Finding>& all_findings();

}  // namespace millrace::bench
