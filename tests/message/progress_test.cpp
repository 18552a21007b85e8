// Progress: two counters in the word that a peer READs before it sleeps.
#include <gtest/gtest.h>

#include <cstdint>

#include "channel/channel_core.hpp"

namespace millrace::message {
namespace {

TEST(Progress, TellsHowFarAheadAcrossTheWrapOfItsCounters) {
    const std::uint64_t near_end = std::uint64_t{0} - 128;
    EXPECT_EQ(Progress::ahead(Progress::units(near_end + 256), Progress::units(near_end)), 256);
    EXPECT_EQ(Progress::ahead(Progress::units(near_end), Progress::units(near_end + 256)), -256);
}

}  // namespace
}  // namespace millrace::message
