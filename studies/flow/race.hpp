// Which point of the design space does best for a load: all of them race, and those that fall far
// behind leave early. For tune.cpp and judge.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "bench/flow/measure_flow.hpp"
#include "millrace/flow/advice.hpp"
#include "millrace/ring/design_name.hpp"

namespace millrace::bench {

struct Racer {
    ring::NamedDesign design{};
    std::string failure{};  ///< why it was not measured
    bool stays = false;     ///< to the last round, whatever it does
    bool runs = true;
    std::vector<double> figures{};  ///< one for each round that it ran in, since the last clearing

    [[nodiscard]] double figure() const;  ///< their median; 0 without any
};

/// Every point that may be advised for such a load: single and in dynamic batches, in fixed ones
/// where items never stop, by a data mover where there is a core to spare.
[[nodiscard]] std::vector<Racer> every_racer(const flow::Requirements& wanted);

/// What is raced for, where, and how far it has come.
struct Race {
    flow::Requirements wanted{};
    FlowLoad load{};
    std::string device{};
    std::string mode{};
    /// Of one measurement.
    std::chrono::nanoseconds limit = std::chrono::milliseconds{10};
    /// Of those that stay to the end; before them all run once, and those that are not far behind
    /// twice more.
    int last_rounds = 5;
    std::size_t finalists = 8;
    std::vector<Racer> racers{};
    int round = 0;

    [[nodiscard]] int rounds() const noexcept { return heats + last_rounds; }
    /// Seconds that the next round takes, about, if as many leave as do mostly.
    [[nodiscard]] double seconds_of(int one) const;
    /// All that still run, in turn. What the machine does meanwhile hits all of them alike.
    void run_round();
    /// True if the first is the better figure.
    [[nodiscard]] bool is_better(double one, double other) const noexcept {
        return load.burst == 0 ? one > other : one < other;
    }

    static constexpr int heats = 3;
};

/// Of a race that is over.
struct Standing {
    const Racer* racer = nullptr;
    /// Of the best one's figure: the median of the rounds' ratios.
    double share = 0;
};
/// The best first. Those that left early come after, by what they did before. None that was not
/// measured.
[[nodiscard]] std::vector<Standing> standings(const Race& race);

}  // namespace millrace::bench
