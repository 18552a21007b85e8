// A program whose mistake shows only where requests are in flight: in mode `shaped`. Without the
// mistake it works there; where everything completes at the doorbell it works with the mistake too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/child_process.hpp"
#include "support/device.hpp"

namespace millrace::planted {
namespace {

using millrace::test::ChildProcess;
using millrace::test::Exit;

class BugPlantedForShaped : public testing::TestWithParam<const char*> {
  protected:
    struct Outcome {
        std::string said;
        int status;
    };
    static Outcome run(const std::string& how, const std::string& mode) {
        ChildProcess child = ChildProcess::start(GetParam(), {how}, {"MILLRACE_SOFT_MODE=" + mode});
        Outcome outcome;
        outcome.said = child.read_line().value_or("");
        const auto exit = child.wait();
        outcome.status = exit.how == Exit::How::exited ? exit.value : -1;
        return outcome;
    }
    static constexpr const char* link = "shaped:10g,latency=1ms";
};

TEST_P(BugPlantedForShaped, IsExposedByALatency) {
    const Outcome right = run("right", link);
    EXPECT_EQ(right.status, 0) << right.said;
    const Outcome wrong = run("wrong", link);
    EXPECT_EQ(wrong.status, 1);
    EXPECT_EQ(wrong.said, "posted, and not complete");
}

TEST_P(BugPlantedForShaped, IsNotSeenWhereRequestsCompleteAtTheDoorbell) {
    const Outcome wrong = run("wrong", "fast");
    EXPECT_EQ(wrong.status, 0) << wrong.said;
}

INSTANTIATE_TEST_SUITE_P(In, BugPlantedForShaped, testing::Values("looking_once"),
                         [](const testing::TestParamInfo<const char*>& planted) {
                             return std::string{planted.param};
                         });

}  // namespace
}  // namespace millrace::planted
