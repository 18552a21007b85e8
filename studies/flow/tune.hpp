// `millrace tune`: which points of the design space do best on this device, as a profile for
// flow::choose; and how good what it chooses is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line/json_output.hpp"
#include "millrace/flow/profile.hpp"
#include "millrace/flow/requirements.hpp"
#include "race.hpp"

namespace millrace::bench {

struct TuneOptions {
    std::string device{};  ///< empty: the default one
    std::string mode{};    ///< of the soft device; empty: as MILLRACE_SOFT_MODE says
    std::string output{};  ///< empty: where flow::Profile::load() looks
    tools::JsonOutput json{};
    bool quick = false;           ///< few loads, measured shortly
    std::optional<int> judged{};  ///< workloads that choose() is judged by, in place of tuning
    std::optional<std::uint64_t> seed{};
};

/// The work of a thread that is busy, in the profile.
inline constexpr std::chrono::nanoseconds busy_work{300};

/// What a profile has lines of.
[[nodiscard]] std::vector<flow::Load> loads_to_measure(bool quick);
/// As a race. `where`: device and mode.
[[nodiscard]] Race race_for(const flow::Load& load, const flow::ProfileOrigin& where);

/// Of the device and mode that the options, else the environment, choose. Throws base::Error.
[[nodiscard]] flow::ProfileOrigin origin_of(const TuneOptions& options);

/// Measures, prints, writes the profile. Exit status 0. Throws base::Error.
int tune(const TuneOptions& options);

/// A workload as one draws it.
struct Workload {
    flow::Requirements wanted{};
    FlowLoad load{};
};
/// The same for the same seed, whatever the machine.
[[nodiscard]] std::vector<Workload> draw_workloads(int count, std::uint64_t seed);

/// Draws workloads, asks choose() by the profile and by the built-in rules, and races all points.
/// Exit status 0 if each advised point has 90 % of the best one's figure, else 1.
int judge(const TuneOptions& options);

}  // namespace millrace::bench
