// The study of messages can be measured, in mode fast. How fast is not asked here.
#include "studies/message/run_message.hpp"

#include <string>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace millrace::bench
