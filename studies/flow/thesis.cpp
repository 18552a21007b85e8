// See thesis.hpp: the tables, and how a view of measurements is asked.
#include "thesis.hpp"

#include <fmt/format.h>

#include "bench/flow/queue_ends.hpp"
#include "studies/works/quotations.hpp"

namespace millrace::bench {
namespace {

/// How quotations.md calls a column; empty: it has no such one.
std::string_view name_of_column(std::string_view column) {
    if (column == "Socket") return "socket";
    if (column == "Basic" || column == "Basic, events") return "basic";
    if (column == "Batching" || column == "Batching, events") return "batching";
    if (column == "Data Mover") return "mover";
    return {};
}

}  // namespace

std::optional<double> printed(std::string_view table, std::string_view column,
                              std::size_t item_bytes) {
    const std::string_view network = table == "table 6.1"   ? "10g"
                                     : table == "table 6.2" ? "40g"
                                                            : "";
    const std::string_view name = name_of_column(column);
    if (network.empty() || name.empty()) return std::nullopt;
    const auto& values = quotation(fmt::format("000.{}.{}", name, network)).values;
    const auto found = values.find(static_cast<double>(item_bytes));
    return found == values.end() ? std::nullopt : std::optional{found->second};
}

bool agrees_with_printed(double measured, double printed) noexcept {
    constexpr double allowed = 1.25;
    return measured <= printed * allowed && measured * allowed >= printed;
}

double printed_ratio(std::string_view above, std::string_view below, std::size_t most) {
    std::vector<double> ratios;
    for (const std::size_t size : figure_sizes) {
        if (size > most) continue;
        ratios.push_back(printed("table 6.1", above, size).value() /
                         printed("table 6.1", below, size).value());
    }
    return quantile(std::move(ratios), 0.5);
}

namespace {

std::optional<Summary> summary_of(const std::vector<std::vector<double>>& sizes) {
    const Summary summary = summarize_by_run(sizes);
    return summary.rounds == 0 ? std::nullopt : std::optional{summary};
}

}  // namespace

std::optional<Summary> View::ratio(std::string_view above, std::string_view below,
                                   Quantity quantity, std::size_t least, std::size_t most) const {
    std::vector<std::vector<double>> sizes;
    for (const std::size_t size : figure_sizes) {
        if (size < least || size > most) continue;
        const Point* const one = measurements.find(mode, above, size);
        const Point* const other = measurements.find(mode, below, size);
        if (one == nullptr || other == nullptr) continue;
        sizes.push_back(divided(one->values(quantity), other->values(quantity)));
    }
    return summary_of(sizes);
}

std::optional<Summary> View::typical(std::string_view contestant, Quantity quantity,
                                     std::size_t least, std::size_t most) const {
    std::vector<std::vector<double>> sizes;
    for (const std::size_t size : figure_sizes) {
        if (size < least || size > most) continue;
        const Point* const point = measurements.find(mode, contestant, size);
        if (point != nullptr) sizes.push_back(point->values(quantity));
    }
    return summary_of(sizes);
}

}  // namespace millrace::bench
