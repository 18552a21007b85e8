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
    at_every_point(keeps_order_where_counters_wrap<Bytes>);
}
TEST_P(EveryWayOfFrames, SleepsAndWakes) { at_every_point(sleeps_and_wakes<Bytes>); }
TEST_P(EveryWayOfFrames, FlushesThoughTheConsumerMakesNoMoreCalls) {
    at_every_point(flushes_what_was_taken<Bytes>);
}
TEST_P(EveryWayOfFrames, LetsTheConsumerDrainAfterTheProducerClosed) {
    at_every_point(drains_after_close<Bytes>);
}
TEST_P(EveryWayOfFrames, TellsOfLossAndOfClose) {
    at_every_point(tells_of_loss_and_of_close<Bytes>);
}

}  // namespace
}  // namespace millrace::flow
