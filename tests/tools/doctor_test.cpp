// `millrace doctor` as a user and as a script read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/command.hpp"

namespace millrace::tools {
namespace {

using millrace::test::run_line;
using Outcome = millrace::test::CommandOutcome;
using testing::AllOf;
using testing::HasSubstr;

nlohmann::json find(const std::string& text, const std::string& check) {
    for (const auto& one : nlohmann::json::parse(text)) {
        if (one["check"] == check) return one;
    }
    return nullptr;
}

TEST(Doctor, NamesEveryCheckWithItsVerdict) {
    const Outcome outcome = run_line("exec \"$0\" doctor --json");
    bool failed = false;
    for (const char* const check :
         {"kernel modules", "rdma_cm", "device soft0", "wire MTU", "wire port", "wire buffers",
          "memlock", "open files", "memory files", "/dev/shm",
          "huge pages", "container memory", "ptrace scope", "pid namespace", "membarrier", "cores",
          "clock"}) {
        const auto one = find(outcome.text, check);
        ASSERT_FALSE(one.is_null()) << check << " is missing in\n" << outcome.text;
        const std::string verdict = one["verdict"];
        EXPECT_THAT(verdict, testing::AnyOf("ok", "warn", "fail")) << check;
        EXPECT_NE(one["found"], "") << check;
        // Who is told of a trouble is told what to do, too.
        EXPECT_EQ(verdict == "ok", one["means"] == "") << one;
        EXPECT_EQ(verdict == "ok", one["remedy"] == "") << one;
        failed = failed || verdict == "fail";
    }
    EXPECT_TRUE(outcome.exit.exited_with(failed ? 1 : 0)) << outcome.exit;
}

TEST(Doctor, SucceedsWhereTheSoftDeviceRuns) {
    const Outcome outcome = run_line("exec \"$0\" doctor");
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("device soft0"), HasSubstr(" 0 failed")));
}

TEST(Doctor, FailsWhereNoDeviceCanBeOpenedAndSaysWhatToDo) {
    const Outcome outcome = run_line("exec \"$0\" doctor 2>&1", {}, {"MILLRACE_FABRIC=a b"});
    EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << '\n' << outcome.text;
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("fail  device soft0"), HasSubstr("to do: set MILLRACE_FABRIC")));
}

TEST(Doctor, SeesSmallLimits) {
    const Outcome outcome = run_line("ulimit -l 64 && ulimit -n 100 && exec \"$0\" doctor --json");
    const auto memlock = find(outcome.text, "memlock");
    EXPECT_EQ(memlock["verdict"], "warn");
    EXPECT_EQ(memlock["found"], "64 KiB");
    const auto files = find(outcome.text, "open files");
    EXPECT_EQ(files["verdict"], "warn");
    EXPECT_EQ(files["found"], "100");
    EXPECT_THAT(files["remedy"].get<std::string>(), HasSubstr("ulimit -n"));
}

TEST(Doctor, SeesThatThereIsOneCore) {
    const Outcome outcome = run_line(
        "exec taskset -c \"$(taskset -cp $$ | sed 's/.*: //;s/[-,].*//')\" "
        "\"$0\" doctor --json");
    EXPECT_EQ(find(outcome.text, "cores")["verdict"], "warn") << outcome.text;
}

}  // namespace
}  // namespace millrace::tools
