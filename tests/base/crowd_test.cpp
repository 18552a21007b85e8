// What offers of the processor say of a process's own threads, and waits that go by it.
#include "millrace/base/crowd.hpp"

#include <cstdint>
#include <functional>
#include <utility>

#include <gtest/gtest.h>

namespace millrace::base {
namespace {

using namespace std::chrono_literals;
using Taken = Crowd::Taken;

const std::uint64_t start = 1'000'000'000;

TEST(Crowd, IsNotWhereNobodyElseHadATurn) {
    Crowd crowd;
    EXPECT_EQ(crowd.came_back(start, ticks_in(10us), crowd.returns()), Taken::by_others);
    EXPECT_EQ(crowd.came_back(start, ticks_in(10us), crowd.returns()), Taken::by_others);
    EXPECT_FALSE(crowd.is_here(start));
}

TEST(Crowd, IsWhereOthersHadTheirTurnsMeanwhile) {
    Crowd crowd;
    const std::uint64_t seen = crowd.returns();
    for (int other = 0; other < 30; ++other) {
        (void)crowd.came_back(start, ticks_in(1us), crowd.returns());
    }
    EXPECT_FALSE(crowd.is_here(start));
    EXPECT_EQ(crowd.came_back(start, ticks_in(1ms), seen), Taken::by_crowd);
    EXPECT_TRUE(crowd.is_here(start));
    EXPECT_TRUE(crowd.is_here(start + ticks_in(1ms)));
    EXPECT_FALSE(crowd.is_here(start + ticks_in(3ms)));
}

TEST(Crowd, DoesNotAccountForTheTurnOfAProgramThatComputes) {
    Crowd crowd;
    const std::uint64_t seen = crowd.returns();
    for (int other = 0; other < 30; ++other) {
        (void)crowd.came_back(start, ticks_in(1us), crowd.returns());
    }
    EXPECT_EQ(crowd.came_back(start, ticks_in(4ms), seen), Taken::by_others);
    EXPECT_FALSE(crowd.is_here(start));
}

TEST(Crowd, IsNotWhereOtherProgramsTakeTheProcessors) {
    Crowd crowd;
    std::uint64_t seen = crowd.returns();
    (void)crowd.came_back(start, ticks_in(10us), seen);
    EXPECT_EQ(crowd.came_back(start, ticks_in(20us), seen), Taken::by_crowd);
    EXPECT_TRUE(crowd.is_here(start));
    seen = crowd.returns();
    EXPECT_EQ(crowd.came_back(start, ticks_in(4ms), seen), Taken::by_others);
    EXPECT_FALSE(crowd.is_here(start));
    // Short turns among its own threads are no sign that they have gone.
    EXPECT_EQ(crowd.came_back(start, ticks_in(20us), seen), Taken::by_crowd);
    EXPECT_FALSE(crowd.is_here(start));
    for (int other = 0; other < 30; ++other) {
        (void)crowd.came_back(start, ticks_in(1us), crowd.returns());
    }
    seen = crowd.returns() - 30;
    for (int lap = 0; lap < 20; ++lap) (void)crowd.came_back(start, ticks_in(1ms), seen);
    EXPECT_TRUE(crowd.is_here(start));
}

/// Calls `on_park` instead of sleeping.
class CallingParker final : public Parker {
  public:
    explicit CallingParker(std::function<void()> on_park) : on_park_{std::move(on_park)} {}
    void prepare() override {}
    void park(std::chrono::nanoseconds /*limit*/, const Cancellation* /*cancellation*/) override {
        on_park_();
    }
    void retract() override {}

  private:
    std::function<void()> on_park_;
};

TEST(WaitInTurns, TimesOutUnderEveryPolicy) {
    for (const WaitPolicy policy :
         {WaitPolicy{}, WaitPolicy::polling(), WaitPolicy::blocking(), WaitPolicy::adaptive()}) {
        NapParker parker;
        EXPECT_EQ(wait_in_turns([] { return false; }, Deadline::after(1ms), policy, parker),
                  Status::timed_out);
    }
}

TEST(WaitInTurns, SpinsAndOffersBeforeItSleeps) {
    CallingParker parker{[] { FAIL() << "it slept"; }};
    int asked = 0;
    EXPECT_EQ(wait_in_turns([&] { return ++asked == 1000; }, Deadline::never(), {1h, 1h}, parker),
              Status::ok);
}

TEST(WaitInTurns, IsCancelled) {
    Cancellation cancellation;
    CallingParker parker{[] { FAIL() << "it slept"; }};
    const auto ready = [&] {
        cancellation.request();
        return false;
    };
    EXPECT_EQ(wait_in_turns(ready, Deadline::never().cancelled_by(cancellation), {1h, 1h}, parker),
              Status::cancelled);
}

TEST(WaitInTurns, SpinsForAShortTimeInACrowd) {
    Crowd crowd;
    const std::uint64_t seen = crowd.returns();
    const std::uint64_t in_an_hour = ticks() + ticks_in(1h);
    (void)crowd.came_back(in_an_hour, 1, seen);
    (void)crowd.came_back(in_an_hour, 1, seen);
    bool has_slept = false;
    CallingParker parker{[&] { has_slept = true; }};
    EXPECT_EQ(
        wait_in_turns([&] { return has_slept; }, Deadline::after(20s), {1h, 1ns}, parker, crowd),
        Status::ok);
    EXPECT_TRUE(has_slept);
}

}  // namespace
}  // namespace millrace::base
