// The study of messages can be measured, in mode fast. How fast is not asked here.
#include <gtest/gtest.h>

#include <string>

#include "framework/study.hpp"
#include "message/measure_clients.hpp"
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
    const OpenLatency latency = latency_at_rate({.clients = 4, .requests = 2000});
    EXPECT_GT(latency.capacity, 0);
    EXPECT_GT(latency.median_ns, 0);
    EXPECT_GE(latency.longest_ns, latency.median_ns);
    EXPECT_GE(percent_of_idle_clients(51), 0);
    EXPECT_GT(call_to_sleeping(51), 0);
}

}  // namespace
}  // namespace millrace::bench
