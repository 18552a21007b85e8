// Whether a process's own threads take each other's offers, and waits that go by it.
#include "millrace/base/crowd.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include <gtest/gtest.h>

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

ProcessorUse planted;

/// A process of which several threads come back from offers all the while, on a time line of its
/// own.
class PlantedProcess {
  public:
    explicit PlantedProcess(unsigned processors) { planted = {.processors = processors}; }

    /// So it goes on for `time`; its threads get `used` of each millisecond of it, all together.
    void run(std::chrono::milliseconds time, std::chrono::nanoseconds used, int threads = 2) {
        for (; time > 0ms; time -= 1ms) {
            now_ += ticks_in(1ms);
            planted.time += 1ms;
            planted.used += used;
            for (int thread = 0; thread < threads; ++thread) {
                last_ = crowd.came_back(now_, &names_[thread]);
            }
        }
    }
    void pass(std::chrono::nanoseconds time) { now_ += ticks_in(time); }
    /// The last offer was taken by its own threads.
    [[nodiscard]] bool was_its_own() const { return last_; }
    [[nodiscard]] bool is_crowd() const { return crowd.is_here(now_); }

    Crowd crowd{[]() noexcept { return planted; }};

  private:
    std::uint64_t now_ = 1'000'000'000;
    char names_[2]{};
    bool last_ = false;
};

TEST(Crowd, IsNotBeforeAnyOfferWasTaken) {
    const PlantedProcess process{2};
    EXPECT_FALSE(process.is_crowd());
}

TEST(Crowd, IsWhereThreadsOfTheProcessHaveAllProcessors) {
    PlantedProcess process{2};
    process.run(30ms, 2ms);
    EXPECT_TRUE(process.is_crowd());
    EXPECT_TRUE(process.was_its_own());
}

TEST(Crowd, IsWhereAPeerHasOneProcessor) {
    PlantedProcess process{2};
    process.run(30ms, 1ms);
    EXPECT_TRUE(process.is_crowd());
    PlantedProcess of_eight{8};
    of_eight.run(30ms, 7ms);
    EXPECT_TRUE(of_eight.is_crowd());
}

TEST(Crowd, IsNotWhereOtherProcessesHaveTheProcessors) {
    PlantedProcess one_of_six{2};
    one_of_six.run(100ms, 2ms / 6);
    EXPECT_FALSE(one_of_six.is_crowd());
    EXPECT_FALSE(one_of_six.was_its_own());
    PlantedProcess beside_one{2};
    beside_one.run(100ms, 700us);
    EXPECT_FALSE(beside_one.is_crowd());
    PlantedProcess of_eight{8};
    of_eight.run(100ms, 4ms);
    EXPECT_FALSE(of_eight.is_crowd());
}

TEST(Crowd, IsNotSeenByTheFirstComparisonHoweverLongTheMachineHasRun) {
    for (const unsigned processors : {1U, 2U, 64U, 512U, 8192U}) {
        for (int bits = 0; bits != 62; ++bits) {
            PlantedProcess process{processors};
            planted.time = std::chrono::nanoseconds{std::int64_t{1} << bits};
            planted.used = 1s;
            process.run(1ms, 0ms);
            EXPECT_FALSE(process.is_crowd()) << processors << " processors, 2^" << bits << " ns";
        }
    }
}

TEST(Crowd, IsNotSeenBehindALongPauseInWhichOthersHadTheProcessors) {
    for (int bits = 30; bits != 62; ++bits) {
        PlantedProcess process{512};
        process.run(30ms, 512ms);
        ASSERT_TRUE(process.is_crowd());
        const std::chrono::nanoseconds pause{std::int64_t{1} << bits};
        planted.time += pause;
        process.pass(1s);
        process.run(1ms, 0ms);
        EXPECT_FALSE(process.is_crowd()) << "2^" << bits << " ns";
    }
}

TEST(Crowd, NeedsTheWholeOfASingleProcessor) {
    PlantedProcess alone{1};
    alone.run(30ms, 1ms);
    EXPECT_TRUE(alone.is_crowd());
    PlantedProcess beside_peer{1};
    beside_peer.run(30ms, 500us);
    EXPECT_FALSE(beside_peer.is_crowd());
}

TEST(Crowd, IsNotOneThread) {
    PlantedProcess process{2};
    process.run(100ms, 1ms, 1);
    EXPECT_FALSE(process.is_crowd());
}

TEST(Crowd, IsNotWhereTheProcessorsAreNotKnown) {
    PlantedProcess process{0};
    process.run(100ms, 2ms);
    EXPECT_FALSE(process.is_crowd());
}

TEST(Crowd, GoesWithTheFirstLookBehindThatOtherProcessesTakeTheProcessors) {
    PlantedProcess process{2};
    process.run(30ms, 1ms);
    ASSERT_TRUE(process.is_crowd());
    process.run(20ms, 200us);
    EXPECT_FALSE(process.is_crowd());
    EXPECT_FALSE(process.was_its_own());
    process.run(100ms, 200us);
    EXPECT_FALSE(process.is_crowd());
    process.run(30ms, 1ms);
    EXPECT_TRUE(process.is_crowd());
}

TEST(Crowd, GoesByItselfWhereNoOfferIsTakenAnyMore) {
    PlantedProcess process{2};
    process.run(30ms, 1ms);
    process.pass(1ms);
    EXPECT_TRUE(process.is_crowd());
    process.pass(Crowd::holds);
    EXPECT_FALSE(process.is_crowd());
}

TEST(Crowd, IsNotWhatAForkedProcessInherits) {
    PlantedProcess process{2};
    process.run(30ms, 1ms);
    planted.used = 0ns;  // a new process's clock
    process.run(10ms, 0ms);
    EXPECT_FALSE(process.is_crowd());
}

TEST(ProcessorUse, GrowsWithWhatThreadsUse) {
    const ProcessorUse before = processor_use();
    EXPECT_GE(before.processors, 1U);
    while (processor_use().used == before.used) {
    }
    const ProcessorUse behind = processor_use();
    EXPECT_GT(behind.time, before.time);
    EXPECT_GT(behind.used, before.used);
}

TEST(ServedBehindOffers, TellsWhereNothingComesBetweenTwoOfThem) {
    ServedBehindOffers served;
    const std::uint64_t start = ticks_in(1h);
    EXPECT_FALSE(served.note(start, start + ticks_in(4ms)));
    const std::uint64_t next = start + ticks_in(4ms) + ticks_in(1us);
    EXPECT_TRUE(served.note(next, next + ticks_in(4ms)));
}

TEST(ServedBehindOffers, DoesNotTellWhereThereWasATurnBetweenTwoOfThem) {
    ServedBehindOffers served;
    std::uint64_t at = ticks_in(1h);
    for (int wait = 0; wait < 100; ++wait) {
        EXPECT_FALSE(served.note(at, at + ticks_in(4ms)));
        at += ticks_in(4ms) + ticks_in(100us);
    }
}

TEST(ServedBehindOffers, DoesNotTellAgainAtOnce) {
    ServedBehindOffers served;
    std::uint64_t at = ticks_in(1h);
    int told = 0;
    for (auto time = 0ms; time < 1s; time += 4ms) {
        told += served.note(at, at + ticks_in(4ms)) ? 1 : 0;
        at += ticks_in(4ms) + ticks_in(1us);
    }
    EXPECT_GE(told, 5);
    EXPECT_LE(told, 10);
}

TEST(Crowd, IsNotWhereThreadsHaveMoreThanTheProcessorsThatAreSeen) {
    // Two that are pinned apart: each sees one processor, on which others may run as well.
    PlantedProcess process{1};
    process.run(30ms, 2ms);
    EXPECT_FALSE(process.is_crowd());
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
    Crowd crowd{processor_use, {1h, 1h}};
    int asked = 0;
    EXPECT_EQ(
        wait_in_turns([&] { return ++asked == 1000; }, Deadline::never(), {1h, 1h}, parker, crowd),
        Status::ok);
}

TEST(WaitInTurns, IsCancelled) {
    Cancellation cancellation;
    CallingParker parker{[] { FAIL() << "it slept"; }};
    const auto ready = [&] {
        cancellation.request();
        return false;
    };
    Crowd crowd{processor_use, {1h, 1h}};
    EXPECT_EQ(
        wait_in_turns(ready, Deadline::never().cancelled_by(cancellation), {1h, 1h}, parker, crowd),
        Status::cancelled);
}

/// For an hour from now on.
void make_crowd(Crowd& crowd) {
    const std::uint64_t then = ticks() + ticks_in(1h);
    int names[2];
    for (const std::uint64_t at : {then, then + ticks_in(10ms)}) {
        planted.time += 10ms;
        planted.used += 20ms;
        for (const int& name : names) (void)crowd.came_back(at, &name);
    }
}

TEST(WaitInTurns, SpinsForAShortTimeInACrowd) {
    planted = {.processors = 2};
    Crowd crowd{[]() noexcept { return planted; }, {.spin = 1h}};
    make_crowd(crowd);
    bool has_slept = false;
    CallingParker parker{[&] { has_slept = true; }};
    EXPECT_EQ(
        wait_in_turns([&] { return has_slept; }, Deadline::after(20s), {1h, 1ns}, parker, crowd),
        Status::ok);
    EXPECT_TRUE(has_slept);
}

TEST(WaitInTurns, SpinsForAsLongAsAProgramAsksForThatAsksForMore) {
    planted = {.processors = 2};
    Crowd crowd{[]() noexcept { return planted; }};
    make_crowd(crowd);
    CallingParker parker{[] { FAIL() << "it slept"; }};
    const auto then = Clock::now() + 1ms;
    EXPECT_EQ(wait_in_turns([&] { return Clock::now() > then; }, Deadline::never(), {1h, 1ns},
                            parker, crowd),
              Status::ok);
}

}  // namespace
}  // namespace millrace::base
