// `millrace devices` as a user and as a script read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/command.hpp"

namespace millrace::tools {
namespace {

using Outcome = millrace::test::CommandOutcome;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Outcome devices(const std::string& arguments, std::vector<std::string> environment = {}) {
    return millrace::test::run_line("exec \"$0\" devices " + arguments, {}, std::move(environment));
}

TEST(Devices, SayInWordsThatRegionsMayHaveAnySize) {
    const Outcome outcome = devices("2>&1");
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("soft0"), HasSubstr("regions of any size"),
                                    Not(HasSubstr("18446744073709551615"))));
}

TEST(Devices, KeepTheNumberForPrograms) {
    const Outcome outcome = devices("--json");
    EXPECT_TRUE(outcome.exit.success());
    const auto list = nlohmann::json::parse(outcome.text);
    bool found = false;
    for (const auto& device : list) {
        if (device["name"] != "soft0") continue;
        found = true;
        EXPECT_EQ(device["max_region_bytes"].get<std::uint64_t>(),
                  std::numeric_limits<std::uint64_t>::max());
    }
    EXPECT_TRUE(found) << outcome.text;
}

TEST(Devices, FailWithAReasonWhenNoneCanBeOpened) {
    // What opens beside the soft device on this machine does not depend on the fabric's name.
    const auto list = nlohmann::json::parse(devices("--json").text);
    if (list.size() != 1) GTEST_SKIP() << "this machine has other devices";
    for (const char* const arguments : {"2>&1", "--json 2>&1"}) {
        const Outcome outcome = devices(arguments, {"MILLRACE_FABRIC=a b"});
        EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << '\n' << outcome.text;
        EXPECT_THAT(outcome.text,
                    AllOf(HasSubstr("set MILLRACE_FABRIC"), HasSubstr("no device can be opened")));
    }
}

}  // namespace
}  // namespace millrace::tools
