// The design space's rules, and the words of rings.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/design_name.hpp"
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

TEST(Design, OfSections51And52AreAmongThem) {
    EXPECT_TRUE(is_valid(design_1));
    EXPECT_TRUE(is_valid(design_2));
}

std::vector<Design> every_way() {
    std::vector<Design> all;
    for (const Design design : every_combination()) {
        for (const auto batching : {Batching::none, Batching::fixed, Batching::dynamic}) {
            for (const auto mover : {Mover::passive, Mover::active}) {
                all.push_back(with(design, batching, mover));
            }
        }
    }
    return all;
}

TEST(Design, HasBatchingAndMoverBesideItsFlows) {
    EXPECT_EQ(design_1.batching, Batching::none);
    EXPECT_EQ(design_1.mover, Mover::passive);
    constexpr Design run = with(design_1, Batching::dynamic, Mover::active);
    static_assert(is_valid(run) && run != design_1 && flows_of(run) == design_1);
    for (const Design design : every_way()) EXPECT_EQ(is_valid(design), is_valid(flows_of(design)));
}

TEST(DesignName, IsReadAsItWasWritten) {
    std::set<std::string> names;
    for (const Design design : every_way()) {
        if (!is_valid(design)) continue;
        EXPECT_EQ(parse_design(to_string(design)), (NamedDesign{design, {}}));
        EXPECT_TRUE(names.insert(to_string(design)).second) << to_string(design);
        if (design.batching == Batching::none) continue;
        EXPECT_EQ(parse_design(to_string(design, 48)), (NamedDesign{design, 48}));
    }
    EXPECT_EQ(to_string(with(design_1, Batching::fixed, Mover::active), 16),
              "push1/watermark/pull+fixed16+mover");
    EXPECT_EQ(parse_design("design2+dynamic").design, with(design_2, Batching::dynamic));
    EXPECT_EQ(parse_design("design1+mover+fixed4"),
              (NamedDesign{with(design_1, Batching::fixed, Mover::active), 4}));
}

TEST(DesignName, IsRefusedByTheNameOfThePartThatIsWrong) {
    const auto cause_of = [](std::string_view name) -> std::string {
        try {
            (void)parse_design(name);
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            return std::string{error.cause()};
        }
        return "none";
    };
    EXPECT_EQ(cause_of("pull1/watermark/pull"), "\"pull1\" is no data flow");
    EXPECT_EQ(cause_of("push1/marks/pull"), "\"marks\" is no transfer notification");
    EXPECT_EQ(cause_of("push1/push/"), "\"push1/push/\" does not name three flows");
    EXPECT_EQ(cause_of("push1/push/event"), "\"event\" is no space notification");
    EXPECT_EQ(cause_of("push1/push/pull+nagle"), "\"nagle\" is no part of a design");
    EXPECT_EQ(cause_of("push1/push/pull+fixed16+dynamic"), "it names two ways of batching");
    EXPECT_EQ(cause_of("push1/push/pull+fixed0"), "\"0\" is no size of a batch");
    EXPECT_EQ(cause_of("push1/push/pull+fixed16x"), "\"16x\" is no size of a batch");
    EXPECT_EQ(cause_of("push1/push/pull+mover2"), "\"mover2\" is no part of a design");
    EXPECT_EQ(cause_of("push1/event/pull"),
              "event notifications are completions of receives: they need push2 data");
    EXPECT_EQ(cause_of("pull/immediate/pull"),
              "immediate data travels with a WRITE: it needs push1 data");
    EXPECT_NE(cause_of(""), "none");
    EXPECT_NE(cause_of("/"), "none");
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
    EXPECT_EQ(slot_bytes_of(4088, 8), 4096U);
    EXPECT_EQ(slot_bytes_of(4096, 8), 4160U);  // a cache line of its own
    EXPECT_EQ(slot_bytes_of(4096, 8, false), 4096U);
    EXPECT_EQ(slot_bytes_of(5000, 256), 5120U);
    EXPECT_EQ(frame_bytes(0), 16U);
    EXPECT_EQ(frame_bytes(1), 24U);
    EXPECT_EQ(frame_bytes(8), 24U);
}

TEST(RingOptions, AreRefusedOutsideTheirRanges) {
    EXPECT_NO_THROW(check({}));
    EXPECT_NO_THROW(check({.capacity = 1}, {.size = 1}));
    EXPECT_THROW(check({.capacity = 47}), base::Error);
    EXPECT_THROW(check({.capacity = RingOptions::max_bytes + 1}), base::Error);
    EXPECT_THROW(check({}, {.size = 8, .alignment = 3}), base::Error);
    EXPECT_THROW(check({}, {.size = 0xffffffff}), base::Error);
    EXPECT_THROW(check({}, {.size = std::size_t{1} << 32}), base::Error);
    EXPECT_THROW(check({.refresh_above = 1.5}), base::Error);
    EXPECT_THROW(check({.credit_parts = 0}), base::Error);
    EXPECT_THROW(check({.credit_parts = 65537}), base::Error);
    EXPECT_NO_THROW(check({.credit_parts = 8192}));
    constexpr ItemFacts numbers{.size = 8, .alignment = 8};
    constexpr Design fixed = with(design_1, Batching::fixed);
    EXPECT_NO_THROW(check({.capacity = 8, .batch = 8}, numbers, fixed));
    EXPECT_THROW(check({.capacity = 8, .batch = 9}, numbers, fixed), base::Error);
    EXPECT_THROW(check({.batch = 0}, numbers, fixed), base::Error);
    EXPECT_THROW(check({.batch = RingOptions::max_batch + 1}, {}, fixed), base::Error);
    EXPECT_THROW(check({.batch = 8}, {}, design_1), base::Error);
}

}  // namespace
}  // namespace millrace::ring
