// How long a send waits for an advertisement that is late.
#include "hold.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace millrace::stream {
namespace {

using namespace std::chrono_literals;

/// Any time, in ticks.
constexpr std::uint64_t start = 1'000'000;
// A copy of no bytes takes one tick, the least there is.

TEST(StreamHold, LastsAsLongAsAWriteAndACopy) {
    Hold hold;
    hold.note_write(start, start + 5'000);
    const std::uint64_t copying = base::ticks_in(1us);  // of 4,000 bytes
    EXPECT_FALSE(hold.is_over(0, 4'000, start));
    EXPECT_TRUE(hold.is_running());
    EXPECT_FALSE(hold.is_over(0, 4'000, start + 5'000 + copying - 1));
    EXPECT_TRUE(hold.is_over(0, 4'000, start + 5'000 + copying));
}

TEST(StreamHold, BeginsAnewWithWhatIsBehind) {
    Hold hold;
    hold.note_write(start, start + 5'000);
    EXPECT_FALSE(hold.is_over(0, 0, start));
    EXPECT_FALSE(hold.is_over(10, 0, start + 5'000)) << "other bytes wait";
    EXPECT_TRUE(hold.is_over(10, 0, start + 10'001));
    hold.stop();
    EXPECT_FALSE(hold.is_running());
    EXPECT_FALSE(hold.is_over(10, 0, start + 10'001)) << "another hold";
}

TEST(StreamHold, TakesALateLookForNoLongWay) {
    Hold hold;
    hold.note_write(start, start + 100);
    hold.note_write(start, start + 6'500);  // a WRITE that was looked at late
    EXPECT_FALSE(hold.is_over(0, 0, start));
    EXPECT_FALSE(hold.is_over(0, 0, start + 199));
    EXPECT_TRUE(hold.is_over(0, 0, start + 201));
    // A way that has become long is believed little by little.
    for (int i = 0; i < 1000; ++i) hold.note_write(start, start + 6'500);
    EXPECT_FALSE(hold.is_over(1, 0, start + 200));
    EXPECT_FALSE(hold.is_over(1, 0, start + 6'000));
}

TEST(StreamHold, EndsThoughTheFirstLookWasLateForEver) {
    Hold hold;
    hold.note_write(start, start + base::ticks_in(10s));
    EXPECT_FALSE(hold.is_over(0, 0, start));
    EXPECT_TRUE(hold.is_over(0, 0, start + base::ticks_in(101ms)));
    // Ticks of another processor that are behind.
    Hold other;
    other.note_write(start, start - 3);
    EXPECT_FALSE(other.is_over(0, 0, start));
    EXPECT_TRUE(other.is_over(0, 0, start + 10));
}

}  // namespace
}  // namespace millrace::stream
