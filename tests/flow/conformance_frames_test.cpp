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
TEST_P(EveryDesignOfFrames, LetsTheConsumerDrainAfterTheProducerClosed) {
    drains_after_close<Bytes>(GetParam());
}
TEST_P(EveryDesignOfFrames, TellsOfLossAndOfClose) {
    tells_of_loss_and_of_close<Bytes>(GetParam());
}

}  // namespace
}  // namespace millrace::flow
