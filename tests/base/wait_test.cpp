// Deadlines, cancellations and the order of steps in wait_until.
#include "millrace/base/wait.hpp"

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

/// Writes down what wait_until asks of it, and calls `on_park` instead of sleeping.
class RecordingParker final : public Parker {
  public:
    void prepare() override { steps.emplace_back("prepare"); }
    void park(std::chrono::nanoseconds limit, const Cancellation* /*cancellation*/) override {
        steps.emplace_back("park");
        limits.push_back(limit);
        if (on_park) on_park();
    }
    void retract() override { steps.emplace_back("retract"); }

    std::vector<std::string> steps;
    std::vector<std::chrono::nanoseconds> limits;
    std::function<void()> on_park;
};

using Steps = std::vector<std::string>;

TEST(Deadline, OfNowHasExpiredAndOfNeverHasNot) {
    EXPECT_TRUE(Deadline::now().expired());
    EXPECT_EQ(Deadline::now().remaining(), 0ns);
    EXPECT_FALSE(Deadline::never().expired());
    EXPECT_EQ(Deadline::never().remaining(), std::chrono::nanoseconds::max());
}

TEST(Deadline, AfterAHugeDurationDoesNotOverflowIntoThePast) {
    EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max()).expired());
    EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max() - 1ns).expired());
}

TEST(Deadline, InThePastHasExpiredAndNoTimeRemains) {
    const auto past = Deadline::at(Clock::now() - 1s);
    EXPECT_TRUE(past.expired());
    EXPECT_EQ(past.remaining(), 0ns);
}

TEST(Deadline, InTheFutureHasTimeRemaining) {
    const auto later = Deadline::after(1h);
    EXPECT_FALSE(later.expired());
    EXPECT_GT(later.remaining(), 0ns);
    EXPECT_LE(later.remaining(), 1h);
}

TEST(Deadline, IsCancelledOnlyByItsOwnCancellation) {
    Cancellation cancellation;
    const auto plain = Deadline::never();
    const auto bound = plain.cancelled_by(cancellation);
    EXPECT_FALSE(bound.cancelled());
    cancellation.request();
    EXPECT_TRUE(bound.cancelled());
    EXPECT_FALSE(plain.cancelled());
    cancellation.reset();
    EXPECT_FALSE(bound.cancelled());
}

TEST(WaitUntil, AsksTheConditionOnceEvenWhenTheDeadlineHasPassed) {
    RecordingParker parker;
    int asked = 0;
    EXPECT_EQ(wait_until([&] { return ++asked == 1; }, Deadline::now(), {}, parker), Status::ok);
    EXPECT_EQ(asked, 1);
    EXPECT_TRUE(parker.steps.empty());
}

TEST(WaitUntil, TimesOutUnderEveryPolicy) {
    for (const WaitPolicy policy : {WaitPolicy{}, WaitPolicy::polling(), WaitPolicy::blocking()}) {
        NapParker parker;
        EXPECT_EQ(wait_until([] { return false; }, Deadline::after(1ms), policy, parker),
                  Status::timed_out);
    }
}

TEST(WaitUntil, SpinsAndYieldsBeforeItSleeps) {
    RecordingParker parker;
    int asked = 0;
    const WaitPolicy patient{1h, 1h, true};
    Contention none;  // whatever other programs do
    EXPECT_EQ(wait_until([&] { return ++asked == 1000; }, Deadline::never(), patient, parker, none),
              Status::ok);
    EXPECT_TRUE(parker.steps.empty());
}

TEST(WaitUntil, PreparesAndAsksAgainBeforeItParks) {
    RecordingParker parker;
    // True only after prepare: the wake-up that comes between the last look and the announcement.
    const auto ready = [&] { return !parker.steps.empty(); };
    EXPECT_EQ(wait_until(ready, Deadline::never(), WaitPolicy::blocking(), parker), Status::ok);
    EXPECT_EQ(parker.steps, (Steps{"prepare", "retract"}));
}

TEST(WaitUntil, ParksAndRetractsUntilTheConditionHolds) {
    RecordingParker parker;
    int parked = 0;
    parker.on_park = [&] { ++parked; };
    const auto ready = [&] { return parked == 2; };
    EXPECT_EQ(wait_until(ready, Deadline::never(), WaitPolicy::blocking(), parker), Status::ok);
    EXPECT_EQ(parker.steps, (Steps{"prepare", "park", "retract", "prepare", "park", "retract"}));
}

TEST(WaitUntil, CutsASleepIntoSlicesOfFiftyMilliseconds) {
    RecordingParker parker;
    bool woken = false;
    parker.on_park = [&] { woken = true; };
    EXPECT_EQ(wait_until([&] { return woken; }, Deadline::never(), WaitPolicy::blocking(), parker),
              Status::ok);
    ASSERT_EQ(parker.limits.size(), 1U);
    EXPECT_EQ(parker.limits[0], 50ms);
}

TEST(WaitUntil, DoesNotSleepBeyondTheDeadline) {
    // Where a deadline is over before the wait has begun, once more.
    for (int tries = 0; tries < 100; ++tries) {
        RecordingParker parker;
        EXPECT_EQ(
            wait_until([] { return false; }, Deadline::after(2ms), WaitPolicy::blocking(), parker),
            Status::timed_out);
        if (parker.limits.empty()) continue;
        for (const auto limit : parker.limits) EXPECT_LE(limit, 2ms);
        EXPECT_EQ(parker.steps.back(), "retract");
        return;
    }
    FAIL() << "it never slept";
}

TEST(WaitUntil, EndsWhenItIsCancelledUnderEveryPolicy) {
    for (const WaitPolicy policy : {WaitPolicy{1h, 0ns, true}, WaitPolicy{0ns, 1h, true},
                                    WaitPolicy::polling(), WaitPolicy::blocking()}) {
        Cancellation cancellation;
        std::jthread other{[&] { cancellation.request(); }};
        NapParker parker;
        EXPECT_EQ(wait_until([] { return false; }, Deadline::never().cancelled_by(cancellation),
                             policy, parker),
                  Status::cancelled);
    }
}

TEST(WaitUntil, AnswersCancelledRatherThanTimedOutWhenBothHold) {
    Cancellation cancellation;
    cancellation.request();
    NapParker parker;
    EXPECT_EQ(
        wait_until([] { return false; }, Deadline::now().cancelled_by(cancellation), {}, parker),
        Status::cancelled);
}

TEST(WaitUntil, SeesWhatAnotherThreadDoesWhileItNaps) {
    std::atomic<bool> done{false};
    std::jthread other{[&] { done.store(true, std::memory_order_release); }};
    NapParker parker;
    EXPECT_EQ(wait_until([&] { return done.load(std::memory_order_acquire); }, Deadline::never(),
                         WaitPolicy::blocking(), parker),
              Status::ok);
}

TEST(WaitUntil, PassesOnWhatTheConditionThrows) {
    NapParker parker;
    EXPECT_THROW(static_cast<void>(wait_until([]() -> bool { throw std::runtime_error{"lost"}; },
                                              Deadline::never(), {}, parker)),
                 std::runtime_error);
}

}  // namespace
}  // namespace millrace::base
