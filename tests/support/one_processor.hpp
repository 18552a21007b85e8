// Threads that share one processor: tests of who runs when the others wait.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>

#include "millrace/base/wait.hpp"

namespace millrace::test {

/// The calling thread runs on one processor alone, of those that it may run on. Threads that it
/// makes meanwhile do so for good.
class OnOneProcessor {
  public:
    OnOneProcessor() {
        EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
        int first = 0;
        while (!CPU_ISSET(first, &before_)) ++first;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    }
    OnOneProcessor(const OnOneProcessor&) = delete;
    OnOneProcessor& operator=(const OnOneProcessor&) = delete;
    ~OnOneProcessor() { (void)sched_setaffinity(0, sizeof before_, &before_); }

  private:
    cpu_set_t before_{};
};

/// Looks, and gives the processor away in between; never sleeps.
inline constexpr base::WaitPolicy yielding{std::chrono::nanoseconds{0},
                                           std::chrono::nanoseconds::max(), false};

}  // namespace millrace::test
