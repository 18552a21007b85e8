// The conformance suite of all designs, over items.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "flow/conformance.hpp"
#include "millrace/verbs/memory.hpp"
#include "support/sleeps.hpp"

namespace millrace::flow {
namespace {

using namespace test;

class EveryDesignOfItems : public EveryDesign {};
INSTANTIATE_TEST_SUITE_P(Points, EveryDesignOfItems, testing::ValuesIn(every_design()),
                         [](const auto& point) { return name_of_point(point.param); });

TEST_P(EveryDesignOfItems, KeepsOrderWhereTheRingWraps) {
    keeps_order_where_the_ring_wraps<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, SaysFullAndGoesOn) { says_full_and_goes_on<Numbered>(GetParam()); }
TEST_P(EveryDesignOfItems, KeepsOrderWhereItsCountersWrap) {
    keeps_order_where_counters_wrap<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, SleepsAndWakes) { sleeps_and_wakes<Numbered>(GetParam()); }
// It sleeps for as long as nothing comes, and does not look now and then.
TEST_P(EveryDesignOfItems, LooksNoMoreWhileAnIdleConsumerSleeps) {
    AnyEnds<Numbered> ends{GetParam(),
                           Options{.ring = {.capacity = 16}, .wait = base::WaitPolicy::blocking()}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    ASSERT_EQ(ends.producer->enqueue(Kind<Numbered>::make(0), Deadline::after(40s)), Status::ok);
    ASSERT_EQ(ends.take(), 0U);
    std::thread producer{[&, consumer = ::gettid()] {
        // Some naps while its announcement is on its way are no looks. How long that takes depends
        // on what else runs here; looks would never end.
        std::uint64_t sleeps = 7;
        for (int tries = 0; tries < 40 && sleeps >= 7; ++tries) {
            const std::uint64_t before = millrace::test::sleeps_of_thread(consumer);
            std::this_thread::sleep_for(500ms);
            sleeps = millrace::test::sleeps_of_thread(consumer) - before;
        }
        EXPECT_LT(sleeps, 7U) << "in half a second, where a look every 50 ms would be 10";
        EXPECT_EQ(ends.producer->enqueue(Kind<Numbered>::make(1), Deadline::after(40s)),
                  Status::ok);
        // Of pulled data this waits for the consumer.
        EXPECT_EQ(ends.producer->flush(Deadline::after(40s)), Status::ok);
    }};
    Numbered item;
    EXPECT_EQ(ends.consumer->dequeue(item, Deadline::never()), Status::ok);
    EXPECT_EQ(Kind<Numbered>::number_of(item), 1U);
    producer.join();
}
TEST_P(EveryDesignOfItems, TakesItemsInPlaceAndInBatches) {
    takes_items_in_place_and_in_batches<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, EndsWaitsThatAreCancelled) {
    ends_waits_that_are_cancelled<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, FlushesThoughTheConsumerMakesNoMoreCalls) {
    flushes_what_was_taken<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, LetsTheConsumerDrainAfterTheProducerClosed) {
    drains_after_close<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, TellsOfLossAndOfClose) {
    tells_of_loss_and_of_close<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, GathersWhatLiesElsewhereOrSaysThatItCannot) {
    AnyEnds<Numbered> ends{GetParam(), Options{.ring = {.capacity = 16}, .gather = 4}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    std::vector<Numbered> memory(16);
    std::optional<verbs::MemoryRegion> region;
    if (GetParam().data == ring::DataFlow::push1) {
        region.emplace(ends.producer->register_memory(std::as_writable_bytes(std::span{memory})));
    } else {
        try {
            (void)ends.producer->register_memory(std::as_writable_bytes(std::span{memory}));
            ADD_FAILURE() << "registered";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::unsupported) << error.what();
            EXPECT_NE(error.remedy().find("push1"), std::string::npos) << error.what();
        }
        region.emplace();  // of no use to it, so it copies
    }
    for (std::uint64_t first = 0; first < 60; first += 3) {
        std::vector<const Numbered*> items;
        for (std::uint64_t i = first; i < first + 3; ++i) {
            memory[i * 5 % 16] = Kind<Numbered>::make(i);
            items.push_back(&memory[i * 5 % 16]);
        }
        const BatchResult in = ends.producer->try_enqueue_gather(*region, items);
        ASSERT_EQ(in.status, Status::ok);
        ASSERT_EQ(in.count, 3U);
        for (std::uint64_t i = first; i < first + 3; ++i) ASSERT_EQ(ends.take(), i);
        ASSERT_EQ(ends.producer->flush(Deadline::after(40s)), Status::ok);
        ASSERT_EQ(ends.producer->released(), first + 3);
    }
}

// The same with every batching and mover. All points in one process for each.
class EveryWayOfItems : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, EveryWayOfItems, testing::ValuesIn(every_way()), name_of_way);

TEST_P(EveryWayOfItems, KeepsOrderWhereTheRingWraps) {
    at_every_point([](ring::Design design) { keeps_order_where_the_ring_wraps<Numbered>(design); });
}
TEST_P(EveryWayOfItems, SaysFullAndGoesOn) {
    at_every_point([](ring::Design design) { says_full_and_goes_on<Numbered>(design, 1); });
}
TEST_P(EveryWayOfItems, KeepsOrderWhereItsCountersWrap) {
    at_every_point([](ring::Design design) { keeps_order_where_counters_wrap<Numbered>(design); });
}
TEST_P(EveryWayOfItems, SleepsAndWakes) {
    at_every_point([](ring::Design design) { sleeps_and_wakes<Numbered>(design); });
}
TEST_P(EveryWayOfItems, TakesItemsInPlaceAndInBatches) {
    at_every_point(
        [](ring::Design design) { takes_items_in_place_and_in_batches<Numbered>(design); });
}
TEST_P(EveryWayOfItems, FlushesThoughTheConsumerMakesNoMoreCalls) {
    at_every_point([](ring::Design design) { flushes_what_was_taken<Numbered>(design); });
}
TEST_P(EveryWayOfItems, LetsTheConsumerDrainAfterTheProducerClosed) {
    at_every_point([](ring::Design design) { drains_after_close<Numbered>(design); });
}
TEST_P(EveryWayOfItems, TellsOfLossAndOfClose) {
    at_every_point([](ring::Design design) { tells_of_loss_and_of_close<Numbered>(design); });
}

// Transfer push on a queue pair of its own.
class EveryOwnQueueOfItems : public EveryOwnQueue {};
INSTANTIATE_TEST_SUITE_P(Points, EveryOwnQueueOfItems, testing::ValuesIn(every_pushed_transfer()),
                         [](const auto& point) { return name_of_point(point.param); });

TEST_P(EveryOwnQueueOfItems, KeepsOrderWhereTheRingWraps) {
    both_ways(
        [](ring::Design design) { keeps_order_where_the_ring_wraps<Numbered>(design, asked()); });
}
TEST_P(EveryOwnQueueOfItems, SaysFullAndGoesOn) {
    says_full_and_goes_on<Numbered>(GetParam(), 2, asked());
}
TEST_P(EveryOwnQueueOfItems, KeepsOrderWhereItsCountersWrap) {
    keeps_order_where_counters_wrap<Numbered>(GetParam(), asked());
}
TEST_P(EveryOwnQueueOfItems, SleepsAndWakes) {
    both_ways([](ring::Design design) { sleeps_and_wakes<Numbered>(design, asked()); });
}
TEST_P(EveryOwnQueueOfItems, TakesItemsInPlaceAndInBatches) {
    takes_items_in_place_and_in_batches<Numbered>(GetParam(), asked());
    takes_items_in_place_and_in_batches<Numbered>(with(GetParam(), ring::Batching::fixed), asked());
}
TEST_P(EveryOwnQueueOfItems, FlushesThoughTheConsumerMakesNoMoreCalls) {
    both_ways([](ring::Design design) { flushes_what_was_taken<Numbered>(design, asked()); });
}
TEST_P(EveryOwnQueueOfItems, LetsTheConsumerDrainAfterTheProducerClosed) {
    drains_after_close<Numbered>(GetParam(), asked());
}
TEST_P(EveryOwnQueueOfItems, TellsOfLossAndOfClose) {
    tells_of_loss_and_of_close<Numbered>(GetParam(), asked());
}

}  // namespace
}  // namespace millrace::flow
