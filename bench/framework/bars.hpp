// Bars: promises about speed that a command checks. `millrace bench bars` calls `run_bars`.
//
// A bar is registered where it is written, in bench/bars/<group>.cpp:
//
//     const BarRegistration write_ping_pong{{
//         .group = "foundation",
//         .name = "WRITE ping-pong of 8 bytes to cache-line ping-pong",
//         .limit = 1.6,
//         .sense = Sense::at_most,
//         .unit = "x",
//         .measure = [](const RoundOptions& options) {
//             Rounds rounds{options};
//             rounds.add({"ours", ...});
//             rounds.add({"ideal", ...});
//             return rounds.run().ratio("ours", "ideal");
//         }}};
//
// A bar that does not hold stays, and says `short`. One that throws Error (not_found) lacks
// something on this machine: it says `not measured` and what to install.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/json_output.hpp"
#include "rounds.hpp"
#include "statistics.hpp"

namespace millrace::bench {

/// `reported`: a figure that nothing was promised of.
enum class Sense { at_most, at_least, reported };

struct Bar {
    std::string group;
    std::string name;
    double limit = 0;
    Sense sense = Sense::at_most;
    std::string unit = "x";
    std::function<Summary(const RoundOptions&)> measure;
};

/// What `above` takes divided by what `below` takes, round by round.
[[nodiscard]] Bar ratio_bar(std::string group, std::string name, double limit, Sense sense,
                            Contender above, Contender below);

/// One point of a bar that is promised at many.
struct BarPoint {
    std::vector<Contender> ours;  ///< each of them is held against each of the others
    std::vector<Contender> others;
};

/// What ours take divided by what others take, round by round, and of all pairs at all points the
/// one whose median is worst. Each point has rounds of its own; names of contenders say where they
/// belong, as all are told together. Of many points the worst in a few rounds is one that was out
/// of luck, and one that holds may have been in luck. So a point that is short, or whose rounds
/// leave open which side of the limit its median is on, is measured on, twice as many rounds each
/// time, until its median is clear of the limit, on whichever side (Summary::median_low), or there
/// were fifteen times as many: one that is short more surely than one that holds (median_most), as
/// of many that hold some would be short by luck. All rounds count.
[[nodiscard]] Bar worst_ratio_bar(std::string group, std::string name, double limit, Sense sense,
                                  std::vector<BarPoint> points);

/// True if the median keeps the promise.
[[nodiscard]] bool holds(const Bar& bar, const Summary& measured) noexcept;

/// Registers a bar before main().
struct BarRegistration {
    explicit BarRegistration(Bar bar);
};

/// All registered bars, in the order of group and registration.
[[nodiscard]] std::vector<Bar> registered_bars();

struct BarOptions {
    std::string only{};  ///< a group; empty: all
    std::string name{};  ///< only bars whose name contains this text
    tools::JsonOutput json{};
    int rounds = 11;
    bool figures = false;  ///< below each line, what each contender took
};

/// The groups that bars may belong to, in the order of the work.
inline constexpr std::string_view bar_groups[] = {"foundation", "soft",   "flow", "structures",
                                                  "messaging",  "rpc",    "kv",   "doors",
                                                  "cm",         "stream", "wire", "busy"};

/// Measures the bars and prints one line each: name, measured, spread, limit, `ok` or `short` (or
/// `reported`).
/// Where standard error is a terminal, it shows what is being measured.
/// Returns the exit status: 0 only if a bar was measured and all promises that were hold; 2 for an
/// unknown group.
int run_bars(const BarOptions& options);
/// The same for the bars that are given.
int run_bars(const BarOptions& options, const std::vector<Bar>& bars);

}  // namespace millrace::bench
