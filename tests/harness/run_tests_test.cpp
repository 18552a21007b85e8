// scripts/run-tests: what a failure among others, and a second one alone, make of a run.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>

#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::test {
namespace {

/// A build folder whose tests are shell scripts.
class RunTests : public testing::Test {
  protected:
    void add(const std::string& name, const std::string& script) {
        std::ofstream list{build_.path("CTestTestfile.cmake"), std::ios::app};
        list << "add_test(\"" << name << "\" /bin/sh -c [==[" << script << "]==])\n";
    }

    /// A script that fails the first time only, and says so.
    [[nodiscard]] std::string fails_at_first() const {
        const std::string mark = build_.path("seen");
        return "test -e " + mark + " || { touch " + mark + "; echo not yet; exit 1; }";
    }

    Exit run() {
        ChildProcess script = ChildProcess::start_program(
            {MILLRACE_SOURCE_DIR "/scripts/run-tests", build_.path(), "--parallel", "2"});
        std::string text = script.read_all(std::chrono::seconds{60});
        while (!text.empty() && text.back() == '\n') text.pop_back();
        last_line_ = text.substr(text.rfind('\n') + 1);
        return script.wait();
    }

    [[nodiscard]] std::string unsteady() const { return build_.content("unsteady.txt"); }

    TemporaryFolder build_;
    std::string last_line_;
};

TEST_F(RunTests, CountsWhatPasses) {
    add("one", "true");
    add("two", "true");
    EXPECT_TRUE(run().success());
    EXPECT_EQ(last_line_, "2 passed, 0 failed");
    EXPECT_EQ(unsteady(), "");
}

TEST_F(RunTests, CallsATestUnsteadyThatPassesAlone) {
    add("steady", "true");
    add("suite.At/1", fails_at_first());
    EXPECT_TRUE(run().success());
    EXPECT_EQ(last_line_, "2 passed, 0 failed, 1 unsteady: suite.At/1");
    EXPECT_NE(unsteady().find("not yet"), std::string::npos) << unsteady();
    EXPECT_TRUE(run().success()) << "the run that follows knows nothing of it";
    EXPECT_EQ(last_line_, "2 passed, 0 failed");
    EXPECT_EQ(unsteady(), "");
}

TEST_F(RunTests, FailsWhereATestFailsTwice) {
    add("broken", "false");
    add("suite.At/1", fails_at_first());
    EXPECT_TRUE(run().exited_with(1));
    EXPECT_EQ(last_line_, "1 passed, 1 failed, 1 unsteady: suite.At/1");
}

TEST_F(RunTests, RunsNothingAgainWhereMoreFailThanByAccident) {
    for (int i = 0; i != 40; ++i) add("broken." + std::to_string(i), "false");
    add("suite.At/1", fails_at_first());
    EXPECT_TRUE(run().exited_with(1));
    EXPECT_EQ(last_line_, "0 passed, 41 failed");
}

TEST_F(RunTests, RefusesABuildWithoutTests) {
    std::ofstream{build_.path("CTestTestfile.cmake")} << "";
    EXPECT_TRUE(run().exited_with(2));
}

}  // namespace
}  // namespace millrace::test
