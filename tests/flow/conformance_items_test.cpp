// The conformance suite of all designs, over items.
#include "flow/conformance.hpp"

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
TEST_P(EveryDesignOfItems, FlushesThoughTheConsumerMakesNoMoreCalls) {
    flushes_what_was_taken<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, LetsTheConsumerDrainAfterTheProducerClosed) {
    drains_after_close<Numbered>(GetParam());
}
TEST_P(EveryDesignOfItems, TellsOfLossAndOfClose) {
    tells_of_loss_and_of_close<Numbered>(GetParam());
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
    at_every_point(keeps_order_where_counters_wrap<Numbered>);
}
TEST_P(EveryWayOfItems, SleepsAndWakes) { at_every_point(sleeps_and_wakes<Numbered>); }
TEST_P(EveryWayOfItems, FlushesThoughTheConsumerMakesNoMoreCalls) {
    at_every_point(flushes_what_was_taken<Numbered>);
}
TEST_P(EveryWayOfItems, LetsTheConsumerDrainAfterTheProducerClosed) {
    at_every_point(drains_after_close<Numbered>);
}
TEST_P(EveryWayOfItems, TellsOfLossAndOfClose) {
    at_every_point(tells_of_loss_and_of_close<Numbered>);
}

}  // namespace
}  // namespace millrace::flow
