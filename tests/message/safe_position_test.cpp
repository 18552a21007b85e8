// Positions that travel word by word over devices that move a word byte by byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

#include "channel_core.hpp"

namespace millrace::message {
namespace {

TEST(SafePosition, ABytewiseLandingShowsTheOldOrTheNewPositionOrNone) {
    const std::uint64_t top = ~std::uint64_t{0} - 63;
    for (const std::uint64_t before :
         {std::uint64_t{0}, std::uint64_t{255} * 64, std::uint64_t{65535} * 64,
          (std::uint64_t{1} << 32) - 64, (std::uint64_t{1} << 38) - 64, top}) {
        for (std::uint64_t step = 64; step <= (1 << 20); step += 64 * 37) {
            const std::uint64_t old_word = SafePosition::pack(before);
            const std::uint64_t new_word = SafePosition::pack(before + step);
            for (unsigned bytes = 0; bytes <= 8; ++bytes) {
                const std::uint64_t landed =
                    bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * bytes)) - 1;
                // From the front, and from the back.
                for (const std::uint64_t mask : {landed, ~landed}) {
                    const std::uint64_t word = (new_word & mask) | (old_word & ~mask);
                    if (!SafePosition::whole(word)) continue;
                    EXPECT_TRUE(SafePosition::units(word) == SafePosition::units(old_word) ||
                                SafePosition::units(word) == SafePosition::units(new_word))
                        << before << " + " << step << ", " << bytes << " bytes";
                }
            }
        }
    }
}

TEST(SafePosition, ZeroedMemoryHoldsNoPosition) { EXPECT_FALSE(SafePosition::whole(0)); }

TEST(Progress, TellsHowFarAheadAcrossTheWrapOfItsCounters) {
    const std::uint64_t near_end = std::uint64_t{0} - 128;
    EXPECT_EQ(Progress::ahead(Progress::units(near_end + 256), Progress::units(near_end)), 256);
    EXPECT_EQ(Progress::ahead(Progress::units(near_end), Progress::units(near_end + 256)), -256);
}

}  // namespace
}  // namespace millrace::message
