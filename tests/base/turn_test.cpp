// Turns of several threads: exclusion, sleeping, deadlines, cancellation.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "millrace/base/detail/turn.hpp"
#include "support/forked.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

TEST(Turn, IsTakenByOneAtATime) {
    Turn turn;
    ASSERT_TRUE(turn.try_take());
    EXPECT_FALSE(turn.try_take());
    EXPECT_EQ(turn.take(Deadline::now(), WaitPolicy{}), Status::timed_out);
    turn.give_back();
    EXPECT_EQ(turn.take(Deadline::now(), WaitPolicy{}), Status::ok);
    turn.give_back();
}

void count_in_turns(const WaitPolicy& policy) {
    constexpr int threads = 4;
    constexpr std::uint64_t each = 5000;
    Turn turn;
    std::uint64_t count = 0;
    std::atomic<int> failed{0};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
        all.emplace_back([&] {
            for (std::uint64_t n = 0; n < each; ++n) {
                if (turn.take(Deadline::after(60s), policy) != Status::ok) {
                    ++failed;
                    return;
                }
                ++count;
                if (n % 64 == 0) std::this_thread::yield();
                turn.give_back();
            }
        });
    }
    for (std::thread& thread : all) thread.join();
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(count, threads * each);
}

TEST(Turn, CountsOfFourThreadsAddUp) { count_in_turns(WaitPolicy{}); }
TEST(Turn, CountsOfFourThreadsThatSleepAddUp) { count_in_turns(WaitPolicy::blocking()); }

TEST(Turn, IsFreeInAChildOfForkWhereWhoHadItIsNot) {
    Turn turn;
    std::promise<void> is_taken;
    std::promise<void> is_over;
    std::thread other{[&] {
        EXPECT_TRUE(turn.try_take());
        is_taken.set_value();
        is_over.get_future().wait();
        turn.give_back();
    }};
    is_taken.get_future().wait();
    EXPECT_EQ(test::in_forked_child([&](test::Complaints& child) {
                  child.unless(
                      turn.take(Deadline::after(20s), WaitPolicy::blocking()) == Status::ok,
                      "nobody gives it back");
                  turn.give_back();
              }),
              "");
    EXPECT_FALSE(turn.try_take());
    is_over.set_value();
    other.join();
    EXPECT_TRUE(turn.try_take());
}

TEST(Turn, WhoSleepsForItIsWokenByWhoGivesItBack) {
    Turn turn;
    ASSERT_TRUE(turn.try_take());
    std::atomic<bool> has{false};
    std::thread other{[&] {
        has = turn.take(Deadline::after(60s), WaitPolicy::blocking()) == Status::ok;
        if (has) turn.give_back();
    }};
    std::this_thread::sleep_for(120ms);
    EXPECT_FALSE(has);
    turn.give_back();
    other.join();
    EXPECT_TRUE(has);
}

TEST(Turn, WaitingEndsWhenItIsCancelled) {
    Turn turn;
    ASSERT_TRUE(turn.try_take());
    Cancellation cancellation;
    Status status = Status::ok;
    std::thread other{
        [&] { status = turn.take(Deadline::after(60s).cancelled_by(cancellation), WaitPolicy{}); }};
    std::this_thread::sleep_for(20ms);
    cancellation.request();
    other.join();
    EXPECT_EQ(status, Status::cancelled);
    EXPECT_FALSE(turn.try_take());
    turn.give_back();
    EXPECT_TRUE(turn.try_take());
}

}  // namespace
}  // namespace millrace::base
