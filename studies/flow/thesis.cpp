// See thesis.hpp: the tables, and how a view of measurements is asked.
#include "thesis.hpp"

#include <algorithm>
#include <array>

#include "bench/flow/queue_ends.hpp"

namespace millrace::bench {
namespace {

// Item bytes, socket, basic, batching, data mover.
constexpr std::array<TableLine, 15> lines_6_1{{
    {4, 29, 5, 16, 506},
    {8, 60, 12, 33, 1202},
    {16, 112, 23, 66, 2801},
    {32, 207, 47, 134, 6430},
    {64, 396, 95, 263, 7185},
    {128, 745, 192, 577, 7632},
    {256, 1260, 381, 1235, 7975},
    {512, 2369, 760, 2736, 8303},
    {1024, 5153, 1610, 7522, 8469},
    {2048, 7907, 3155, 8649, 8616},
    {4096, 8618, 5392, 8677, 8647},
    {8192, 8691, 8701, 8694, 8666},
    {16384, 8699, 8709, 8706, 8680},
    {32768, 8697, 8714, 8712, 8684},
    {65536, 8700, 8716, 8715, 8706},
}};
constexpr std::array<TableLine, 6> lines_6_2{{
    {2048, 8195, 2814, 7346, 13298},
    {4096, 12417, 5346, 13479, 39262},
    {8192, 16819, 9809, 25088, 39962},
    {16384, 20092, 16170, 38503, 40257},
    {32768, 18172, 25652, 40590, 40456},
    {65536, 20103, 35677, 40635, 40547},
}};

}  // namespace

std::span<const TableLine> table_6_1() { return lines_6_1; }
std::span<const TableLine> table_6_2() { return lines_6_2; }

std::optional<double> printed(std::string_view table, std::string_view column,
                              std::size_t item_bytes) {
    const auto lines = table == "table 6.1"   ? table_6_1()
                       : table == "table 6.2" ? table_6_2()
                                              : std::span<const TableLine>{};
    for (const TableLine& line : lines) {
        if (line.item_bytes != item_bytes) continue;
        if (column == "Socket") return line.socket;
        if (column == "Basic" || column == "Basic, events") return line.basic;
        if (column == "Batching" || column == "Batching, events") return line.batching;
        if (column == "Data Mover") return line.mover;
    }
    return std::nullopt;
}

bool agrees_with_printed(double measured, double printed) noexcept {
    constexpr double allowed = 1.25;
    return measured <= printed * allowed && measured * allowed >= printed;
}

double printed_ratio(std::string_view above, std::string_view below, std::size_t most) {
    std::vector<double> ratios;
    for (const TableLine& line : table_6_1()) {
        if (line.item_bytes > most) continue;
        ratios.push_back(printed("table 6.1", above, line.item_bytes).value() /
                         printed("table 6.1", below, line.item_bytes).value());
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
