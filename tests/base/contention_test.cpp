// Who takes the processors that a process's threads offer, and waits that go by it.
#include "millrace/base/detail/contention.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/wait.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

ProcessorUse planted;
Demand demand = Demand::unknown;

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
                last_ = contention.came_back(now_, ticks_in(100us), &names_[thread], 0) ==
                        Taken::by_crowd;
            }
        }
    }
    void pass(std::chrono::nanoseconds time) { now_ += ticks_in(time); }
    /// The last offer was taken by its own threads.
    [[nodiscard]] bool was_its_own() const { return last_; }
    [[nodiscard]] bool is_crowd() const { return contention.is_crowd(now_); }

    Contention contention{[]() noexcept { return planted; }, []() noexcept { return demand; }};

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
    process.pass(Contention::holds);
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

/// A thread of a process beside which others may compute, on a time line of its own.
class PlantedOffers {
  public:
    explicit PlantedOffers(Demand of_all) {
        planted = {.processors = 2};
        demand = of_all;
    }
    /// An offer comes back after so long.
    Taken offer(std::chrono::nanoseconds away, int thread = 0) {
        pass(away);
        return came_back(away, thread);
    }
    /// So many of them, until the machine is busy.
    [[nodiscard]] int late_offers_until_busy() {
        int offers = 0;
        while (!is_busy() && offers < 1000) (void)offer(5ms), ++offers;
        return offers;
    }
    Taken came_back(std::chrono::nanoseconds away, int thread) {
        return contention.came_back(now_, ticks_in(away), &names_[thread], 0);
    }
    void pass(std::chrono::nanoseconds time) {
        now_ += ticks_in(time);
        planted.time += time;
    }
    [[nodiscard]] bool is_busy() { return contention.is_busy(now_, &names_[0]); }
    /// How long it takes until offers are tried again.
    [[nodiscard]] std::chrono::milliseconds rests() {
        auto rested = 0ms;
        for (; is_busy() && rested < 20s; rested += 1ms) pass(1ms);
        return rested;
    }

    Contention contention{[]() noexcept { return planted; }, []() noexcept { return demand; }};

  private:
    std::uint64_t now_ = ticks_in(1h);
    char names_[2]{};
};

TEST(BusyMachine, IsNotWhereOffersComeBackSoon) {
    PlantedOffers thread{Demand::exceeds};
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(thread.offer(900us), Taken::by_others);
    EXPECT_FALSE(thread.is_busy());
}

TEST(BusyMachine, IsSeenAfterAWindowInWhichOffersCameBackLate) {
    PlantedOffers thread{Demand::exceeds};
    EXPECT_EQ(thread.late_offers_until_busy(), 3);  // the window is over by the third
}

TEST(BusyMachine, IsNotWhereTurnsOfOwnThreadsAddUp) {
    PlantedOffers process{Demand::exceeds};
    for (int i = 0; i < 1000; ++i) {
        // Each comes back after all the others, which had 100 us each.
        process.pass(100us);
        (void)process.came_back(4ms, i % 2);
    }
    EXPECT_FALSE(process.is_busy());
}

TEST(BusyMachine, IsQuietAgainWithTheFirstLookThatSaysSo) {
    PlantedOffers thread{Demand::exceeds};
    (void)thread.late_offers_until_busy();
    thread.pass(300ms);
    EXPECT_TRUE(thread.is_busy());
    demand = Demand::is_met;
    thread.pass(4ms);
    EXPECT_TRUE(thread.is_busy());
    thread.pass(Contention::shortest_rest);
    EXPECT_FALSE(thread.is_busy());
}

TEST(BusyMachine, TriesAnOfferSeldomAndMoreSeldomWhileDemandExceeds) {
    PlantedOffers thread{Demand::exceeds};
    std::chrono::milliseconds before = 0ms;
    for (int trial = 0; trial < 4; ++trial) {
        EXPECT_EQ(thread.late_offers_until_busy(), trial == 0 ? 3 : 1);
        const auto rested = thread.rests();
        EXPECT_GE(rested, 500ms);
        EXPECT_GT(rested, before);
        before = rested;
    }
    for (int trial = 0; trial < 10; ++trial) {
        (void)thread.offer(4ms);
        EXPECT_LE(thread.rests(), Contention::longest_to_trial + 20ms);
    }
}

TEST(BusyMachine, TriesOffersAtAGrowingDistanceWhereNothingIsKnownOfDemand) {
    for (const Demand said : {Demand::unknown, Demand::is_met}) {
        PlantedOffers thread{said};
        (void)thread.late_offers_until_busy();
        EXPECT_LE(thread.rests(), 10ms);
        for (int trial = 0; trial < 20; ++trial) (void)thread.offer(4ms), (void)thread.rests();
        (void)thread.offer(4ms);
        EXPECT_GE(thread.rests(), 3900ms);
    }
}

TEST(BusyMachine, IsTakenAnewWhereItWasQuietForAWhile) {
    PlantedOffers thread{Demand::is_met};
    for (int trial = 0; trial < 8; ++trial) (void)thread.offer(4ms), (void)thread.rests();
    thread.pass(1s);
    (void)thread.late_offers_until_busy();
    EXPECT_LE(thread.rests(), 10ms);
}

TEST(BusyMachine, IsNotSeenBySeveralThreadsOfACrowdWhoseTurnsAreLong) {
    PlantedOffers process{Demand::exceeds};
    for (int i = 0; i < 100; ++i) {
        (void)process.offer(4ms, i % 2);
        planted.used += 8ms;  // both processors are ours meanwhile
        EXPECT_FALSE(process.is_busy()) << "offer " << i;
    }
    EXPECT_EQ(process.offer(4ms), Taken::by_crowd);
}

TEST(BusyMachine, IsSeenBySeveralThreadsAfterAWindowInWhichOthersHadTheProcessors) {
    PlantedOffers process{Demand::exceeds};
    for (int i = 0; i < 8; ++i) (void)process.offer(4ms, i % 2);
    EXPECT_TRUE(process.is_busy());
}

TEST(ProcessorDemand, ExceedsWhereMoreThreadsRunThanThereAreProcessors) {
    if (processor_demand() == Demand::unknown) GTEST_SKIP() << "this machine does not say";
    std::atomic<bool> is_over{false};
    std::vector<std::jthread> computing;
    for (unsigned i = 0; i < std::thread::hardware_concurrency() + 1; ++i) {
        computing.emplace_back([&] {
            while (!is_over.load(std::memory_order_relaxed)) pause();
        });
    }
    while (processor_demand() != Demand::exceeds) std::this_thread::yield();
    is_over = true;
}

TEST(SpinHabit, SpinsWhileThatFindsWhatIsWaitedFor) {
    SpinHabit habit;
    for (int wait = 0; wait < 1000; ++wait) {
        ASSERT_TRUE(habit.spins());
        habit.note(wait % 2 == 0);  // now and then one is in vain
    }
}

TEST(SpinHabit, TriesMoreAndMoreSeldomWhileItIsInVain) {
    SpinHabit habit;
    int spins = 0;
    for (int wait = 0; wait < 10'000; ++wait) {
        if (!habit.spins()) continue;
        ++spins;
        habit.note(false);
    }
    EXPECT_GE(spins, 10'000 / static_cast<int>(SpinHabit::last_trial));
    EXPECT_LE(spins, 50);
    while (!habit.spins()) {
    }
    habit.note(true);
    EXPECT_TRUE(habit.spins());
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

/// For an hour from now on.
void make_crowd(Contention& contention) {
    const std::uint64_t then = ticks() + ticks_in(1h);
    int names[2];
    for (const std::uint64_t at : {then, then + ticks_in(10ms)}) {
        planted.time += 10ms;
        planted.used += 20ms;
        for (const int& name : names) (void)contention.came_back(at, ticks_in(100us), &name);
    }
}

void make_busy(Contention& contention) {
    const std::uint64_t then = ticks() + ticks_in(1h);
    for (auto late = 0ms; late < 40ms; late += 4ms) {
        (void)contention.came_back(then + ticks_in(late), ticks_in(3ms));
    }
    ASSERT_TRUE(contention.is_busy(ticks()));
}

TEST(WaitUntil, SpinsForAShortTimeInACrowd) {
    planted = {.processors = 2};
    Contention contention{[]() noexcept { return planted; }};
    make_crowd(contention);
    bool has_slept = false;
    CallingParker parker{[&] { has_slept = true; }};
    EXPECT_EQ(
        wait_until([&] { return has_slept; }, Deadline::after(20s), {1h, 1ns}, parker, contention),
        Status::ok);
    EXPECT_TRUE(has_slept);
}

TEST(WaitUntil, SleepsBesideProgramsThatCompute) {
    planted = {.processors = 2};
    demand = Demand::exceeds;
    Contention contention{[]() noexcept { return planted; }, []() noexcept { return demand; }};
    make_busy(contention);
    int sleeps = 0;
    CallingParker parker{[&] { ++sleeps; }};
    for (int wait = 1; wait <= 100; ++wait) {
        EXPECT_EQ(wait_until([&] { return sleeps == wait; }, Deadline::after(20s),
                             {.spin = 1us, .yield = 1h}, parker, contention),
                  Status::ok);
    }
    EXPECT_EQ(sleeps, 100);
}

TEST(WaitUntil, GoesOnLookingBesideProgramsThatComputeIfItMayNotSleep) {
    Contention contention{processor_use, []() noexcept { return Demand::exceeds; }};
    make_busy(contention);
    CallingParker parker{[] { FAIL() << "it slept"; }};
    int asked = 0;
    EXPECT_EQ(wait_until([&] { return ++asked == 1000; }, Deadline::never(), WaitPolicy::polling(),
                         parker, contention),
              Status::ok);
}

}  // namespace
}  // namespace millrace::base
