// When a poller offers its processor to others.
#include "millrace/base/detail/yielding.hpp"

#include <chrono>
#include <cstdlib>

#include <gtest/gtest.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t start = 1'000'000'000;

TEST(Yielding, KeepsTheProcessorWhileItsPatienceLasts) {
    Yielding yielding{Yields::as_needed};
    yielding.begin(start, 100);
    EXPECT_FALSE(yielding.due(start + 99));
    EXPECT_TRUE(yielding.due(start + 100));
}

TEST(Yielding, OffersAProcessorThatNobodyTakesLessAndLessOften) {
    Yielding yielding{Yields::as_needed};
    yielding.begin(start, 0);
    yielding.note(start, 0);
    EXPECT_FALSE(yielding.due(start));
    EXPECT_TRUE(yielding.due(start + ticks_in(10us)));
    yielding.note(start, 0);
    EXPECT_FALSE(yielding.due(start + ticks_in(10us)));
    for (int i = 0; i < 100; ++i) yielding.note(start, 0);
    EXPECT_TRUE(yielding.due(start + ticks_in(1ms)));
}

TEST(Yielding, RemembersThatNobodyTookItWhenItIsIdleAgain) {
    Yielding yielding{Yields::as_needed};
    for (int i = 0; i < 100; ++i) yielding.note(start, 0);
    yielding.begin(start, ticks_in(20us));
    EXPECT_FALSE(yielding.due(start + ticks_in(100us)));
    EXPECT_TRUE(yielding.due(start + ticks_in(1ms)));
}

TEST(Yielding, OffersAProcessorThatSomebodyTookAtEachLook) {
    Yielding yielding{Yields::as_needed};
    for (int i = 0; i < 100; ++i) yielding.note(start, 0);
    yielding.note(start, ticks_in(50us));
    EXPECT_TRUE(yielding.due(start));
}

TEST(Yielding, AlwaysOffersItOncePatienceIsOver) {
    Yielding yielding{Yields::always};
    yielding.begin(start, 100);
    EXPECT_FALSE(yielding.due(start + 99));
    for (int i = 0; i < 100; ++i) yielding.note(start + 100, 0);
    EXPECT_TRUE(yielding.due(start + 100));
}

TEST(Yielding, NeverOffersItIfItIsNotTo) {
    Yielding yielding{Yields::never};
    yielding.begin(start, 0);
    EXPECT_FALSE(yielding.due(start + ticks_in(1s)));
}

TEST(Yielding, OfferingIsASystemCall) {
    Yielding yielding{Yields::always};
    const std::uint64_t before = system_calls_of_this_thread();
    yielding.offer();
    // More, where it was taken: to see by whom.
    EXPECT_GE(system_calls_of_this_thread() - before, 1U);
}

TEST(Yielding, ReadsTheEnvironmentAndRefusesAValueThatThereIsNot) {
    const auto with = [](const char* value) {
        setenv("MILLRACE_YIELD", value, 1);
        return yields_of_environment();
    };
    EXPECT_EQ(with("always"), Yields::always);
    EXPECT_EQ(with("never"), Yields::never);
    EXPECT_EQ(with("auto"), Yields::as_needed);
    EXPECT_EQ(with(""), Yields::as_needed);
    EXPECT_THROW(static_cast<void>(with("seldom")), Error);
    unsetenv("MILLRACE_YIELD");
    EXPECT_EQ(yields_of_environment(), Yields::as_needed);
}

TEST(Yielding, AWaitTellsWhatItAsksThatThePolicyIsItsOwn) {
    EXPECT_FALSE(WaitsByPolicy::here());
    NapParker parker;
    int looks = 0;
    bool told = false;
    const auto ready = [&] {
        told = WaitsByPolicy::here();
        return ++looks == 3;
    };
    EXPECT_EQ(wait_until(ready, Deadline::after(10s), WaitPolicy{}, parker), Status::ok);
    EXPECT_TRUE(told);
    EXPECT_FALSE(WaitsByPolicy::here());
}

}  // namespace
}  // namespace millrace::base
