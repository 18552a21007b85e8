// Programs whose mistake shows only where something goes wrong on the way: in mode `faulty`, at
// some seed of a hundred. Without the mistake each works at every seed that is tried; on a device
// where nothing goes wrong it works with the mistake as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "support/child_process.hpp"
#include "support/device.hpp"

namespace millrace::planted {
namespace {

using millrace::test::ChildProcess;

struct FaultyPlanted {
    const char* program;
    const char* faults;  ///< the settings of mode `faulty`, but for the seed
    const char* feature;
    std::vector<std::string> symptoms;
};

void PrintTo(const FaultyPlanted& planted, std::ostream* out) { *out << planted.program; }

class BugPlantedForFaulty : public testing::TestWithParam<FaultyPlanted> {
  protected:
    struct Outcome {
        std::string said;
        int status;
    };
    static Outcome run(const std::string& how, const std::string& mode) {
        ChildProcess child =
            ChildProcess::start(GetParam().program, {how}, {"MILLRACE_SOFT_MODE=" + mode});
        Outcome outcome;
        outcome.said = child.read_line().value_or("");
        const auto exit = child.wait();
        outcome.status = exit.how == millrace::test::Exit::How::exited ? exit.value : -1;
        return outcome;
    }
};

TEST_P(BugPlantedForFaulty, IsExposedWithinAHundredSeeds) {
    for (int seed = 1; seed <= 100; ++seed) {
        const std::string mode =
            std::string{"faulty:"} + GetParam().faults + ",seed=" + std::to_string(seed);
        const Outcome right = run("right", mode);
        if (right.status == 3) CONFORMANCE_LACKS(GetParam().feature, "the program says so");
        ASSERT_EQ(right.status, 0) << right.said << ", seed " << seed;
        const Outcome wrong = run("wrong", mode);
        if (wrong.status == 0) continue;  // this seed was kind
        EXPECT_EQ(wrong.status, 1);
        EXPECT_THAT(GetParam().symptoms, testing::Contains(wrong.said));
        return;
    }
    ADD_FAILURE() << "no seed has shown it";
}

TEST_P(BugPlantedForFaulty, IsNotSeenWhereNothingGoesWrong) {
    const Outcome wrong = run("wrong", "fast");
    if (wrong.status == 3) CONFORMANCE_LACKS(GetParam().feature, "the program says so");
    EXPECT_EQ(wrong.status, 0) << wrong.said;
}

INSTANTIATE_TEST_SUITE_P(
    In, BugPlantedForFaulty,
    testing::Values(
        FaultyPlanted{"trusted_write", "loss=5%", "uc", {"old bytes behind a new head"}},
        FaultyPlanted{"counted_datagrams",
                      "loss=3%,duplicate=3%,reorder=3%",
                      "ud",
                      {"a message is missing", "a message came twice or late", "stuck"}},
        FaultyPlanted{
            "ignored_status", "loss=0%,exhaust=5%", nullptr, {"counted as done, and not there"}}),
    [](const testing::TestParamInfo<FaultyPlanted>& planted) {
        return std::string{planted.param.program};
    });

}  // namespace
}  // namespace millrace::planted
