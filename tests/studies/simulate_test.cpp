// The simulation of requesters and responders: where its answer can be worked out by hand, it has
// it.
#include "studies/rpc/simulate.hpp"

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"

namespace millrace::bench {
namespace {

constexpr SimulatedCosts costs{.ask = 300, .serve = 200, .look = 10, .way = 100};

TEST(Simulation, HasTheSumOfAllStepsOneToOne) {
    const Simulated run = simulate({.costs = costs});
    // And on average half a look, as a request may come in the middle of one.
    EXPECT_NEAR(run.per_second, 1e9 / (300 + 200 + 2 * 100 + 5), 1e9 / 700 * 0.02);
    EXPECT_NEAR(run.responder_busy, 200.0 / 705, 0.01);
    // 505 ns of each 705 in looks of 10, and one that finds it.
    EXPECT_NEAR(run.empty_percent, 98, 0.5);
}

TEST(Simulation, IsBoundByItsRespondersWhereRequestersAreMany) {
    for (const bool by_send : {false, true}) {
        SimulatedCase chosen{.costs = costs, .requesters = 90, .by_send = by_send};
        const double one = simulate(chosen).per_second;
        EXPECT_NEAR(one, 1e9 / 200, 1e9 / 200 * 0.05) << "nobody waits for a request";
        chosen.responders = 4;
        EXPECT_GT(simulate(chosen).per_second, 3 * one);
    }
}

TEST(Simulation, IsBoundByTheCoreThatRequestersShare) {
    const Simulated run = simulate({.costs = costs, .requesters = 40, .requester_cores = 1});
    EXPECT_NEAR(run.per_second, 1e9 / 300, 1e9 / 300 * 0.02);
}

TEST(Simulation, IsBoundByTheLinkThatRespondersShare) {
    // 4 KiB take 327.68 ns at 100 Gb/s.
    const Simulated run = simulate({.costs = costs,
                                    .requesters = 90,
                                    .responders = 4,
                                    .response_bytes = 4096,
                                    .links = 2,
                                    .link_bits_per_second = 100e9});
    EXPECT_NEAR(run.per_second, 2 * 1e9 / 327.68, 2 * 1e9 / 327.68 * 0.03);
}

TEST(Simulation, FindsMoreMailboxesEmptyWithMoreResponders) {
    SimulatedCase chosen{.costs = costs, .requesters = 90, .responders = 6};
    const Simulated few = simulate(chosen);
    chosen.responders = 18;
    const Simulated many = simulate(chosen);
    EXPECT_GT(many.empty_percent, few.empty_percent);
    chosen.costs.look = 100;
    EXPECT_LT(simulate(chosen).per_second, many.per_second) << "looks that take longer cost more";
}

TEST(Simulation, RefusesStepsWithoutTime) {
    EXPECT_THROW((void)simulate({}), base::Error);
    EXPECT_THROW((void)simulate({.costs = costs, .responders = 0}), base::Error);
}

}  // namespace
}  // namespace millrace::bench
