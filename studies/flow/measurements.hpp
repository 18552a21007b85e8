// What was measured, kept by mode, contestant and item size; figures, tables and findings are views
// of it. Filled by run_flow.cpp.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/flow/measure_flow.hpp"
#include "bench/framework/statistics.hpp"
#include "figures.hpp"

namespace millrace::bench {

/// The runs of one contestant with one item size.
struct Point {
    std::size_t item_bytes = 0;
    std::vector<StreamResult> streams;
    std::vector<double> transfers_ns;
    std::vector<std::string> failures;

    /// One for each run that measured it.
    [[nodiscard]] std::vector<double> values(Quantity quantity) const;
    /// Over the runs; nothing if none measured it.
    [[nodiscard]] std::optional<Summary> summary(Quantity quantity) const;
};

/// The value of one run.
[[nodiscard]] double value_of(const StreamResult& run, std::size_t item_bytes, Quantity quantity);

/// One run, and back.
[[nodiscard]] nlohmann::json json_of(const StreamResult& run);
[[nodiscard]] StreamResult stream_of(const nlohmann::json& run);

class Measurements {
  public:
    Point& at(std::string_view mode, std::string_view contestant, std::size_t item_bytes);
    [[nodiscard]] const Point* find(std::string_view mode, std::string_view contestant,
                                    std::size_t item_bytes) const;
    /// The median, if it was measured.
    [[nodiscard]] std::optional<double> median(std::string_view mode, std::string_view contestant,
                                               std::size_t item_bytes, Quantity quantity) const;
    [[nodiscard]] nlohmann::json json() const;
    [[nodiscard]] std::size_t failures() const;

  private:
    using Key = std::tuple<std::string, std::string, std::size_t>;
    std::map<Key, Point, std::less<>> points_;
};

}  // namespace millrace::bench
