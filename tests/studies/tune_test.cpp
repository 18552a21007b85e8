// What `millrace tune` measures and how it ranks: that it is right, never how fast.
#include "studies/flow/tune.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>

#include "bench/flow/queue_ends.hpp"
#include "millrace/ring/design_name.hpp"
#include "studies/flow/race.hpp"

namespace millrace::bench {
namespace {

TEST(DrawnWorkloads, AreTheSameForTheSameSeed) {
    const auto drawn = draw_workloads(200, 7);
    const auto again = draw_workloads(200, 7);
    const auto others = draw_workloads(200, 8);
    ASSERT_EQ(drawn.size(), 200U);
    std::set<std::string> kinds;
    bool differ = false;
    for (std::size_t i = 0; i != drawn.size(); ++i) {
        EXPECT_EQ(to_string(drawn[i].wanted), to_string(again[i].wanted));
        EXPECT_EQ(drawn[i].load.producer_works, again[i].load.producer_works);
        differ = differ || to_string(drawn[i].wanted) != to_string(others[i].wanted);
        kinds.insert(to_string(drawn[i].wanted));
        EXPECT_NO_THROW(check(drawn[i].wanted));
        EXPECT_EQ(drawn[i].wanted.producer_is_busy, drawn[i].load.producer_works.count() != 0);
        EXPECT_EQ(drawn[i].wanted.consumer_is_busy, drawn[i].load.consumer_works.count() != 0);
        EXPECT_EQ(drawn[i].wanted.burst, drawn[i].load.burst);
    }
    EXPECT_TRUE(differ);
    EXPECT_GT(kinds.size(), 50U);
}

TEST(Races, HaveEveryPointThatMayBeAdvised) {
    const auto names = [](const flow::Requirements& wanted) {
        std::set<std::string> all;
        for (const Racer& racer : every_racer(wanted)) {
            all.insert(ring::to_string(racer.design.design));
        }
        return all;
    };
    EXPECT_EQ(names({}).size(), 3 * 33U);
    EXPECT_EQ(names({.burst = 1}).size(), 2 * 33U) << "a fixed batch would keep the last ones";
    EXPECT_EQ(names({.burst = 1, .spare_core = true}).size(), 3 * 33U);
    for (const flow::Load& load : loads_to_measure(false)) {
        const Race race = race_for(load, {});
        EXPECT_EQ(flow::load_of(race.wanted), load);
        EXPECT_EQ(race.load.producer_works.count() != 0, load.producer_is_busy);
    }
}

Racer racer_with(const char* design, std::vector<double> figures, bool runs = true) {
    return {.design = ring::parse_design(design), .runs = runs, .figures = std::move(figures)};
}

TEST(Races, RankByTheRatiosOfTheRounds) {
    Race race{.racers = {racer_with("push1/push/push", {100, 10, 100}),
                         racer_with("push1/watermark/push", {110, 11, 60}),
                         racer_with("pull/pull/pull", {50, 5, 50}),
                         racer_with("push2/event/push", {500, 1}, false)}};
    auto ranked = standings(race);
    ASSERT_EQ(ranked.size(), 4U);
    EXPECT_EQ(ranked[0].racer->figures[0], 110) << "better in two of three rounds";
    EXPECT_EQ(ranked[0].share, 1);
    EXPECT_NEAR(ranked[1].share, 1 / 1.1, 1e-9);
    EXPECT_NEAR(ranked[2].share, 1 / 2.2, 1e-9);
    EXPECT_EQ(ranked[3].racer->figures[0], 500) << "what left early comes behind";
    EXPECT_LE(ranked[3].share, 1);

    race.load.burst = 1;
    ranked = standings(race);
    EXPECT_EQ(ranked[0].racer->figures[0], 50) << "of bursts, less is better";
    EXPECT_NEAR(ranked[1].share, 0.5, 1e-9);
}

TEST(Races, NameWhatCouldNotBeMeasured) {
    Race race{.wanted = {.item_bytes = 24}, .device = "soft0", .mode = "fast"};
    race.racers = {racer_with("push1/push/push", {})};
    race.run_round();
    EXPECT_THAT(race.racers[0].failure, testing::HasSubstr("24 bytes"));
    EXPECT_TRUE(standings(race).empty());
}

TEST(FlowLoads, AreMeasuredAtEveryPoint) {
    for (const std::uint32_t burst : {0U, 3U}) {
        Race race{.wanted = {.item_bytes = 64, .burst = burst, .spare_core = true},
                  .load = {.burst = burst, .consumer_works = std::chrono::nanoseconds{100}},
                  .device = "soft0",
                  .mode = "fast",
                  .limit = std::chrono::microseconds{100},
                  .last_rounds = 1,
                  .finalists = 2};
        race.racers = every_racer(race.wanted);
        while (race.round != race.rounds()) race.run_round();
        for (const Racer& racer : race.racers) {
            EXPECT_EQ(racer.failure, "") << ring::to_string(racer.design.design);
        }
        const auto ranked = standings(race);
        EXPECT_EQ(ranked.size(), race.racers.size());
        EXPECT_LE(std::count_if(race.racers.begin(), race.racers.end(),
                                [](const Racer& racer) { return racer.runs; }),
                  2);
    }
}

}  // namespace
}  // namespace millrace::bench
