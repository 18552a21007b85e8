// What `millrace bench flow` prints and writes: figures and tables with the work's numbers,
// findings, maps of all points.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "figures.hpp"
#include "measurements.hpp"
#include "run_flow.hpp"

namespace millrace::bench {

struct FlowReport {
    FlowOptions options;
    std::vector<const Figure*> figures;
    std::vector<std::string> modes;  ///< in which something was measured
    bool map = false;
    double seconds = 0;  ///< that it took
};

/// To standard output.
void print(const FlowReport& report, const Measurements& measurements);
/// All of it, every run included.
[[nodiscard]] nlohmann::json document_of(const FlowReport& report,
                                         const Measurements& measurements);
/// The JSON file and the plots that the options ask for. Plots need Python with matplotlib: without
/// it a sentence says so. Throws base::Error.
void write(const FlowReport& report, const Measurements& measurements);

}  // namespace millrace::bench
