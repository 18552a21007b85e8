// The command that repeats the evaluation of work 000, chapter 6: `millrace bench flow`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "command_line/json_output.hpp"

namespace millrace::bench {

struct FlowOptions {
    std::vector<std::string> figures{};  ///< "6.9", "table 6.1", "map"; empty: all
    std::vector<std::string> modes{};    ///< empty: shaped as the work's networks, and fast
    tools::JsonOutput json{};
    std::string plots{};  ///< folder for plots
    int repeats = 3;      ///< runs of each point of a figure; the work made 10
    double limit = 0.3;   ///< seconds that a run measures at most
    std::uint64_t items = std::uint64_t{1} << 20;
    bool quick = false;    ///< few sizes, one short run of each
    std::string points{};  ///< as StudyOptions::points and resume
    bool resume = false;
};

/// One thing to measure.
struct FlowJob {
    std::string mode;
    std::string contestant;
    std::size_t item_bytes = 0;
    bool transfer = false;  ///< items to and fro; else a stream
    int repeats = 1;
    friend bool operator==(const FlowJob&, const FlowJob&) = default;
};
/// What the options ask for, each once; sizes ascending, contestants of a size together. Throws
/// base::Error for an unknown figure, mode or number out of range.
[[nodiscard]] std::vector<FlowJob> plan(const FlowOptions& options);

/// Measures, prints, and writes what was asked for. Exit status 0 if everything could be measured,
/// else 1. Throws base::Error as plan, and if a file cannot be written.
int run_flow(const FlowOptions& options);

}  // namespace millrace::bench
