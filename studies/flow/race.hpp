// Which point of the design space does best for a load: all of them race, and those that fall far
// behind leave early. For tune.cpp and judge.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/flow/measure_flow.hpp"
#include "millrace/flow/advice.hpp"
#include "millrace/ring/design_name.hpp"

namespace millrace::bench {

/// What is raced for, and where.
struct Race {
    flow::Requirements wanted{};
    FlowLoad load{};
    std::string device{};
    std::string mode{};
    /// Of one measurement.
    std::chrono::nanoseconds limit = std::chrono::milliseconds{10};
    /// Measurements of those that stay to the end.
    int rounds = 5;
};

struct Racer {
    ring::NamedDesign design{};
    std::vector<double> figures{};  ///< one for each round that it ran in
    std::string failure{};          ///< why it was not measured; then it has no figures
    bool stays = false;             ///< to the last round, whatever it does

    [[nodiscard]] double figure() const;
};

/// Every point that may be advised for such a load: single and in dynamic batches, in fixed ones
/// where items never stop, by a data mover where there is a core to spare.
[[nodiscard]] std::vector<Racer> every_racer(const flow::Requirements& wanted);

/// Seconds that it takes, about.
[[nodiscard]] double seconds_of(const Race& race);

/// Runs them in turn, round by round: all once, those within twice the best twice more, the best
/// eight of these to the end. The best first, by the median of the last rounds.
[[nodiscard]] std::vector<Racer> run(const Race& race, std::vector<Racer> racers);

/// True if the first figure is the better one for that load.
[[nodiscard]] inline bool is_better(const FlowLoad& load, double one, double other) {
    return load.burst == 0 ? one > other : one < other;
}

}  // namespace millrace::bench
