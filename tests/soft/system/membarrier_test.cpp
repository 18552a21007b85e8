// A program that forbids itself membarrier(2) when the device is open already: the frequent sides
// of fences go on relying on it.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "millrace/base/detail/system_calls.hpp"
#include "support/child_process.hpp"
#include "support/withheld_copies.hpp"
#include "system/fences.hpp"

namespace millrace::test {
namespace {

/// System calls of one fence. What it must do without membarrier is to wait until what was stored
/// is seen, which no test can catch it at not doing where processors are rare: the window is some
/// nanoseconds wide.
std::uint64_t calls_of_a_fence() {
    const std::uint64_t before = base::system_calls_of_this_thread();
    soft::heavy_fence();
    return base::system_calls_of_this_thread() - before;
}

MILLRACE_CHILD(fence_under_a_filter) {
    if (!soft::register_for_membarrier()) {
        say("impossible");
        return 0;
    }
    const std::uint64_t allowed = calls_of_a_fence();
    if (!withhold_membarrier()) {
        say("impossible");
        return 0;
    }
    say(std::to_string(allowed) + ' ' + std::to_string(calls_of_a_fence()));
    return 0;
}

TEST(Membarrier, ThatIsForbiddenLaterIsWaitedForInstead) {
    ChildProcess child = ChildProcess::start("fence_under_a_filter");
    const auto answer = child.read_line();
    if (answer == "impossible") GTEST_SKIP() << "no membarrier here, or no filters";
    EXPECT_EQ(answer, "1 2") << "calls of a fence before and after";
    EXPECT_TRUE(child.wait().success());
}

}  // namespace
}  // namespace millrace::test
