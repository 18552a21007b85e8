// SendWindow, counters and the wake-up protocol over a link in one process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/end/counter.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/end/wake_up.hpp"
#include "ring/links.hpp"
#include "support/extent.hpp"

namespace millrace::ring {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

verbs::Write write_of(Links& links, ibv_sge& slice) {
    slice = links.near_memory.slice(0, 8);
    return {.from = {&slice, 1}, .to = links.far_memory.remote()};
}

TEST(SendWindow, SignalsAtLeastEveryHalfQueueOfRequests) {
    for (const std::uint32_t slots : {1U, 2U, 3U, 8U, 16U, 100U}) {
        Links links{slots};
        SendWindow window{*links.near};
        EXPECT_GE(window.signal_interval(), 1U);
        EXPECT_LE(window.signal_interval(), std::max(1U, window.slots() / 2));
    }
}

TEST(SendWindow, SignalsOneOfEveryInterval) {
    Links links{64};
    SendWindow window{*links.near};
    ibv_sge slice;
    const verbs::Write write = write_of(links, slice);
    for (int round = 0; round < 3; ++round) {
        std::uint32_t signaled = 0;
        for (std::uint32_t i = 0; i < window.signal_interval(); ++i) {
            ASSERT_EQ(window.post(write), Status::ok);
            signaled += window.last_is_signaled() ? 1 : 0;
        }
        ASSERT_EQ(signaled, 1U);
    }
}

TEST(SendWindow, NeverPostsMoreThanTheQueueHoldsAndGoesOnForEver) {
    for (const std::uint32_t slots : {1U, 2U, 7U, 16U}) {
        Links links{slots};
        SendWindow window{*links.near};
        ibv_sge slice;
        const verbs::Write write = write_of(links, slice);
        std::uint64_t posted = 0;
        const Deadline deadline = Deadline::after(patience());
        while (posted < 50 * window.slots() && !deadline.expired()) {
            const Status status = window.post(write);
            ASSERT_TRUE(status == Status::ok || status == Status::full) << window.failure();
            if (status == Status::ok) ++posted;
            ASSERT_LE(window.posted() - window.completed(), window.slots());
        }
        EXPECT_EQ(posted, 50 * window.slots());
        EXPECT_EQ(window.posted(), posted);
    }
}

TEST(SendWindow, CountsATicketAsDoneOnlyAfterItsCompletion) {
    Links links;
    SendWindow window{*links.near};
    ibv_sge slice;
    const verbs::Write write = write_of(links, slice);
    ASSERT_EQ(window.post(write), Status::ok);
    EXPECT_FALSE(window.done(1));
    EXPECT_FALSE(window.last_is_signaled());
    ASSERT_EQ(window.reap(), Status::ok);
    EXPECT_FALSE(window.done(1)) << "no completion was asked for";
    ASSERT_EQ(window.post(write, Signal::now), Status::ok);
    EXPECT_TRUE(window.last_is_signaled());
    ASSERT_EQ(settle(window), Status::ok);
    EXPECT_TRUE(window.done(1));
    EXPECT_TRUE(window.done(2));
    EXPECT_FALSE(window.done(3));
}

TEST(SendWindow, KeepsItsReserveForEvents) {
    // Slots are freed by completions that were reaped: while nothing is signaled, none is.
    Links links{16};
    SendWindow window{*links.near};
    const std::uint32_t ordinary = window.slots() - SendWindow::reserve;
    EXPECT_EQ(window.free(), ordinary);
    ibv_sge slice;
    const verbs::Write write = write_of(links, slice);
    for (std::uint32_t i = 0; i + 1 < window.signal_interval(); ++i) {
        ASSERT_EQ(window.post(write), Status::ok);
        EXPECT_EQ(window.free(), ordinary - i - 1);
    }
    ASSERT_EQ(window.post(write, Signal::when_due, Slot::reserved), Status::ok);
}

TEST(SendWindow, PostsAChainWithOneDoorbell) {
    Links links{64};
    SendWindow window{*links.near};
    verbs::Batch<4> chain;
    std::array<ibv_sge, 4> slices;
    std::memset(links.near_memory.data(), 7, 8);
    EXPECT_EQ(window.post_chain(chain), Status::ok) << "there is nothing in it";
    for (std::size_t i = 0; i < 4; ++i) {
        verbs::Write write = write_of(links, slices[i]);
        write.to.address += 8 * i;
        ASSERT_EQ(window.chain(chain, write, i == 3 ? Signal::now : Signal::when_due), Status::ok);
        EXPECT_EQ(window.posted(), i + 1) << "its ticket is given at once";
    }
    ibv_sge slice;
    EXPECT_EQ(window.chain(chain, write_of(links, slice)), Status::full);
    ASSERT_EQ(window.reap(), Status::ok);
    EXPECT_FALSE(window.done(1)) << "nothing was posted yet";
    EXPECT_EQ(std::to_integer<int>(links.far_memory.data()[0]), 0);
    ASSERT_EQ(window.post_chain(chain), Status::ok);
    EXPECT_TRUE(chain.empty());
    ASSERT_EQ(settle(window), Status::ok);
    EXPECT_TRUE(window.done(4));
    EXPECT_EQ(window.completed(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(std::to_integer<int>(links.far_memory.data()[8 * i]), 7) << i;
    }
}

TEST(SendWindow, ChainsForEverWithinWhatTheQueueHolds) {
    for (const std::uint32_t slots : {1U, 2U, 7U, 16U}) {
        Links links{slots};
        SendWindow window{*links.near};
        ibv_sge slice;
        const verbs::Write write = write_of(links, slice);
        verbs::Batch<5> chain;
        const Deadline deadline = Deadline::after(patience());
        while (window.posted() < 50 * window.slots() && !deadline.expired()) {
            const Status status = window.chain(chain, write);
            ASSERT_LE(window.posted() - window.completed(), window.slots());
            if (status == Status::ok) continue;
            ASSERT_EQ(status, Status::full) << window.failure();
            ASSERT_EQ(window.post_chain(chain), Status::ok) << window.failure();
        }
        EXPECT_GE(window.posted(), 50 * window.slots());
        EXPECT_EQ(window.post_chain(chain), Status::ok);
    }
}

TEST(SendWindow, TellsOfAChainThatBroke) {
    Links links;
    SendWindow window{*links.near};
    verbs::Batch<4> chain;
    ibv_sge slice;
    verbs::Write wrong = write_of(links, slice);
    wrong.to.rkey ^= 0x55;
    ASSERT_EQ(window.chain(chain, wrong, Signal::now), Status::ok);
    ASSERT_EQ(window.post_chain(chain), Status::ok);
    EXPECT_EQ(settle(window), Status::peer_lost);
    EXPECT_EQ(window.chain(chain, write_of(links, slice)), Status::peer_lost);
    EXPECT_TRUE(chain.empty());
    EXPECT_NE(window.failure().find("request 1 "), std::string::npos) << window.failure();
}

TEST(SendWindow, TellsWhyItBroke) {
    Links links;
    SendWindow window{*links.near};
    ibv_sge slice;
    verbs::Write wrong = write_of(links, slice);
    wrong.to.rkey ^= 0x55;
    EXPECT_TRUE(window.failure().empty());
    ASSERT_EQ(window.post(wrong, Signal::now), Status::ok);
    EXPECT_EQ(settle(window), Status::peer_lost);
    EXPECT_TRUE(window.broken());
    EXPECT_NE(window.failure().find("request 1 "), std::string::npos) << window.failure();
    EXPECT_NE(window.failure().find("remote access"), std::string::npos) << window.failure();
    EXPECT_EQ(window.reap(), Status::peer_lost);
}

TEST(Counter, ArrivesWhenPushed) {
    Links links;
    SendWindow window{*links.near};
    CounterPush push{window, links.far_memory.remote()};
    const auto& mirror = *reinterpret_cast<const CounterLine*>(links.far_memory.data());
    for (const std::uint64_t value :
         {std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
        ASSERT_EQ(push.offer(value), Status::ok);
        ASSERT_EQ(settle(window), Status::ok);
        EXPECT_EQ(mirror.load(), value);
    }
    EXPECT_EQ(push.posted(), 3U);
    ASSERT_EQ(push.offer(~std::uint64_t{0}), Status::ok);
    EXPECT_EQ(push.posted(), 3U) << "what the mirror holds is not sent again";
}

TEST(Counter, KeepsOnePushInFlightAndLosesNoValueThatIsOfferedAgain) {
    Links links;
    SendWindow window{*links.near};
    CounterPush push{window, links.far_memory.remote()};
    const auto& mirror = *reinterpret_cast<const CounterLine*>(links.far_memory.data());
    for (std::uint64_t value = 1; value <= 1000; ++value) {
        const std::uint64_t before = push.posted();
        const Status status = push.offer(value);
        ASSERT_TRUE(status == Status::ok || status == Status::full);
        ASSERT_EQ(push.posted(), before + (status == Status::ok ? 1 : 0));
        ASSERT_LE(window.posted() - window.completed(), 1U);
    }
    base::NapParker parker;
    ASSERT_EQ(base::wait_until([&] { return push.offer(1000) == Status::ok; },
                               Deadline::after(patience()), {}, parker),
              Status::ok);
    ASSERT_EQ(settle(window), Status::ok);
    EXPECT_EQ(mirror.load(), 1000U);
}

TEST(Counter, ArrivesWhenPulled) {
    Links links;
    SendWindow window{*links.near};
    auto& source = *reinterpret_cast<CounterLine*>(links.far_memory.data());
    CounterPull pull{window, links.far_memory.remote(), links.near_memory.slice(0, 8), 5};
    EXPECT_EQ(pull.value(), 5U);
    EXPECT_FALSE(pull.poll());
    for (std::uint64_t value = 100; value < 110; ++value) {
        source.store(value);
        ASSERT_EQ(pull.start(), Status::ok);
        ASSERT_EQ(pull.start(), Status::ok) << "asking twice is asking once";
        EXPECT_TRUE(pull.pending());
        ASSERT_EQ(settle(window), Status::ok);
        ASSERT_TRUE(pull.poll());
        EXPECT_FALSE(pull.pending());
        EXPECT_EQ(pull.value(), value);
    }
    EXPECT_EQ(pull.posted(), 10U);
}

/// Numbers, each of which finds a sleeper or one falling asleep.
void wake_with_every_number(Pair& pair) {
    // The number travels as data would: by a WRITE in front of the event.
    CounterPush data{pair.far_window, pair.links.near_memory.remote(1024)};
    const auto& arrived =
        *reinterpret_cast<const CounterLine*>(pair.links.near_memory.data() + 1024);
    const std::uint64_t last = test::repetitions(3000);
    std::atomic<std::uint64_t> taken{0};
    std::thread waker{[&] {
        std::uint64_t random = 1;
        for (std::uint64_t number = 1; number <= last; ++number) {
            const bool wake = pair.bell.publish(number);
            base::NapParker parker;
            EXPECT_EQ(base::wait_until([&] { return data.offer(number) == Status::ok; },
                                       Deadline::after(patience()), {}, parker),
                      Status::ok);
            if (wake) {
                EXPECT_EQ(pair.bell.ring(), Status::ok);
            }
            // Waits for the answer, so that every number finds a sleeper, or one falling asleep.
            const Deadline deadline = Deadline::after(patience());
            while (taken.load() != number && !deadline.expired()) base::pause();
            ASSERT_EQ(taken.load(), number) << "the sleeper was not woken";
            random = random * 6364136223846793005 + 1442695040888963407;
            const std::uint64_t until = base::ticks() + (random >> 50);
            while (base::ticks() < until) base::pause();
        }
    }};
    for (std::uint64_t number = 1; number <= last; ++number) {
        // As base::wait_until, but a sleep does not end by itself before the waker gives up.
        while (arrived.load() != number) {
            pair.sleeper.prepare();
            if (arrived.load() != number) pair.sleeper.park(60s, nullptr);
            pair.sleeper.retract();
        }
        pair.sleeper.seen = number;
        taken.store(number);
    }
    waker.join();
    EXPECT_GT(pair.sleeper.woken(), 0U);
    EXPECT_LE(pair.sleeper.woken(), pair.sleeper.announcements());
    EXPECT_LE(pair.bell.rung(), pair.sleeper.announcements());
}

TEST(WakeUp, SleeperIsWokenByEveryNumberHoweverTheyMeet) {
    Pair pair;
    wake_with_every_number(pair);
}

TEST(WakeUp, SleeperThatMakesTheFencesIsWokenByEveryNumber) {
    Pair pair{true};
    if (!pair.far_fences) GTEST_SKIP() << "no membarrier here";
    wake_with_every_number(pair);
}

TEST(WakeUp, AwakeEndsPostNothing) {
    Pair pair;
    for (std::uint64_t number = 1; number < 100; ++number) {
        EXPECT_FALSE(pair.bell.publish(number));
    }
    EXPECT_EQ(pair.far_window.posted(), 0U);
    EXPECT_EQ(pair.near_window.posted(), 0U);
}

TEST(WakeUp, AnnouncementStandsOverManySlicesOfOneSleep) {
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(fall_asleep(pair));  // on a link it takes any number of slices
    for (int slice = 0; slice < 20; ++slice) {
        pair.sleeper.prepare();
        pair.sleeper.park(2ms, nullptr);
        pair.sleeper.retract();
    }
    EXPECT_EQ(pair.sleeper.announcements(), 1U);
    EXPECT_LE(pair.near_window.posted(), 2U) << "one WRITE of the flag, one READ of the progress";
    EXPECT_TRUE(pair.bell.publish(1));
    ASSERT_EQ(pair.bell.ring(), Status::ok);
    EXPECT_FALSE(pair.bell.publish(2)) << "one event answers one announcement";
}

TEST(WakeUp, DoesNotSleepOnNewsThatCameBeforeItsFlag) {
    Pair pair;
    EXPECT_FALSE(pair.bell.publish(7));  // nobody sleeps yet: no event will come
    // The READ behind the flag finds it: from then on every park only naps.
    const Deadline deadline = Deadline::after(patience());
    while (pair.sleeper.news_found == 0 && !deadline.expired()) {
        pair.sleeper.prepare();
        pair.sleeper.park(10ms, nullptr);
        pair.sleeper.retract();
    }
    const std::uint64_t sleeps = pair.sleeper.sleeps();
    for (int i = 0; i < 3; ++i) {
        pair.sleeper.prepare();
        while (!pair.near_window.done(pair.near_window.posted()) && !deadline.expired()) {
            (void)pair.near_window.reap();
        }
        pair.sleeper.park(20s, nullptr);
        pair.sleeper.retract();
    }
    EXPECT_EQ(pair.sleeper.sleeps(), sleeps);
    EXPECT_GE(pair.sleeper.news_found, 4U);
    EXPECT_EQ(pair.bell.rung(), 0U);
    EXPECT_EQ(pair.sleeper.woken(), 0U);
}

}  // namespace
}  // namespace millrace::ring
