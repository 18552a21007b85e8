// `millrace completion`: what a shell offers behind the cursor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/command.hpp"

namespace millrace::tools {
namespace {

using millrace::test::run_command;
using millrace::test::run_line;
using Outcome = millrace::test::CommandOutcome;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

/// What bash offers when the last of `words` is to be completed.
std::vector<std::string> offered(std::vector<std::string> words) {
    words.insert(words.begin(), "millrace");
    const Outcome outcome = run_line(
        "command=$0; export command; exec bash -c '"
        "eval \"$(\"$command\" completion bash)\"; COMP_WORDS=(\"$@\");"
        "COMP_CWORD=$(($# - 1)); _millrace; printf \"%s\\n\" \"${COMPREPLY[@]}\"' bash \"$@\"",
        words);
    EXPECT_TRUE(outcome.exit.success()) << outcome.exit << outcome.text;
    std::vector<std::string> lines;
    std::istringstream stream{outcome.text};
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

TEST(Completion, OffersCommandsAndOptionsOfWhatStandsThere) {
    EXPECT_THAT(offered({""}), testing::IsSupersetOf({"demo", "cat", "soft", "--version"}));
    EXPECT_THAT(offered({"so"}), testing::ElementsAre("soft"));
    EXPECT_THAT(offered({"soft", "st"}), testing::ElementsAre("status"));
    EXPECT_THAT(offered({"soft", "run", "--"}),
                testing::IsSupersetOf({"--", "--mode", "--fabric", "--preload", "--help"}));
    EXPECT_THAT(offered({"doctor", "--"}), Not(Contains("--preload")));
}

TEST(Completion, OffersTheValuesOfAnOption) {
    EXPECT_THAT(offered({"demo", "--only", "m"}), testing::ElementsAre("message"));
    EXPECT_THAT(offered({"completion", ""}), testing::IsSupersetOf({"--help"}));
    EXPECT_THAT(offered({"soft", "run", "--mode", "s"}),
                testing::UnorderedElementsAre("shaped", "strict"));
}

TEST(Completion, KnowsTheWordsOfTheMeasurements) {
    EXPECT_THAT(offered({"bench", ""}), testing::IsSupersetOf({"bars", "flow", "limits"}));
    EXPECT_THAT(offered({"bench", "fl"}), testing::ElementsAre("flow"));
    EXPECT_THAT(offered({"bench", "flow", "--"}), testing::IsSupersetOf({"--plots", "--quick"}));
    EXPECT_THAT(offered({"bench", "flow", "--mode", "fas"}), testing::ElementsAre("fast"));
    EXPECT_THAT(offered({"bench", ""}), Not(Contains("syntax")));
}

TEST(Completion, LeavesAProgramsOwnWordsAlone) {
    EXPECT_THAT(offered({"soft", "run", "--", "bas"}), Contains("bash"));
    EXPECT_THAT(offered({"soft", "run", "--", "bas"}), Not(Contains("--mode")));
}

TEST(Completion, OfEveryShellIsWithoutErrorsOfSyntax) {
    for (const char* const shell : {"bash", "zsh", "fish"}) {
        const Outcome outcome = run_line("command -v " + std::string{shell} +
                                         " >/dev/null || exit 0; \"$0\" completion " + shell +
                                         " | " + shell + " -n 2>&1");
        EXPECT_TRUE(outcome.exit.success()) << shell << outcome.text;
        EXPECT_EQ(outcome.text, "") << shell;
    }
}

TEST(Completion, RefusesAShellItDoesNotKnow) {
    const Outcome outcome = run_command({"completion", "tcsh"});
    EXPECT_TRUE(outcome.exit.exited_with(2)) << outcome.exit;
    EXPECT_THAT(outcome.text, HasSubstr("tcsh"));
}

}  // namespace
}  // namespace millrace::tools
