// The orders of events by which models/ring.pml and models/both_sleep.pml show each fault, played
// on the code: both ends of a ring, driven in turn by one thread. tests/mutants makes the same
// mistakes in the code and runs these.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/ring/design.hpp"
#include "ring/ring_of_numbers.hpp"

namespace millrace::ring {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

template <class D>
class RingReplay : public testing::Test {};
struct Pulled {
    static constexpr Design value = design_1;
};
struct Pushed {
    static constexpr Design value = design_2;
};
using Designs = testing::Types<Pulled, Pushed>;
TYPED_TEST_SUITE(RingReplay, Designs);

// own_ring_forgotten, peer_ring_forgotten
TYPED_TEST(RingReplay, ItemsBeyondBothRingsAreRefusedAndNoneIsOverwritten) {
    for (const std::uint64_t size : {1, 2, 3, 8}) {
        Ring<TypeParam::value> ring{size};
        for (int round = 0; round < 3; ++round) {
            ASSERT_NO_FATAL_FAILURE(ring.fill());
            EXPECT_LE(ring.produced - ring.consumed, 2 * size);
            const SenderCounts counts = ring.sender->counts();
            EXPECT_LE(counts.intransit, (ring.consumed + size) * slot);
            EXPECT_LE(counts.bytes - counts.transferred, size * slot);
            ASSERT_NO_FATAL_FAILURE(ring.take_all());
        }
    }
}

// never_asks
TYPED_TEST(RingReplay, AFullProducerFindsTheSpaceThatThereIs) {
    Ring<TypeParam::value> ring{3};
    ASSERT_NO_FATAL_FAILURE(ring.fill());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(ring.soon([&] { return ring.take(); }));
    EXPECT_TRUE(ring.soon([&] {
        (void)ring.receiver->idle();
        return ring.put() == Status::ok;
    }));
}

// never_settles
TYPED_TEST(RingReplay, AFlushAsksForTheCompletionThatIsMissing) {
    Ring<TypeParam::value> ring{64};
    ASSERT_EQ(ring.put(), Status::ok);
    EXPECT_TRUE(ring.soon([&] { return ring.flush_once() == Status::ok; }));
}

// freed_when_posted
TYPED_TEST(RingReplay, APlaceIsFreeWhenACompletionTellsAndNotBefore) {
    Ring<TypeParam::value> ring{64, 8, Carrier::post};
    ASSERT_EQ(ring.put(), Status::ok);
    ASSERT_TRUE(ring.soon([&] { return ring.take(); }));
    // Its WRITE leaves no completion.
    EXPECT_EQ(ring.sender->transferred() - ring.sender->terms().initial, 0U);
}

// batch_wraps
TYPED_TEST(RingReplay, ARunEndsWhereTheRingDoes) {
    for (const std::uint64_t size : {2, 3, 5}) {
        for (std::uint64_t before = 1; before < size; ++before) {
            Ring<TypeParam::value> ring{size};
            for (std::uint64_t i = 0; i < before; ++i) {
                ASSERT_EQ(ring.put(), Status::ok);
                ASSERT_TRUE(ring.soon([&] { return ring.take(); }));
            }
            ASSERT_TRUE(ring.soon([&] {
                (void)ring.receiver->idle();
                return ring.flush_once() == Status::ok;
            }));
            ASSERT_NO_FATAL_FAILURE(ring.fill());
            // The first ring of items is taken as a whole, so the second goes in runs.
            while (ring.consumed != ring.produced) {
                ASSERT_TRUE(ring.soon([&] {
                    const std::uint64_t had = ring.consumed;
                    while (ring.take()) {
                    }
                    (void)ring.receiver->idle();
                    (void)ring.flush_once();
                    return ring.consumed != had;
                })) << ring.consumed
                    << ": " << ring.sender->failure();
            }
        }
    }
}

// mark_in_the_run
TYPED_TEST(RingReplay, AMarkIsNotThereBeforeItsItem) {
    Ring<TypeParam::value> ring{64};
    for (int round = 0; round < 60; ++round) {
        for (int i = 0; i < 20; ++i) {
            ASSERT_TRUE(ring.soon([&] {
                (void)ring.receiver->idle();
                return ring.lay() == Status::ok;
            }));
        }
        ASSERT_EQ(ring.sender->send(), Status::ok);
        const Deadline deadline = Deadline::after(patience());
        while (ring.consumed != ring.produced) {
            ASSERT_FALSE(deadline.expired()) << ring.consumed;
            if (!ring.take()) {
                // A credit that found another one on its way, which was lost, goes from here.
                (void)ring.receiver->idle();
                (void)ring.flush_once();
            }
            if (this->HasFailure()) return;
        }
    }
}

// no_flush
TYPED_TEST(RingReplay, NoGoodbyeIsSaidBeforeAllIsInTheConsumersRing) {
    Ring<TypeParam::value> ring{2, 8, Carrier::post};
    ASSERT_NO_FATAL_FAILURE(ring.fill_both());
    EXPECT_EQ(ring.sender->close(Deadline::now(), base::WaitPolicy::polling()), Status::timed_out);
}

// flush_sends_nothing
TYPED_TEST(RingReplay, AFlushSendsWhatWasStranded) {
    Ring<TypeParam::value> ring{2};
    ASSERT_NO_FATAL_FAILURE(ring.fill());
    ASSERT_NO_FATAL_FAILURE(ring.take_all());
}

// not_offered_again
TYPED_TEST(RingReplay, ACreditThatFoundOneOnItsWayIsOfferedAgain) {
    Ring<TypeParam::value> ring{64, 1024};
    for (int i = 0; i < 20; ++i) ASSERT_EQ(ring.put(), Status::ok);
    ASSERT_TRUE(ring.soon([&] {
        while (ring.take()) {
        }
        return ring.consumed == ring.produced;
    }));
    if (TypeParam::value.space == SpaceNotification::pull) return;  // none travels
    EXPECT_TRUE(ring.soon([&] {
        (void)ring.receiver->idle();
        (void)ring.flush_once();
        return ring.sender->counts().credited == ring.consumed * slot;
    }));
}

// close_at_once: the goodbye comes between the consumer's look at the mark and its look for the
// peer.
TYPED_TEST(RingReplay, ClosedIsAnsweredWhenAllWasTakenAndNotBefore) {
    Ring<TypeParam::value> ring{4};
    ASSERT_EQ(ring.receiver->idle(), Status::empty);
    ASSERT_FALSE(ring.receiver->has_slot(slot));
    ASSERT_EQ(ring.put(), Status::ok);
    ASSERT_EQ(ring.sender->close(Deadline::after(patience()), base::WaitPolicy::polling()),
              Status::ok);
    // The looks for the peer are paced by the clock; after these it has seen the goodbye.
    std::this_thread::sleep_for(80ms);
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(ring.receiver->idle(), Status::empty);
        std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(ring.soon([&] { return ring.take(); }));
    EXPECT_TRUE(ring.soon([&] { return ring.receiver->idle() == Status::closed; }));
}

// stale_mark
TYPED_TEST(RingReplay, WhatIsLeftOfTheLastLapIsNoItem) {
    Ring<TypeParam::value> ring{3};
    for (int lap = 0; lap < 9; ++lap) {
        ASSERT_TRUE(ring.soon([&] {
            (void)ring.receiver->idle();
            return ring.put() == Status::ok;
        }));
        ASSERT_TRUE(ring.soon([&] {
            (void)ring.flush_once();
            return ring.take();
        }));
        ASSERT_FALSE(ring.receiver->has_slot(slot)) << lap;
    }
}

// flush_blind: no request fails that would tell.
TYPED_TEST(RingReplay, AFlushOverStoresSaysThatTheConsumerIsGone) {
    Ring<TypeParam::value> ring{4};
    if (!ring.sender->terms().in_place) GTEST_SKIP() << "this end posts";
    ASSERT_EQ(ring.put(), Status::ok);
    ring.receiver.reset();
    EXPECT_EQ(ring.sender->flush(Deadline::after(patience()), base::WaitPolicy::polling()),
              Status::peer_lost);
}

// stored_not_rung: nothing makes the threads of a busy machine meet, so again until they have met.
TYPED_TEST(RingReplay, AConsumerThatSleepsIsRungForWhenAnItemComes) {
    Ring<TypeParam::value> ring{4};
    const Deadline deadline = Deadline::after(patience());
    while (ring.sender->counts().events == 0 && !deadline.expired()) {
        std::atomic<bool> is_over{false};
        std::thread asleep{[&] {
            const Status waited =
                ring.receiver->wait([&] { return ring.take(); }, Deadline::after(patience()),
                                    base::WaitPolicy::blocking());
            EXPECT_EQ(waited, Status::ok);
            (void)ring.receiver->idle();
            is_over = true;
        }};
        std::this_thread::sleep_for(5ms);
        EXPECT_TRUE(ring.soon([&] { return ring.put() == Status::ok; }));
        while (!is_over) {
            (void)ring.flush_once();
            std::this_thread::sleep_for(50us);
        }
        asleep.join();
        if (this->HasFailure()) return;
    }
    EXPECT_GT(ring.sender->counts().events, 0U);
}

// space_not_rung: nothing makes the threads of a busy machine meet, so again until they have met.
TYPED_TEST(RingReplay, AProducerThatSleepsIsRungForWhenSpaceReturns) {
    Ring<TypeParam::value> ring{1};
    const Deadline deadline = Deadline::after(patience());
    while (ring.receiver->counts().events == 0 && !deadline.expired()) {
        ASSERT_NO_FATAL_FAILURE(ring.fill());
        std::atomic<bool> is_over{false};
        std::thread asleep{[&] {
            Status status = Status::full;
            const Status waited = ring.sender->wait(
                [&] {
                    status = ring.put();
                    return status != Status::full;
                },
                Deadline::after(patience()), base::WaitPolicy::blocking());
            EXPECT_EQ(waited, Status::ok);
            EXPECT_EQ(status, Status::ok);
            is_over = true;
        }};
        std::this_thread::sleep_for(5ms);
        EXPECT_TRUE(ring.soon([&] { return ring.take(); }));
        while (!is_over) {
            (void)ring.receiver->idle();
            std::this_thread::sleep_for(50us);
        }
        asleep.join();
    }
    EXPECT_GT(ring.receiver->counts().events, 0U) << "it slept, and nobody rang";
}

}  // namespace
}  // namespace millrace::ring
