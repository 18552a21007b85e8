// Waits that adapt: what an estimate makes of the waits it is told of, and what waits make of it.
#include "millrace/base/wait_estimate.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

constexpr auto cost = 30us;
using End = WaitEstimate::End;

class WaitEstimateOf30us : public testing::Test {
  protected:
    /// A wait that ends so, behind `gap`: it looked for so long, or for 220 us and slept for the
    /// rest and a wake-up. True: it looked.
    bool wait(std::chrono::nanoseconds gap, End how = End::spun) {
        now += ticks_in(1ms);
        plan = estimate.begin(now);
        const bool looks = plan.offer != 0;
        const auto look = !looks ? 0us : how == End::slept ? 220us : gap;
        if (!looks) how = End::slept;
        const auto slept =
            how == End::slept ? gap - std::min<std::chrono::nanoseconds>(gap, look) + cost : 0us;
        moves +=
            estimate.ended(looks ? ticks_in(look) : 0, how == End::slept ? ticks_in(slept) : 0, how)
                ? 1
                : 0;
        return looks;
    }
    /// One that gives up behind so long a look. True: it looked.
    bool give_up(std::chrono::nanoseconds look) {
        now += ticks_in(1ms);
        plan = estimate.begin(now);
        const bool looks = plan.offer != 0;
        estimate.gave_up(looks ? ticks_in(look) : 0);
        return looks;
    }
    [[nodiscard]] WaitReason reason() const { return estimate.facts().reason; }

    WaitEstimate estimate{cost};
    WaitEstimate::Plan plan;
    std::uint64_t now = ticks_in(1s);
    int moves = 0;
};

TEST_F(WaitEstimateOf30us, LooksAtFirstAndWhileGapsAreShort) {
    EXPECT_EQ(reason(), WaitReason::none_yet);
    EXPECT_TRUE(wait(5us));
    EXPECT_EQ(reason(), WaitReason::none_yet);
    for (int i = 0; i != 99; ++i) EXPECT_TRUE(wait(5us)) << i;
    EXPECT_EQ(reason(), WaitReason::short_gaps);
    const WaitFacts facts = estimate.facts();
    EXPECT_NEAR(static_cast<double>(facts.expected_gap.count()), 5000, 200);
    EXPECT_NEAR(static_cast<double>(facts.wake_up_cost.count()), 30'000, 200);
    EXPECT_EQ(facts.spun, 100U);
    EXPECT_EQ(facts.slept, 0U);
}

TEST_F(WaitEstimateOf30us, LooksWhileMostLooksSeeWhatTheyAreFor) {
    for (int i = 0; i != 100; ++i) EXPECT_TRUE(wait(150us)) << i;
    // Of two looks one is in vain: 370 us each time that one is not.
    for (int i = 0; i != 100; ++i)
        EXPECT_TRUE(wait(150us, i % 2 == 0 ? End::slept : End::spun)) << i;
    EXPECT_NEAR(estimate.facts().found, 0.5, 0.1);
}

TEST_F(WaitEstimateOf30us, SleepsAtOnceWhereLooksAreInVainThoughGapsAreBelowSixteenWakeUps) {
    for (int i = 0; i != 50; ++i) (void)wait(2us);
    int looked = 0;
    while (wait(300us, End::slept)) ASSERT_LT(++looked, 16);
    EXPECT_EQ(reason(), WaitReason::long_gaps);
}

TEST_F(WaitEstimateOf30us, GoesOnLookingWhereSleepsAreLongAndFew) {
    for (int i = 0; i != 1000; ++i)
        EXPECT_TRUE(wait(i % 4 == 3 ? 1s : 8us, i % 4 == 3 ? End::slept : End::offered)) << i;
}

TEST_F(WaitEstimateOf30us, LearnsOfWaitsThatGiveUp) {
    for (int i = 0; i != 50; ++i) (void)wait(2us);
    // Two make a look that was in vain, as each alone is shorter.
    int looked = 0;
    while (give_up(110us)) ASSERT_LT(++looked, 32);
    EXPECT_GT(looked, 8);
    EXPECT_EQ(reason(), WaitReason::long_gaps);
    EXPECT_FALSE(give_up(110us));
}

TEST_F(WaitEstimateOf30us, LearnsNothingOfWhoAsksOnce) {
    for (int i = 0; i != 10'000; ++i) EXPECT_TRUE(give_up(500ns)) << i;
    EXPECT_TRUE(wait(5us));
    EXPECT_EQ(estimate.facts().found, 1);
}

TEST_F(WaitEstimateOf30us, GoesOnWithATrialThatGaveUpTooSoon) {
    for (int i = 0; i != 10; ++i) (void)wait(1s, End::slept);
    int slept = 0;
    while (!give_up(10us)) ASSERT_LT(++slept, 16);
    EXPECT_TRUE(give_up(10us));
    EXPECT_EQ(reason(), WaitReason::trial);
    EXPECT_TRUE(wait(10us));
    EXPECT_TRUE(wait(10us));
    EXPECT_EQ(reason(), WaitReason::short_gaps);
}

TEST_F(WaitEstimateOf30us, SleepsAtOnceWhereGapsAreLongAndTriesLessAndLessOften) {
    (void)wait(1ms, End::slept);
    int looked = 0;
    for (int i = 0; i != 1024; ++i) looked += wait(1ms, End::slept) ? 1 : 0;
    // The 16th, the 32nd behind it, the 64th, the 128th, and each 256th.
    EXPECT_EQ(looked, 7);
    EXPECT_FALSE(wait(1ms));
    EXPECT_EQ(reason(), WaitReason::long_gaps);
}

TEST_F(WaitEstimateOf30us, LooksAgainOnceATrialWasNotInVain) {
    for (int i = 0; i != 10; ++i) (void)wait(1s, End::slept);
    ASSERT_FALSE(wait(2us));
    int slept = 0;
    while (!wait(2us)) ASSERT_LT(++slept, 16);
    EXPECT_EQ(reason(), WaitReason::trial);
    EXPECT_TRUE(wait(2us));
    EXPECT_EQ(reason(), WaitReason::short_gaps);
}

TEST_F(WaitEstimateOf30us, GoesOnLookingBehindOneLongGapAmongManyShortOnes) {
    for (int i = 0; i != 50; ++i) (void)wait(2us);
    (void)wait(1h, End::slept);
    for (int i = 0; i != 100; ++i) EXPECT_TRUE(wait(2us)) << i;
}

TEST_F(WaitEstimateOf30us, SpinsForLessWhileOffersAreTaken) {
    (void)wait(2us);
    EXPECT_EQ(plan.spin, ticks_in(20us));
    EXPECT_EQ(estimate.taken(now), ticks_in(4us));
    (void)wait(2us);
    EXPECT_EQ(plan.spin, ticks_in(3us));
    EXPECT_EQ(reason(), WaitReason::crowded);
    now += ticks_in(2ms);
    (void)wait(2us);
    EXPECT_EQ(plan.spin, ticks_in(20us));
    EXPECT_EQ(reason(), WaitReason::short_gaps);
}

TEST_F(WaitEstimateOf30us, MovesWhereOffersAloneBringWhatIsAwaited) {
    for (int i = 0; i != 31; ++i) (void)wait(8us, End::offered);
    EXPECT_EQ(moves, 0);
    (void)wait(8us, End::offered);
    EXPECT_EQ(moves, 1);
    // And less and less often, while that does not help.
    for (int i = 0; i != 63; ++i) (void)wait(8us, End::offered);
    EXPECT_EQ(moves, 1);
    (void)wait(8us, End::offered);
    EXPECT_EQ(moves, 2);
}

TEST_F(WaitEstimateOf30us, StaysWhereSpinningBringsItNowAndThen) {
    for (int i = 0; i != 1000; ++i) (void)wait(2us, i % 20 == 0 ? End::spun : End::offered);
    EXPECT_EQ(moves, 0);
}

/// Counts, and makes the condition true instead of sleeping.
class CountingParker final : public Parker {
  public:
    CountingParker(bool& ready, WaitEstimate* estimate) : ready_{ready}, estimate_{estimate} {}
    void prepare() override { ++prepared; }
    void park(std::chrono::nanoseconds /*limit*/, const Cancellation* /*cancellation*/) override {
        ++parked;
        ready_ = true;
    }
    void retract() override { --prepared; }
    [[nodiscard]] WaitEstimate* estimate() noexcept override { return estimate_; }
    int prepared = 0;
    int parked = 0;

  private:
    bool& ready_;
    WaitEstimate* estimate_;
};

TEST(AdaptiveWait, SleepsAtOnceWhereGapsWereLong) {
    WaitEstimate estimate{cost};
    for (int i = 0; i != 8; ++i) {
        (void)estimate.begin(ticks());
        (void)estimate.ended(ticks_in(220us), ticks_in(1s), End::slept);
    }
    bool ready = false;
    int looks = 0;
    CountingParker parker{ready, &estimate};
    EXPECT_EQ(wait_until([&] { return ++looks, ready; }, Deadline::never(), WaitPolicy::adaptive(),
                         parker),
              Status::ok);
    EXPECT_EQ(parker.parked, 1);
    EXPECT_EQ(parker.prepared, 0);
    EXPECT_EQ(looks, 3) << "before, behind the announcement, and behind the sleep";
    EXPECT_EQ(estimate.facts().slept, 9U);
}

TEST(AdaptiveWait, LooksFirstWhereTheyWereShort) {
    WaitEstimate estimate{cost};
    bool ready = false;
    int looks = 0;
    CountingParker parker{ready, &estimate};
    EXPECT_EQ(wait_until([&] { return ++looks, ready; }, Deadline::never(), WaitPolicy::adaptive(),
                         parker),
              Status::ok);
    EXPECT_EQ(parker.parked, 1);
    EXPECT_GT(looks, 16);
}

TEST(AdaptiveWait, IsOverOnceALookSucceeds) {
    WaitEstimate estimate{cost};
    bool never = false;
    CountingParker parker{never, &estimate};
    int looks = 0;
    EXPECT_EQ(
        wait_until([&] { return ++looks == 3; }, Deadline::never(), WaitPolicy::adaptive(), parker),
        Status::ok);
    EXPECT_EQ(parker.parked, 0);
    EXPECT_EQ(estimate.facts().spun, 1U);
}

TEST(AdaptiveWait, BeginsAnewWhereNobodyKeepsAnEstimate) {
    bool ready = false;
    CountingParker parker{ready, nullptr};
    EXPECT_EQ(wait_until([&] { return ready; }, Deadline::never(), WaitPolicy::adaptive(), parker),
              Status::ok);
    EXPECT_EQ(parker.parked, 1);
}

TEST(AdaptiveWait, EndsWithItsDeadlineAndItsCancellation) {
    WaitEstimate estimate{cost};
    bool ready = false;
    CountingParker parker{ready, &estimate};
    const auto never = [] { return false; };
    EXPECT_EQ(wait_until(never, Deadline::now(), WaitPolicy::adaptive(), parker),
              Status::timed_out);
    Cancellation stop;
    stop.request();
    EXPECT_EQ(
        wait_until(never, Deadline::never().cancelled_by(stop), WaitPolicy::adaptive(), parker),
        Status::cancelled);
    EXPECT_EQ(parker.parked, 0);
}

TEST(AdaptiveWait, ThatGivesUpTeachesTheNextOnes) {
    WaitEstimate estimate{cost};
    bool ready = false;
    CountingParker parker{ready, &estimate};
    const auto never = [] { return false; };
    // A look that others interrupt counts for less, so as many as it takes.
    for (const Deadline limit = Deadline::after(40s);
         estimate.facts().reason != WaitReason::long_gaps && !limit.expired();) {
        EXPECT_EQ(wait_until(never, Deadline::after(1ms), WaitPolicy::adaptive(), parker),
                  Status::timed_out);
    }
    EXPECT_EQ(estimate.facts().reason, WaitReason::long_gaps);
    EXPECT_EQ(estimate.facts().found, 0);
}

TEST(WakeUpCost, IsMeasuredOnce) {
    const auto measured = wake_up_cost();
    EXPECT_GE(measured, 2us);
    EXPECT_LE(measured, 1ms);
    EXPECT_EQ(wake_up_cost(), measured);
}

}  // namespace
}  // namespace millrace::base
