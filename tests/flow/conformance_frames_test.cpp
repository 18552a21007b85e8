// The conformance suite of all designs, over frames.
#include "flow/conformance.hpp"

namespace millrace::flow {
namespace {

using namespace test;

class EveryDesignOfFrames : public EveryDesign {};
INSTANTIATE_TEST_SUITE_P(Points, EveryDesignOfFrames, testing::ValuesIn(every_design()),
                         [](const auto& point) { return name_of_point(point.param); });

TEST_P(EveryDesignOfFrames, KeepsOrderWhereTheRingWraps) {
    keeps_order_where_the_ring_wraps<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, SaysFullAndGoesOn) { says_full_and_goes_on<Bytes>(GetParam()); }
TEST_P(EveryDesignOfFrames, KeepsOrderWhereItsCountersWrap) {
    keeps_order_where_counters_wrap<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, SleepsAndWakes) { sleeps_and_wakes<Bytes>(GetParam()); }
TEST_P(EveryDesignOfFrames, TakesItemsInPlaceAndInBatches) {
    takes_items_in_place_and_in_batches<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, EndsWaitsThatAreCancelled) {
    ends_waits_that_are_cancelled<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, FlushesThoughTheConsumerMakesNoMoreCalls) {
    flushes_what_was_taken<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, LetsTheConsumerDrainAfterTheProducerClosed) {
    drains_after_close<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, TellsOfLossAndOfClose) {
    tells_of_loss_and_of_close<Bytes>(GetParam());
}

// The same with every batching and mover. All points in one process for each.
class EveryWayOfFrames : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, EveryWayOfFrames, testing::ValuesIn(every_way()), name_of_way);

TEST_P(EveryWayOfFrames, KeepsOrderWhereTheRingWraps) {
    at_every_point([](ring::Design design) { keeps_order_where_the_ring_wraps<Bytes>(design); });
}
TEST_P(EveryWayOfFrames, SaysFullAndGoesOn) {
    at_every_point([](ring::Design design) { says_full_and_goes_on<Bytes>(design, 1); });
}
TEST_P(EveryWayOfFrames, KeepsOrderWhereItsCountersWrap) {
    at_every_point([](ring::Design design) { keeps_order_where_counters_wrap<Bytes>(design); });
}
TEST_P(EveryWayOfFrames, SleepsAndWakes) {
    at_every_point([](ring::Design design) { sleeps_and_wakes<Bytes>(design); });
}
TEST_P(EveryWayOfFrames, TakesItemsInPlaceAndInBatches) {
    at_every_point([](ring::Design design) { takes_items_in_place_and_in_batches<Bytes>(design); });
}
TEST_P(EveryWayOfFrames, FlushesThoughTheConsumerMakesNoMoreCalls) {
    at_every_point([](ring::Design design) { flushes_what_was_taken<Bytes>(design); });
}
TEST_P(EveryWayOfFrames, LetsTheConsumerDrainAfterTheProducerClosed) {
    at_every_point([](ring::Design design) { drains_after_close<Bytes>(design); });
}
TEST_P(EveryWayOfFrames, TellsOfLossAndOfClose) {
    at_every_point([](ring::Design design) { tells_of_loss_and_of_close<Bytes>(design); });
}

// Transfer push on a queue pair of its own.
class EveryOwnQueueOfFrames : public EveryOwnQueue {};
INSTANTIATE_TEST_SUITE_P(Points, EveryOwnQueueOfFrames, testing::ValuesIn(every_pushed_transfer()),
                         [](const auto& point) { return name_of_point(point.param); });

TEST_P(EveryOwnQueueOfFrames, KeepsOrderWhereTheRingWraps) {
    both_ways(
        [](ring::Design design) { keeps_order_where_the_ring_wraps<Bytes>(design, asked()); });
}
TEST_P(EveryOwnQueueOfFrames, SaysFullAndGoesOn) {
    says_full_and_goes_on<Bytes>(GetParam(), 2, asked());
}
TEST_P(EveryOwnQueueOfFrames, KeepsOrderWhereItsCountersWrap) {
    keeps_order_where_counters_wrap<Bytes>(GetParam(), asked());
}
TEST_P(EveryOwnQueueOfFrames, SleepsAndWakes) {
    both_ways([](ring::Design design) { sleeps_and_wakes<Bytes>(design, asked()); });
}
TEST_P(EveryOwnQueueOfFrames, TakesItemsInPlaceAndInBatches) {
    takes_items_in_place_and_in_batches<Bytes>(GetParam(), asked());
    takes_items_in_place_and_in_batches<Bytes>(with(GetParam(), ring::Batching::fixed), asked());
}
TEST_P(EveryOwnQueueOfFrames, FlushesThoughTheConsumerMakesNoMoreCalls) {
    both_ways([](ring::Design design) { flushes_what_was_taken<Bytes>(design, asked()); });
}
TEST_P(EveryOwnQueueOfFrames, LetsTheConsumerDrainAfterTheProducerClosed) {
    drains_after_close<Bytes>(GetParam(), asked());
}
TEST_P(EveryOwnQueueOfFrames, TellsOfLossAndOfClose) {
    tells_of_loss_and_of_close<Bytes>(GetParam(), asked());
}

}  // namespace
}  // namespace millrace::flow
