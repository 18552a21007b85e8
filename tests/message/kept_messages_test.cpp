// Messages that wait to be sent, and are sent piece by piece.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "lane/kept_messages.hpp"

namespace millrace::message {
namespace {

std::span<const std::byte> text(std::string_view text) { return std::as_bytes(std::span{text}); }

TEST(KeptMessages, AreTakenInTheirOrderPieceByPiece) {
    KeptMessages kept;
    kept.keep(text("head"), text("payload"));
    kept.keep(text("next"), {});
    EXPECT_EQ(kept.bytes(), 15U);
    EXPECT_FALSE(kept.take(5));
    EXPECT_EQ(kept.begun(), 5U);
    EXPECT_EQ(kept.bytes(), 15U) << "of the first one a part is kept still";
    EXPECT_TRUE(std::ranges::equal(kept.front(), text("headpayload")));
    EXPECT_TRUE(kept.take(6));
    EXPECT_EQ(kept.begun(), 0U);
    EXPECT_EQ(kept.bytes(), 4U);
    EXPECT_TRUE(std::ranges::equal(kept.front(), text("next")));
    EXPECT_TRUE(kept.take(4));
    EXPECT_TRUE(kept.empty());
    EXPECT_EQ(kept.bytes(), 0U);
    EXPECT_EQ(kept.flushed_bytes(), 15U);
}

TEST(KeptMessages, GiveTheirPlaceToWhatIsSentInTheirStead) {
    KeptMessages kept;
    kept.keep(text("a long message"), {});
    const auto stead = text("short");
    kept.replace_front({stead.begin(), stead.end()});
    EXPECT_EQ(kept.bytes(), 5U);
    EXPECT_EQ(kept.flushed_bytes(), 14U) << "it waits no more";
    EXPECT_TRUE(std::ranges::equal(kept.front(), stead));
    EXPECT_TRUE(kept.take(5));
    EXPECT_EQ(kept.flushed_bytes(), 19U);
}

}  // namespace
}  // namespace millrace::message
