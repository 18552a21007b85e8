// Who says when a poller of the soft device gives its processor away: the environment, and a wait
// of the library by its own policy.
#include <chrono>
#include <cstdlib>

#include <gtest/gtest.h>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/wait.hpp"
#include "soft/station.hpp"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

/// Of the devices that are opened while it lives.
struct YieldScope {
    explicit YieldScope(const char* value) { setenv("MILLRACE_YIELD", value, 1); }
    ~YieldScope() { unsetenv("MILLRACE_YIELD"); }
    YieldScope(const YieldScope&) = delete;
    YieldScope& operator=(const YieldScope&) = delete;
};

std::uint64_t calls() { return base::system_calls_of_this_thread(); }

/// Polls an empty queue for so long; how many system calls that made.
std::uint64_t calls_of_polls(Pair& pair, std::chrono::nanoseconds time) {
    const std::uint64_t before = calls();
    const auto end = base::Clock::now() + time;
    while (base::Clock::now() < end) EXPECT_FALSE(pair.left.poll_once());
    return calls() - before;
}

/// Peers' deaths are looked for every 50 ms, which is a system call or two. How long the polls
/// really took depends on what else runs here.
std::uint64_t calls_of_looks(base::Clock::time_point since) {
    return 4 * static_cast<std::uint64_t>(2 + (base::Clock::now() - since) / 50ms);
}

TEST(IdleYield, APollerThatIsNeverToYieldMakesNoSystemCalls) {
    const YieldScope never{"never"};
    Pair pair;
    const auto begin = base::Clock::now();
    const std::uint64_t made = calls_of_polls(pair, 20ms);
    EXPECT_LE(made, calls_of_looks(begin));
}

TEST(IdleYield, APollerThatIsAlwaysToYieldDoesSoAtEachPoll) {
    const YieldScope always{"always"};
    Pair pair;
    std::uint64_t made = 0;
    for (int i = 0; i < 1000 && made < 100; ++i) made += calls_of_polls(pair, 2ms);
    EXPECT_GE(made, 100U);
}

TEST(IdleYield, AWaitThatSpinsIsNotMadeToYieldByWhatItPolls) {
    const YieldScope always{"always"};
    Pair pair;
    base::NapParker parker;
    const std::uint64_t before = calls();
    const auto begin = base::Clock::now();
    const auto end = begin + 20ms;
    const auto over = [&] {
        EXPECT_FALSE(pair.left.poll_once());
        return base::Clock::now() >= end;
    };
    EXPECT_EQ(
        base::wait_until(over, base::Deadline::after(10s), base::WaitPolicy{.spin = 10s}, parker),
        base::Status::ok);
    const std::uint64_t made = calls() - before;
    EXPECT_LE(made, calls_of_looks(begin));
}

TEST(IdleYield, AValueThatThereIsNotKeepsTheDeviceFromBeingOpened) {
    const YieldScope wrong{"sometimes"};
    EXPECT_EQ(soft::open_device(soft::device_list(nullptr)[0]), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace millrace::test
