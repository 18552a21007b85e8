// The orders of events by which models/wake_up.pml shows each fault, played on the code: both ends
// driven in turn by one thread. tests/mutants makes the same mistakes in the code and runs these.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "ring/links.hpp"

namespace millrace::ring {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

/// Publishes `number` while the sleeper is about to sleep, and rings.
void wake_up(Pair& pair, std::uint64_t number) {
    const std::uint64_t before = pair.sleeper.woken();
    pair.sleeper.prepare();
    ASSERT_TRUE(pair.bell.publish(number)) << "an announcement stands";
    ASSERT_EQ(pair.bell.ring(), Status::ok);
    pair.sleeper.seen = number;
    const Deadline deadline = Deadline::after(patience());
    pair.sleeper.park(patience(), nullptr);
    pair.sleeper.retract();
    // It slept until something came, and takes that now; a busy link may bring the event later.
    while (pair.sleeper.woken() == before && !deadline.expired()) turn(pair);
    ASSERT_GT(pair.sleeper.woken(), before) << "the event has not come";
}

TEST(WakeUpReplay, NewsFromBeforeTheAnnouncementIsFoundByTheRead) {
    Pair pair;
    ASSERT_FALSE(pair.bell.publish(7)) << "nobody has announced anything";
    const Deadline deadline = Deadline::after(patience());
    while (pair.sleeper.news_found == 0 && !deadline.expired()) {
        turn(pair);
        ASSERT_FALSE(pair.sleeper.waits_for_bell()) << "for an event that nobody will send";
    }
    EXPECT_GT(pair.sleeper.news_found, 0U);
}

TEST(WakeUpReplay, EveryAnnouncementHasAReadOfItsOwn) {
    const Deadline deadline = Deadline::after(patience());
    std::optional<Pair> pair;
    bool is_between = false;
    // Published between the two announcements, so nobody is rung for. A sleeper may be quicker than
    // this test and have announced again, so again until one is not.
    while (!is_between && !deadline.expired()) {
        pair.emplace();
        fall_asleep(*pair);
        wake_up(*pair, 1);
        if (HasFatalFailure()) return;
        is_between = !pair->bell.publish(2);
    }
    ASSERT_TRUE(is_between);
    while (pair->sleeper.news_found == 0 && !deadline.expired()) {
        turn(*pair);
        ASSERT_FALSE(pair->sleeper.waits_for_bell()) << "for an event that nobody will send";
    }
    EXPECT_GT(pair->sleeper.news_found, 0U);
}

TEST(WakeUpReplay, TheBellAnswersAnAnnouncementOnce) {
    Pair pair;
    fall_asleep(pair);
    ASSERT_TRUE(pair.bell.publish(1));
    ASSERT_EQ(pair.bell.ring(), Status::ok);
    EXPECT_EQ(pair.bell.rung(), 1U);
    EXPECT_FALSE(pair.bell.publish(2));
    ASSERT_EQ(pair.bell.ring(), Status::ok);
    EXPECT_EQ(pair.bell.rung(), 1U);
}

TEST(WakeUpReplay, ASleeperThatNeedsNoRoomIsRungForTheRestAlone) {
    Pair pair;
    pair.sleeper.needs_room = false;
    fall_asleep(pair);
    EXPECT_TRUE(pair.bell.peer_sleeps());
    EXPECT_FALSE(pair.bell.peer_waits_for_room());
    ASSERT_NO_FATAL_FAILURE(wake_up(pair, 1));
}

TEST(WakeUpReplay, ASleeperThatComesToNeedRoomAnnouncesThat) {
    Pair pair;
    pair.sleeper.needs_room = false;
    fall_asleep(pair);
    pair.sleeper.needs_room = true;
    EXPECT_FALSE(pair.sleeper.waits_for_bell());
    fall_asleep(pair);
    EXPECT_TRUE(pair.bell.peer_waits_for_room());
    ASSERT_NO_FATAL_FAILURE(wake_up(pair, 1));
    // As little as it needs, it never sleeps on an announcement that leaves that out.
    pair.sleeper.needs_room = false;
    fall_asleep(pair);
    pair.sleeper.prepare();
    pair.sleeper.needs_room = true;
    EXPECT_EQ(pair.sleeper.settle(), base::StandingParker::Rest::look);
    pair.sleeper.retract();
}

TEST(WakeUpReplay, ASleeperIsRungForAsOftenAsItSleeps) {
    Pair pair;
    for (std::uint64_t number = 1; number <= 3 * Sleeper::receives; ++number) {
        ASSERT_NO_FATAL_FAILURE(fall_asleep(pair)) << number;
        ASSERT_NO_FATAL_FAILURE(wake_up(pair, number)) << number;
    }
    EXPECT_EQ(pair.sleeper.woken(), pair.bell.rung());
    EXPECT_FALSE(pair.sleeper.broken());
}

}  // namespace
}  // namespace millrace::ring
