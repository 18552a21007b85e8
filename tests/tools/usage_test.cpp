// Words on the command line that the command does not understand: exit status 2, and the wrong word
// is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/command.hpp"

namespace millrace::tools {
namespace {

using millrace::test::run_command;
using Outcome = millrace::test::CommandOutcome;
using testing::AllOf;
using testing::HasSubstr;

template <class... Words>
void refuses(const std::vector<std::string>& arguments, Words... words) {
    const Outcome outcome = run_command(arguments);
    EXPECT_TRUE(outcome.exit.exited_with(2)) << outcome.exit << '\n' << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr(words)...));
}

TEST(Usage, AnUnknownCommandIsNamedWithThoseThereAre) {
    refuses({"frobnicate"}, "'frobnicate'", "of millrace;",
            "demo, devices, doctor, cat, perf, kv, rpc, soft");
    refuses({"frobnicate", "--loudly"}, "no command 'frobnicate'");
    refuses({"soft", "frobnicate"}, "'frobnicate'", "of millrace soft;", "run, trace, status");
    refuses({"bench", "frobnicate"}, "'frobnicate'", "of millrace bench;", "bars, limits");
}

TEST(Usage, AMissingCommandIsAskedFor) {
    refuses({}, "millrace needs a command", "demo, devices");
    refuses({"soft"}, "millrace soft needs a command", "run, trace");
    refuses({"bench"}, "millrace bench needs a command", "bars, limits");
    refuses({"cat", "listen"}, "the address to listen on");
}

TEST(Usage, AnUnknownOptionIsNamedEvenIfMoreIsWrong) {
    refuses({"doctor", "--frobnicate"}, "no option '--frobnicate' of millrace doctor");
    refuses({"cat", "--frobnicate"}, "no option '--frobnicate' of millrace cat");
    refuses({"bench", "bars", "--frobnicate"}, "no option '--frobnicate' of millrace bench bars");
    refuses({"--frobnicate", "doctor"}, "no option '--frobnicate' of millrace");
}

TEST(Usage, AWordTooManyIsNamed) {
    refuses({"doctor", "house"}, "'house'", "millrace doctor");
    refuses({"bench", "limits", "house"}, "'house'", "millrace bench limits");
    refuses({"cat", "hear", "unix:/nowhere/x"}, "'hear'", "listen");
}

TEST(Usage, AValueOutOfRangeIsNamed) {
    refuses({"demo", "--limit", "0"}, "--limit", "1 or more");
    refuses({"demo", "--limit", "much"}, "--limit", "much");
    refuses({"demo", "--only", "pigeons"}, "pigeons", "flow-1", "message", "tcp");
    refuses({"demo", "--ring", "1000"}, "--ring 1000", "power of two");
    refuses({"demo", "--rounds", "0"}, "--rounds", "0");
    refuses({"bench", "limits", "--rounds", "0"}, "--rounds", "see millrace bench limits --help");
    refuses({"cat", "listen", "unix:/nowhere/x", "--timeout", "0"}, "--timeout", "0");
    refuses({"cat", "not an address"}, "not an address");
    refuses({"soft", "run", "--mode", "wireless", "--", "true"}, "wireless");
}

TEST(Usage, HelpIsNoError) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                      {"cat", "--help"},
                                                      {"soft", "run", "--help"},
                                                      {"bench", "bars", "--help"}}) {
        const Outcome outcome = run_command(arguments);
        EXPECT_TRUE(outcome.exit.success()) << outcome.exit << '\n' << outcome.text;
        EXPECT_THAT(outcome.text, HasSubstr("Usage: "));
    }
}

TEST(Usage, AnUnknownLevelOfTheLogIsRefused) {
    const Outcome outcome = run_command({"devices"}, {"MILLRACE_LOG=loud"});
    EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << '\n' << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("MILLRACE_LOG"), HasSubstr("'loud'"),
                                    HasSubstr("trace, debug, info, warn, error or off")));
}

}  // namespace
}  // namespace millrace::tools
