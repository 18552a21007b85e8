// `millrace tune` as a user runs it: what it writes and refuses, never what is fast.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

#include "millrace/flow/advice.hpp"
#include "millrace/flow/profile.hpp"
#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::tools {
namespace {

using millrace::test::run_command;
using millrace::test::run_line;
using Outcome = millrace::test::CommandOutcome;
using testing::HasSubstr;

TEST(Tune, WritesAProfileWhereProgramsLookForIt) {
    const millrace::test::TemporaryFolder folder;
    const Outcome outcome = run_command(
        {"tune", "--quick"},
        {"XDG_CACHE_HOME=" + folder.path(), "MILLRACE_DEVICE=soft0", "MILLRACE_SOFT_MODE=fast"});
    ASSERT_TRUE(outcome.exit.success()) << outcome.text;
    const std::string path = folder.path("millrace/flow-soft0-fast.json");
    EXPECT_THAT(outcome.text, HasSubstr(path));
    EXPECT_THAT(outcome.text, HasSubstr("no network is measured"));
    EXPECT_THAT(outcome.text, HasSubstr("64 B, one at a time"));
    const flow::Profile profile = flow::Profile::load(path);
    EXPECT_EQ(profile.origin().device, "soft0");
    EXPECT_EQ(profile.origin().mode, "fast");
    EXPECT_TRUE(profile.origin().is_stored);
    EXPECT_EQ(profile.origin().machine, flow::Profile::this_machine());
    const flow::Advice advice = flow::choose({.burst = 1}, profile);
    EXPECT_THAT(advice.text(), HasSubstr("Measured on soft0"));
    EXPECT_EQ(folder.content("millrace/flow-soft0-fast.json.unfinished"), "");

    // It is judged by the same points that it was made of.
    const Outcome judged = run_line("exec \"$0\" \"$@\" 2>/dev/null </dev/null",
                                    {"tune", "--quick", "--judge", "1", "--seed", "7", "--profile",
                                     path, "--mode", "fast", "--json"});
    EXPECT_TRUE(judged.exit.exited_with(0) || judged.exit.exited_with(1)) << judged.text;
    const auto document = nlohmann::json::parse(judged.text, nullptr, false);
    ASSERT_FALSE(document.is_discarded()) << judged.text;
    EXPECT_EQ(document.at("seed"), 7);
    ASSERT_EQ(document.at("workloads").size(), 1U);
    EXPECT_GT(document.at("workloads")[0].at("share"), 0);
}

TEST(Tune, RefusesBeforeItMeasures) {
    const Outcome nowhere = run_command({"tune", "--profile", "/proc/no/such/folder.json"});
    EXPECT_FALSE(nowhere.exit.success());
    EXPECT_THAT(nowhere.text, HasSubstr("write a profile of flow structures"));
    EXPECT_THAT(nowhere.text, testing::Not(HasSubstr("round 1")));
    const Outcome seed = run_command({"tune", "--seed", "5"});
    EXPECT_FALSE(seed.exit.success());
    EXPECT_THAT(seed.text, HasSubstr("--judge"));
    const Outcome unknown = run_command({"tune", "--judge", "1", "--profile", "/nonexistent"});
    EXPECT_FALSE(unknown.exit.success());
    EXPECT_THAT(unknown.text, HasSubstr("millrace tune"));
}

TEST(Tune, IsACommandOfItsOwn) {
    const Outcome help = run_command({"tune", "--help"});
    EXPECT_TRUE(help.exit.success());
    EXPECT_THAT(help.text, HasSubstr("millrace tune"));
    EXPECT_THAT(help.text, HasSubstr("--judge"));
    EXPECT_THAT(run_command({"--help"}).text, HasSubstr("tune"));
    EXPECT_THAT(run_command({"bench", "--help"}).text, testing::Not(HasSubstr("tune")));
}

}  // namespace
}  // namespace millrace::tools
