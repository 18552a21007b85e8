// The clock stays on CLOCK_MONOTONIC's time line and never goes back.
#include "millrace/base/clock.hpp"

#include <atomic>
#include <cstdint>
#include <ctime>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/child_process.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

std::int64_t system_now() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t clock_now() { return Clock::now().time_since_epoch().count(); }

/// Reads between two readings of the system clock, for `span` of it: however long the machine
/// holds the test up, the time in between must lie in between, but for `slack`.
int readings_off_the_line(std::chrono::nanoseconds span, std::chrono::nanoseconds slack) {
    int off = 0;
    const std::int64_t end = system_now() + span.count();
    for (std::int64_t before = system_now(); before < end; before = system_now()) {
        const std::int64_t now = clock_now();
        const std::int64_t after = system_now();
        if (now < before - slack.count() || now > after + slack.count()) ++off;
    }
    return off;
}

TEST(Clock, IsOnTheTimeLineOfTheMonotonicSystemClock) {
    EXPECT_EQ(readings_off_the_line(400ms, 1ms), 0);
}

MILLRACE_CHILD(clock_forks) {
    static_cast<void>(Clock::now());
    const pid_t pid = fork();
    const int off = readings_off_the_line(100ms, 1ms);
    if (pid == 0) _exit(off == 0 ? 0 : 1);
    int status = -1;
    waitpid(pid, &status, 0);
    return off == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

TEST(Clock, GoesOnInAForkedChild) {
    auto child = test::ChildProcess::start("clock_forks");
    EXPECT_TRUE(child.wait().success());
}

/// Later instructions, reading the counter included, begin when earlier loads are done.
void wait_for_loads() {
#if defined(__x86_64__)
    __builtin_ia32_lfence();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

TEST(Clock, NeverGoesBackInAnyThreadWhileItIsCorrected) {
    // 400 ms see the corrections at 10, 30, 70, 150 and 310 ms of a fresh process.
    const std::int64_t end = system_now() + 400'000'000;
    std::atomic<int> steps_back{0};
    std::atomic<std::int64_t> handed_over{0};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            std::int64_t last = clock_now();
            while (system_now() < end) {
                // The counter is read without a fence. It must not be read before `seen` is here:
                // a line that other threads store to all the time takes microseconds to come.
                const std::int64_t seen = handed_over.load(std::memory_order_acquire);
                wait_for_loads();
                const std::int64_t now = clock_now();
                if (now < last || now + 1'000 < seen) steps_back.fetch_add(1);
                last = now;
                handed_over.store(now, std::memory_order_release);
            }
        });
    }
    threads.clear();
    EXPECT_EQ(steps_back.load(), 0);
}

TEST(Ticks, NeverGoBackOnOneThread) {
    std::uint64_t last = ticks();
    for (int i = 0; i < 100'000; ++i) {
        const std::uint64_t now = ticks();
        ASSERT_GE(now, last);
        last = now;
    }
}

TEST(Ticks, AreAtLeastOneForAnyDuration) {
    EXPECT_GE(ticks_in(0ns), 1U);
    EXPECT_GE(ticks_in(-1s), 1U);
    EXPECT_GE(ticks_in(1ns), 1U);
}

TEST(Ticks, GrowInProportionToTheDuration) {
    const auto second = static_cast<double>(ticks_in(1s));
    EXPECT_NEAR(static_cast<double>(ticks_in(1ms)) * 1000.0, second, second * 0.001);
    EXPECT_NEAR(static_cast<double>(ticks_in(1h)), second * 3600.0, second * 3.6);
}

TEST(Ticks, OfTheLongestDurationDoNotOverflow) {
    EXPECT_GE(ticks_in(std::chrono::nanoseconds::max()), ticks_in(24h * 365 * 100));
}

TEST(Ticks, MeasureTheSameIntervalAsTheSystemClock) {
    const std::int64_t outer_start = system_now();
    const std::uint64_t first = ticks();
    const std::int64_t inner_start = system_now();
    while (system_now() - inner_start < 20'000'000) {
    }
    const std::int64_t inner_end = system_now();
    const std::uint64_t last = ticks();
    const std::int64_t outer_end = system_now();
    const auto elapsed = static_cast<double>(last - first);
    // The counted interval lies between the inner and the outer one; the rate is good to 1 %.
    EXPECT_GE(elapsed * 1.01,
              static_cast<double>(ticks_in(std::chrono::nanoseconds{inner_end - inner_start})));
    EXPECT_LE(elapsed * 0.99,
              static_cast<double>(ticks_in(std::chrono::nanoseconds{outer_end - outer_start})));
}

}  // namespace
}  // namespace millrace::base
