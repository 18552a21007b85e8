// What each test costs: with MILLRACE_TEST_CPU set, a test program prints the processor time of
// each test behind it, that of the processes that it has started and waited for included.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

namespace millrace::test {

class ProcessorTime : public testing::EmptyTestEventListener {
  public:
    /// Of the program that is about to run its tests.
    static void print_if_asked_for() {
        if (std::getenv("MILLRACE_TEST_CPU") == nullptr) return;
        testing::UnitTest::GetInstance()->listeners().Append(new ProcessorTime);
    }

  private:
    static double spent() {
        double seconds = 0;
        for (const auto whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
            rusage usage{};
            ::getrusage(whose, &usage);
            for (const timeval& one : {usage.ru_utime, usage.ru_stime}) {
                seconds +=
                    static_cast<double>(one.tv_sec) + 1e-6 * static_cast<double>(one.tv_usec);
            }
        }
        return seconds;
    }
    void OnTestStart(const testing::TestInfo&) override { before_ = spent(); }
    void OnTestEnd(const testing::TestInfo& test) override {
        std::printf("[ CPU      ] %8.1f ms %s.%s\n", 1e3 * (spent() - before_),
                    test.test_suite_name(), test.name());
    }
    double before_ = 0;
};

}  // namespace millrace::test
