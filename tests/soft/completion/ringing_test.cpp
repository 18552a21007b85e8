// When a bell is rung for a completion, and when once has been enough.
#include "completion/ringing.hpp"

#include <gtest/gtest.h>

namespace millrace::test {
namespace {

using namespace soft;

constexpr std::uint32_t first_epoch = armed_epoch | armed_any;
constexpr std::uint32_t second_epoch = 2 * armed_epoch | armed_any;

TEST(RungEpoch, RingsOnceForAnEpoch) {
    RungEpoch rung;
    EXPECT_TRUE(rung.must_ring(first_epoch, first_epoch, false));
    EXPECT_FALSE(rung.must_ring(first_epoch, first_epoch, false));
    EXPECT_TRUE(rung.must_ring(second_epoch, second_epoch, false));
}

TEST(RungEpoch, RingsAgainBehindACompletionThatCameWhileTheQueueWasArmed) {
    // The owner may have seen that one already when it armed: then it is no event, and the next is.
    RungEpoch rung;
    EXPECT_TRUE(rung.must_ring(first_epoch, armed_epoch, false));
    EXPECT_TRUE(rung.must_ring(first_epoch, first_epoch, false));
    EXPECT_FALSE(rung.must_ring(first_epoch, first_epoch, false));
}

TEST(RungEpoch, RingsAgainBehindWhatIsNoCompletion) {
    RungEpoch rung;
    EXPECT_TRUE(rung.must_ring(first_epoch, armed_not, true));
    EXPECT_TRUE(rung.must_ring(first_epoch, first_epoch, false));
}

TEST(RungEpoch, IsSilentWhereNobodyAskedForIt) {
    RungEpoch rung;
    EXPECT_FALSE(rung.must_ring(armed_epoch, armed_epoch, true));
    constexpr std::uint32_t solicited = armed_epoch | armed_solicited;
    EXPECT_FALSE(rung.must_ring(solicited, solicited, false));
    EXPECT_TRUE(rung.must_ring(solicited, solicited, true)) << "the one before it did not count";
}

}  // namespace
}  // namespace millrace::test
