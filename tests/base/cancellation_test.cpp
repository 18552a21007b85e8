// Cancellations end sleeps: by their descriptor, whoever comes first, and in children made by fork.
#include "millrace/base/cancellation.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "millrace/base/detail/thread_bell.hpp"
#include "millrace/base/detail/turn.hpp"
#include "millrace/base/wait.hpp"
#include "support/readable.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;
using millrace::test::is_readable;

TEST(Cancellation, IsReadableFromItsRequestToItsReset) {
    Cancellation cancellation;
    const int descriptor = cancellation.descriptor();
    ASSERT_GE(descriptor, 0);
    EXPECT_EQ(cancellation.descriptor(), descriptor);
    EXPECT_FALSE(is_readable(descriptor));
    cancellation.request();
    EXPECT_TRUE(is_readable(descriptor));
    cancellation.settle();  // it is requested still
    EXPECT_TRUE(is_readable(descriptor));
    cancellation.reset();
    EXPECT_FALSE(is_readable(descriptor));
    cancellation.request();
    EXPECT_TRUE(is_readable(descriptor));
}

TEST(Cancellation, IsReadableWhenItWasRequestedBeforeAnybodySlept) {
    Cancellation cancellation;
    cancellation.request();
    EXPECT_TRUE(is_readable(cancellation.descriptor()));
}

TEST(Cancellation, NeverLosesARequestThatMeetsTheMakingOfItsDescriptor) {
    for (int round = 0; round < 2000; ++round) {
        Cancellation cancellation;
        std::atomic<bool> go{false};
        std::thread other{[&] {
            while (!go.load()) pause();
            for (int i = 0; i < round % 100; ++i) pause();
            cancellation.request();
        }};
        go.store(true);
        const int descriptor = cancellation.descriptor();
        other.join();
        ASSERT_TRUE(is_readable(descriptor)) << "round " << round;
    }
}

TEST(Cancellation, IsReadableExactlyIfItIsRequestedBehindRequestsAndResetsThatMet) {
    Cancellation cancellation;
    const int descriptor = cancellation.descriptor();
    constexpr int rounds = 2000;
    std::atomic<int> asked{0};
    std::atomic<int> done{0};
    std::thread other{[&] {
        for (int round = 1; round <= rounds; ++round) {
            while (asked.load() != round) std::this_thread::yield();
            cancellation.request();
            done.store(round);
        }
    }};
    int lost = 0;
    int stuck = 0;
    for (int round = 1; round <= rounds; ++round) {
        asked.store(round);
        for (int i = 0; i < round % 200; ++i) pause();
        cancellation.reset();
        while (done.load() != round) std::this_thread::yield();
        cancellation.settle();  // as each wait does
        if (cancellation.requested() && !is_readable(descriptor)) ++lost;
        cancellation.reset();
        if (is_readable(descriptor)) ++stuck;
    }
    other.join();
    EXPECT_EQ(lost, 0);
    EXPECT_EQ(stuck, 0);
}

TEST(Cancellation, OfAParentIsNotThatOfItsChild) {
    Cancellation cancellation;
    const int descriptor = cancellation.descriptor();
    const pid_t child = fork();
    if (child == 0) {
        cancellation.request();
        _exit(is_readable(cancellation.descriptor()) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(is_readable(descriptor));
}

// The sleeps below last for an hour where a request does not end them.

TEST(ThreadBell, SleepsNoLongerThanToACancellation) {
    ThreadBell bell;
    Cancellation cancellation;
    std::thread other{[&] {
        std::this_thread::sleep_for(20ms);
        cancellation.request();
    }};
    bell.announce();
    bell.sleep(1h, &cancellation);
    bell.retract();
    other.join();
    EXPECT_TRUE(cancellation.requested());
}

TEST(ThreadBell, WakesWhoSleepsBesideACancellation) {
    ThreadBell bell;
    const Cancellation cancellation;
    for (int round = 0; round < 500; ++round) {
        std::atomic<bool> published{false};
        std::thread other{[&] {
            published.store(true);
            bell.ring();
        }};
        while (!published.load()) {
            bell.announce();
            if (!published.load()) bell.sleep(1h, &cancellation);
            bell.retract();
        }
        other.join();
    }
}

TEST(Turn, SleepersWakeOneAnotherThoughSomeAreCancelled) {
    Turn turn;
    constexpr int rounds = 300;
    for (int round = 0; round < rounds; ++round) {
        Cancellation cancellation;
        ASSERT_TRUE(turn.try_take());
        const auto patient = [&] {
            EXPECT_EQ(turn.take(Deadline::never(), WaitPolicy::blocking()), Status::ok);
            turn.give_back();
        };
        std::thread first{[&] {
            const auto until = Deadline::never().cancelled_by(cancellation);
            if (turn.take(until, WaitPolicy::blocking()) == Status::ok) turn.give_back();
        }};
        std::thread second{patient};
        std::thread third{patient};
        for (int i = 0; i < round * 50; ++i) pause();
        // The turn comes to one whose wait ends just then.
        std::thread canceller{[&] { cancellation.request(); }};
        turn.give_back();
        for (std::thread* const thread : {&canceller, &first, &second, &third}) thread->join();
    }
}

TEST(WaitUntil, HandsItsCancellationToTheParkerAndSleepsForItAlone) {
    class Patient final : public Parker {
      public:
        void prepare() override {}
        void park(std::chrono::nanoseconds limit, const Cancellation* cancellation) override {
            limits.push_back(limit);
            given = cancellation;
            if (on_park) on_park();
        }
        void retract() override {}
        [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override {
            return std::chrono::nanoseconds::max();
        }
        std::vector<std::chrono::nanoseconds> limits;
        const Cancellation* given = nullptr;
        std::function<void()> on_park;
    };
    Patient parker;
    Cancellation cancellation;
    parker.on_park = [&] { cancellation.request(); };
    EXPECT_EQ(wait_until([] { return false; }, Deadline::never().cancelled_by(cancellation),
                         WaitPolicy::blocking(), parker),
              Status::cancelled);
    EXPECT_EQ(parker.limits, std::vector{std::chrono::nanoseconds::max()});
    EXPECT_EQ(parker.given, &cancellation);
}

// A wake-up that is for one sleeper alone must not go with the end of its time.
TEST(WaitUntil, LooksOnceMoreWhenItIsCancelledBetweenItsAnnouncementAndItsSleep) {
    class Rung final : public Parker {
      public:
        explicit Rung(Cancellation& cancellation) : cancellation_{&cancellation} {}
        void prepare() override {}
        void park(std::chrono::nanoseconds, const Cancellation*) override {}
        void retract() override { has_come = true; }
        bool look() {
            cancellation_->request();
            return has_come;
        }
        bool has_come = false;

      private:
        Cancellation* cancellation_;
    };
    Cancellation cancellation;
    Rung parker{cancellation};
    const auto until = Deadline::never().cancelled_by(cancellation);
    EXPECT_EQ(wait_until([&] { return parker.look(); }, until, WaitPolicy::blocking(), parker),
              Status::ok);
}

}  // namespace
}  // namespace millrace::base
