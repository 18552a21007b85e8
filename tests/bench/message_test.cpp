// What bars of messages are made of can be measured, and the server that they are compared with is
// an ideal one. How fast is not asked here.
#include "bench/message/open_loop.hpp"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "bench/message/measure_clients.hpp"

namespace millrace::bench {
namespace {

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
