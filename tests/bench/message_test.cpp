// The study of messages can be measured, in mode fast. How fast is not asked here.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "framework/study.hpp"
#include "message/measure_clients.hpp"
#include "message/open_loop.hpp"
#include "message/run_message.hpp"

namespace millrace::bench {
namespace {

/// `millrace bench message --quick --mode fast --figure FIGURE`, by the first and last points.
class MessageStudyOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Figures, MessageStudyOf,
                         // The others are made of the same rounds, and take half a minute each.
                         testing::Values("4.3", "4.6, scans", "4.8, latency"));
TEST_P(MessageStudyOf, IsMeasured) {
    EXPECT_EQ(run_message({.figures = {GetParam()}, .modes = {"fast"}, .quick = true}), 0);
}

TEST(MessageBars, CanBeMeasuredOfFewClients) {
    EXPECT_GT(calls_of_threads(3), 0);
    EXPECT_GT(echoes_of_pairs(2, "fast"), 0);
    const OpenLatency latency = latency_at_rate({.clients = 4, .requests = 2000, .slices = 2});
    EXPECT_GT(latency.capacity, 0);
    EXPECT_GT(latency.median_ns, 0);
    EXPECT_GE(latency.longest_ns, latency.median_ns);
    EXPECT_GT(latency.ideal_longest_ns, latency.median_ns);
    EXPECT_GE(percent_of_idle_clients(51), 0);
    EXPECT_GT(call_to_sleeping(51), 0);
}

TEST(OpenLoop, ShowsAStallOfTheServer) {
    const OpenLatency latency =
        latency_at_rate({.clients = 4, .requests = 4000, .slices = 2, .stall_every = 1000});
    EXPECT_GE(latency.longest_ns, 1e6);
}

TEST(IdealServer, TakesWhatItsServiceTakes) {
    EXPECT_EQ(ideal_times(std::array{0.0, 10.0, 12.0}, 5, {}, {}), (std::vector{5.0, 5.0, 8.0}));
}
TEST(IdealServer, StandsStillWhileItIsAway) {
    const std::array gaps{Gap{8, 108}, Gap{111, 121}};
    // The second finds it away, and is interrupted once more.
    EXPECT_EQ(ideal_times(std::array{0.0, 10.0, 20.0}, 5, {}, gaps),
              (std::vector{5.0, 113.0, 108.0}));
}
TEST(IdealServer, IsAskedAndHeardOnlyWhileItsClientIsThere) {
    const std::array gaps{Gap{12, 50}};
    EXPECT_EQ(ideal_times(std::array{0.0, 10.0, 20.0}, 5, gaps, {}),
              (std::vector{5.0, 40.0, 35.0}));
}

}  // namespace
}  // namespace millrace::bench
