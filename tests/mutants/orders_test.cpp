// What only shows where two steps meet in one order of many: the other end acts, or a store stays
// unseen, exactly there (seam.hpp). On the code as it is nothing may come of it; with the mistakes
// that tests/mutants/CMakeLists.txt plants these tests must fail. Models: wake_up, both_sleep,
// ring.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>

#include "flow/ends.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/ring/design.hpp"
#include "mutants/seam.hpp"
#include "ring/links.hpp"
#include "ring/ring_of_numbers.hpp"

namespace millrace::ring {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

class Orders : public testing::Test {
  protected:
    ~Orders() override {
        test::act = {};
        test::store_buffer = {};
        test::is_never_due = false;
    }
};

/// A sleeper that makes the bell's fences, whether or not this machine has membarrier: the seam's
/// store buffer obeys it anyway.
struct FarPair : Pair {
    FarPair() {
        bell = Bell{far_window, far_page, links.near_memory.remote(), true};
        sleeper.connect_to(links.far_memory.remote(), true);
    }
};

/// Turns until the sleeper would sleep for good. False: there was news, so it would not.
[[nodiscard]] bool would_sleep(Pair& pair) {
    const std::uint64_t found = pair.sleeper.news_found;
    const Deadline deadline = Deadline::after(patience());
    while (pair.sleeper.news_found == found && !pair.sleeper.waits_for_bell()) {
        turn(pair);
        if (deadline.expired()) {
            ADD_FAILURE() << "it neither sleeps nor finds news";
            return false;
        }
    }
    return pair.sleeper.news_found == found;
}

// look_first
TEST_F(Orders, AnAnnouncementThatComesBehindTheStoreMeetsTheBellsLook) {
    Pair pair;
    bool sleeps = false;
    test::when_at("between the store and the look", [&] { sleeps = would_sleep(pair); });
    const bool rings = pair.bell.publish(1);
    EXPECT_TRUE(rings || !sleeps) << "it sleeps for good, and nobody rings";
}

// no_fence
TEST_F(Orders, AStoreIsVisibleBeforeTheBellLooks) {
    Pair pair;
    test::store_buffer.is_on = true;
    ASSERT_FALSE(pair.bell.publish(1)) << "nobody has announced anything";
    EXPECT_FALSE(would_sleep(pair)) << "for good: nobody rings";
    test::drain();
}

// no_far_fence
TEST_F(Orders, TheSleepersFenceMakesTheBellsStoreVisible) {
    FarPair pair;
    test::store_buffer.is_on = true;
    ASSERT_FALSE(pair.bell.publish(1)) << "nobody has announced anything";
    EXPECT_FALSE(would_sleep(pair)) << "for good: nobody rings";
    test::drain();
}

// early_fence; any_completion, which needs a second announcement. For devices with a latency.
TEST_F(Orders, TheSleepersFenceWaitsForItsFlag) {
    if (completes_at_once()) GTEST_SKIP() << "a flag is never on its way here";
    const Deadline deadline = Deadline::after(patience());
    for (int met = 0; met < 2;) {
        ASSERT_FALSE(deadline.expired()) << "no number was ever published while a flag travelled";
        FarPair pair;
        test::store_buffer.is_on = true;
        std::uint64_t number = 0;
        for (met = 0; met < 2; ++met) {
            const std::uint64_t announced = pair.sleeper.announcements();
            for (;;) {
                pair.sleeper.prepare();
                if (pair.sleeper.announcements() != announced) break;
                pair.sleeper.park(1ms, nullptr);
                pair.sleeper.retract();
                ASSERT_FALSE(deadline.expired());
            }
            if (pair.bell.publish(++number)) break;  // it was there already: once more
            pair.sleeper.retract();
            ASSERT_FALSE(would_sleep(pair)) << "for good: nobody rings";
            test::drain();
            pair.sleeper.seen = number;
            ASSERT_NO_FATAL_FAILURE(fall_asleep(pair));
            ASSERT_TRUE(pair.bell.publish(++number));
            ASSERT_EQ(pair.bell.ring(), Status::ok);
            pair.sleeper.seen = number;
        }
        test::drain();  // it lies in the pair's memory
    }
}

// read_first
TEST_F(Orders, NothingIsMissedBetweenTheFlagAndTheRead) {
    Pair pair;
    bool rings = false;
    test::when_at("between the flag and the READ", [&] { rings = pair.bell.publish(1); });
    EXPECT_TRUE(!would_sleep(pair) || rings) << "it sleeps for good, and nobody rings";
}

// old_read. For devices on which the flag has arrived when its WRITE was posted.
TEST_F(Orders, AReadFromBeforeTheAnnouncementDoesNotCount) {
    if (!completes_at_once()) GTEST_SKIP() << "the bell cannot answer between flag and READ here";
    Pair pair;
    ASSERT_FALSE(pair.bell.publish(1));
    pair.sleeper.seen = 1;
    // The event comes before the READ does: what the READ finds is taken already.
    test::when_at("between the flag and the READ", [&] {
        EXPECT_TRUE(pair.bell.publish(2));
        EXPECT_EQ(pair.bell.ring(), Status::ok);
    });
    pair.sleeper.prepare();
    pair.sleeper.retract();
    pair.sleeper.seen = 2;
    ASSERT_FALSE(pair.bell.publish(3)) << "the announcement is answered";
    EXPECT_FALSE(would_sleep(pair)) << "for good: nobody rings";
}

// looks_only_by_chance. For devices with a latency.
TEST_F(Orders, AConsumerOffersItsCreditAgainBeforeItSleeps) {
    if (completes_at_once()) GTEST_SKIP() << "a credit is never on its way here";
    const Deadline deadline = Deadline::after(patience());
    test::is_never_due = true;
    bool owes = false;
    while (!owes) {
        ASSERT_FALSE(deadline.expired()) << "no credit was ever refused because of another";
        Ring<design_2> ring{64, 1024};
        // The first look is due at once; where all items are there before they are taken, it would
        // be the one before the sleep.
        ASSERT_EQ(ring.receiver->idle(), Status::empty);
        std::uint64_t writes = 0;
        for (int i = 0; i < 20; ++i) ASSERT_EQ(ring.put(), Status::ok);
        while (ring.consumed != ring.produced) {
            writes = ring.receiver->counts().credit_writes;
            ASSERT_TRUE(ring.soon([&] { return ring.take(); }));
        }
        owes = ring.receiver->counts().credit_writes == writes;
        // Waits that end before they sleep: what it does by then is all that it does.
        EXPECT_TRUE(ring.soon([&] {
            (void)ring.receiver->wait(
                [&] {
                    (void)ring.receiver->idle();
                    return false;
                },
                Deadline::now(), base::WaitPolicy::blocking());
            (void)ring.flush_once();
            return ring.sender->counts().credited == ring.consumed * slot;
        })) << "it sleeps, and owes credit";
    }
}

// space_not_rung; answer_ignored, of a producer that READs: within a wait it does not, as the
// consumer rings.
TEST_F(Orders, AProducerThatWasRungForAsks) {
    test::is_never_due = true;
    Ring<design_1> ring{1};
    ASSERT_NO_FATAL_FAILURE(ring.fill_both());
    bool rung = false;
    int looks = 0;
    Status status = Status::full;
    test::when_at("asleep", [&] {
        EXPECT_TRUE(ring.soon([&] { return ring.take(); }));
        (void)ring.receiver->idle();
        rung = true;
    });
    EXPECT_EQ(ring.sender->wait(
                  [&] {
                      status = ring.put();
                      return status != Status::full ||
                             (rung && completes_at_once() && ++looks == 20);
                  },
                  Deadline::after(patience()), base::WaitPolicy::blocking()),
              Status::ok);
    EXPECT_EQ(status, Status::ok) << "space came, its bell was rung, and it does not look";
}

// freed_before_read
TEST_F(Orders, AnItemIsReadBeforeItsPlaceIsGivenBack) {
    flow::test::Ends<std::uint64_t, design_2> ends{flow::Options{.ring = {.capacity = 1}}};
    ASSERT_EQ(ends.producer().try_enqueue(10), Status::ok);
    // Stranded: the consumer's ring is full.
    ASSERT_EQ(ends.producer().enqueue(11, Deadline::after(patience())), Status::ok);
    std::uint64_t item = 0;
    test::when_at("before the item is read", [&] {
        (void)ends.producer().flush(Deadline::after(ends.completes_at_once() ? 0ms : 100ms));
    });
    ASSERT_EQ(ends.take(item), Status::ok);
    EXPECT_EQ(item, 10U);
}

// ---- of items that are stored where the consumer reads them

class StoredOrders : public Orders {
  protected:
    template <Design D = design_2>
    struct Queue : flow::test::Ends<std::uint64_t, D> {
        explicit Queue(std::uint64_t capacity)
            : flow::test::Ends<std::uint64_t, D>{flow::Options{.ring = {.capacity = capacity}}} {}
        [[nodiscard]] bool stores() {
            return this->producer().explain().find("carrier: store") != std::string::npos;
        }
        /// What the consumer finds when it looks at `place` of the code.
        void look_at(const char* place) {
            test::when_at(place, [this] { found = this->consumer().try_dequeue(item); });
        }
        Status found = Status::timed_out;  ///< nobody has looked
        std::uint64_t item = 0;
    };
};

// mark_before_item
TEST_F(StoredOrders, AnItemIsThereBeforeItsMark) {
    Queue queue{4};
    if (!queue.stores()) GTEST_SKIP() << "not on this device";
    queue.look_at("before the item is laid");
    ASSERT_EQ(queue.producer().try_enqueue(10), Status::ok);
    ASSERT_EQ(queue.found, Status::empty) << "it has taken " << queue.item;
    ASSERT_EQ(queue.take(queue.item), Status::ok);
    EXPECT_EQ(queue.item, 10U);
}

// first_not_held
TEST_F(StoredOrders, ABatchIsThereBeforeItsFirstMark) {
    Queue queue{4};
    if (!queue.stores()) GTEST_SKIP() << "not on this device";
    queue.look_at("before the batch is shown");
    constexpr std::array<std::uint64_t, 3> items{10, 11, 12};
    ASSERT_EQ(queue.producer().try_enqueue_batch(items).count, 3U);
    ASSERT_EQ(queue.found, Status::empty) << "it has taken " << queue.item;
    for (const std::uint64_t expected : items) {
        ASSERT_EQ(queue.take(queue.item), Status::ok);
        EXPECT_EQ(queue.item, expected);
    }
}

// copied_in_any_order: the mover's thread looks, between the steps of its copy.
TEST_F(StoredOrders, ACopiedRunIsThereBeforeItsFirstMark) {
    Queue<with(design_2, Batching::none, Mover::active)> queue{4};
    if (!queue.stores()) GTEST_SKIP() << "not on this device";
    queue.look_at("before a run is copied");
    ASSERT_EQ(queue.producer().try_enqueue(10), Status::ok);
    ASSERT_EQ(queue.producer().flush(Deadline::after(patience())), Status::ok);
    ASSERT_EQ(queue.found, Status::empty) << "it has taken " << queue.item;
    ASSERT_EQ(queue.take(queue.item), Status::ok);
    EXPECT_EQ(queue.item, 10U);
}

// freed_before_read
TEST_F(StoredOrders, AnItemIsReadBeforeTheNextIsLaidOverIt) {
    Queue queue{1};
    if (!queue.stores()) GTEST_SKIP() << "not on this device";
    ASSERT_EQ(queue.producer().try_enqueue(10), Status::ok);
    Status laid = Status::ok;
    test::when_at("before the item is read", [&] { laid = queue.producer().try_enqueue(11); });
    ASSERT_EQ(queue.take(queue.item), Status::ok);
    EXPECT_EQ(laid, Status::full);
    EXPECT_EQ(queue.item, 10U);
}

}  // namespace
}  // namespace millrace::ring
