// The design space's rules, and the words of rings.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/watermark.hpp"

namespace millrace::ring {
namespace {

std::vector<Design> every_combination() {
    std::vector<Design> all;
    for (const auto data : {DataFlow::push1, DataFlow::push2, DataFlow::pull}) {
        for (const auto transfer : {TransferNotification::watermark, TransferNotification::push,
                                    TransferNotification::pull, TransferNotification::event,
                                    TransferNotification::immediate}) {
            for (const auto space :
                 {SpaceNotification::push, SpaceNotification::pull, SpaceNotification::push2}) {
                all.push_back({data, transfer, space});
            }
        }
    }
    return all;
}

TEST(Design, HasThirtyThreePoints) {
    int valid = 0;
    for (const Design design : every_combination()) valid += is_valid(design) ? 1 : 0;
    EXPECT_EQ(valid, 33);
}

TEST(Design, BuildsOnlyValidPoints) {
    int built = 0;
    for (const Design design : every_combination()) {
        built += is_built(design) ? 1 : 0;
        EXPECT_TRUE(is_valid(design) || !is_built(design));
    }
    EXPECT_EQ(built, 33);
    EXPECT_TRUE(is_built(design_1));
    EXPECT_TRUE(is_built(design_2));
}

TEST(Watermark, OfASlotIsNeverWhatFreshMemoryHoldsAndNeverComesAgain) {
    for (const std::uint64_t initial :
         {std::uint64_t{0}, (std::uint64_t{1} << 32) - 8, std::uint64_t{0} - 16}) {
        std::set<std::uint64_t> marks;
        for (std::uint64_t slot = 0; slot < 1000; ++slot) {
            const std::uint64_t mark = slot_mark(initial + slot * 8, initial);
            EXPECT_NE(mark, 0U);
            EXPECT_TRUE(marks.insert(mark).second);
        }
    }
}

TEST(Watermark, TellsHeaderSkipAndOtherPositionsApart) {
    constexpr std::uint64_t secret = 0x0123456789abcdef;
    for (std::uint64_t position = 0; position < 80'000; position += 8) {
        const std::uint64_t tag = frame_tag(position, secret);
        const std::uint64_t header = frame_header(tag, 0xffffffff);
        EXPECT_TRUE(is_frame_header(header, tag));
        EXPECT_EQ(frame_length(header), 0xffffffffU);
        EXPECT_FALSE(is_frame_header(skip_word(tag), tag));
        EXPECT_NE(header, skip_word(tag));
        EXPECT_FALSE(is_frame_header(header, frame_tag(position + 8, secret)));
        EXPECT_NE(frame_trailer(tag, 8), frame_trailer(tag, 16));
        EXPECT_NE(frame_trailer(tag, 8), frame_trailer(frame_tag(position + 8, secret), 8));
    }
}

TEST(Slot, HoldsPayloadPaddingAndMark) {
    EXPECT_EQ(slot_bytes_of(1, 1), 16U);
    EXPECT_EQ(slot_bytes_of(8, 8), 16U);
    EXPECT_EQ(slot_bytes_of(9, 1), 24U);
    EXPECT_EQ(slot_bytes_of(56, 8), 64U);
    EXPECT_EQ(slot_bytes_of(64, 8), 72U);
    EXPECT_EQ(slot_bytes_of(64, 64), 128U);
    EXPECT_EQ(frame_bytes(0), 16U);
    EXPECT_EQ(frame_bytes(1), 24U);
    EXPECT_EQ(frame_bytes(8), 24U);
}

TEST(RingOptions, AreRefusedOutsideTheirRanges) {
    EXPECT_NO_THROW(check({}));
    EXPECT_NO_THROW(check({.capacity = 1, .item_size = 1}));
    EXPECT_THROW(check({.capacity = 47}), base::Error);
    EXPECT_THROW(check({.capacity = RingOptions::max_bytes + 1}), base::Error);
    EXPECT_THROW(check({.item_size = 8, .item_alignment = 3}), base::Error);
    EXPECT_THROW(check({.item_size = 0xffffffff}), base::Error);
    EXPECT_THROW(check({.refresh_above = 1.5}), base::Error);
    EXPECT_THROW(check({.credit_parts = 0}), base::Error);
    EXPECT_THROW(check({.initial_position = 4}), base::Error);
}

}  // namespace
}  // namespace millrace::ring
