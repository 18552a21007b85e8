// The tests' own tools: processes that tests start (tests/support/child_process.hpp).
#include "support/child_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

MILLRACE_CHILD(echo) {
    while (auto line = hear()) say(*line);
    return 0;
}

MILLRACE_CHILD(tell_arguments) {
    for (const auto& argument : arguments) say(argument);
    const char* value = std::getenv("MILLRACE_TEST_VALUE");
    say(value != nullptr ? value : "unset");
    return static_cast<int>(arguments.size());
}

MILLRACE_CHILD(throw_something) { throw std::runtime_error{"as told"}; }

TEST(ChildProcess, TalksInLinesAndEndsAtEndOfFile) {
    ChildProcess child = ChildProcess::start("echo");
    EXPECT_TRUE(child.write_line("first"));
    EXPECT_TRUE(child.write_line("second"));
    EXPECT_EQ(child.read_line(), "first");
    EXPECT_EQ(child.read_line(), "second");
    child.close_input();
    EXPECT_EQ(child.read_line(), std::nullopt);
    EXPECT_TRUE(child.wait().success());
    EXPECT_TRUE(child.wait().success()) << "asked again, it answers the same";
}

TEST(ChildProcess, PassesArgumentsEnvironmentAndExitCode) {
    ChildProcess child =
        ChildProcess::start("tell_arguments", {"one", "two words"}, {"MILLRACE_TEST_VALUE=7"});
    EXPECT_EQ(child.read_line(), "one");
    EXPECT_EQ(child.read_line(), "two words");
    EXPECT_EQ(child.read_line(), "7");
    EXPECT_TRUE(child.wait().exited_with(2));
}

TEST(ChildProcess, TellsTheSignalThatKilledIt) {
    ChildProcess child = ChildProcess::start("echo");
    child.kill();
    EXPECT_TRUE(child.wait().killed_by(SIGKILL));
    EXPECT_FALSE(child.write_line("anyone?"));
}

TEST(ChildProcess, StaysSilentWhileStoppedAndGoesOnAfterwards) {
    ChildProcess child = ChildProcess::start("echo");
    child.write_line("up");
    ASSERT_EQ(child.read_line(), "up");
    ASSERT_TRUE(child.stop());
    child.write_line("held");
    EXPECT_EQ(child.read_line(50ms), std::nullopt);
    EXPECT_EQ(child.wait(0ms).how, Exit::How::timed_out);
    child.resume();
    EXPECT_EQ(child.read_line(), "held");
}

TEST(ChildProcess, ReportsAnExceptionAsAnExitCode) {
    EXPECT_TRUE(ChildProcess::start("throw_something").wait().exited_with(125));
}

TEST(ChildProcess, IsKilledAndReapedWhenItGoesOutOfScope) {
    pid_t pid = 0;
    {
        ChildProcess child = ChildProcess::start("echo");
        pid = child.pid();
        EXPECT_EQ(::kill(pid, 0), 0);
    }
    EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(ChildProcess, RunsOtherPrograms) {
    ChildProcess child = ChildProcess::start_program({"printf", "a\\nb"});
    EXPECT_EQ(child.read_all(), "a\nb");
    EXPECT_TRUE(child.wait().success());
    EXPECT_TRUE(ChildProcess::start_program({"no-such-program"}).wait().exited_with(127));
}

TEST(ChildProcess, RefusesAChildThatDoesNotExist) {
    EXPECT_THROW((void)ChildProcess::start("nobody"), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::test
