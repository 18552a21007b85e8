// Control messages: where each field lies, and what is not read.
#include "wire.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace millrace::stream {
namespace {

std::vector<unsigned> bytes_of(const EncodedMessage& message) {
    std::vector<unsigned> bytes;
    for (const std::byte byte : message.span()) bytes.push_back(static_cast<unsigned>(byte));
    return bytes;
}

Violation decode_changed(EncodedMessage message, std::size_t at, unsigned value) {
    message.bytes[at] = static_cast<std::byte>(value);
    Message decoded;
    return decode(message.span(), decoded);
}

TEST(StreamWire, LaysAnAdvertisementOutAsItIsDrawn) {
    AdvertMessage advert;
    advert.header.flags = advert_wait_all;
    advert.header.credits = 0x04030201;
    advert.sequence = 0x1817161514131211;
    advert.phase = 0x2827262524232221;
    advert.address = 0x3837363534333231;
    advert.length = 0x4847464544434241;
    advert.key = 0x54535251;
    advert.number = 0x64636261;
    std::vector<unsigned> expected{1, 1, 0, 0, 1, 2, 3, 4};
    for (const unsigned word : {0x11U, 0x21U, 0x31U, 0x41U}) {
        for (unsigned i = 0; i < 8; ++i) expected.push_back(word + i);
    }
    for (const unsigned word : {0x51U, 0x61U}) {
        for (unsigned i = 0; i < 4; ++i) expected.push_back(word + i);
    }
    EXPECT_EQ(bytes_of(encode(advert)), expected);
}

TEST(StreamWire, ReadsWhatWasWritten) {
    TransferMessage transfer;
    transfer.header.kind = MessageKind::direct;
    transfer.header.credits = 5;
    transfer.sequence = 6;
    transfer.length = 7;
    transfer.number = 8;
    Message decoded;
    ASSERT_EQ(decode(encode(transfer).span(), decoded), Violation::none);
    const auto& read = std::get<TransferMessage>(decoded);
    EXPECT_EQ(read.header.kind, MessageKind::direct);
    EXPECT_EQ(read.header.credits, 5U);
    EXPECT_EQ(read.sequence, 6U);
    EXPECT_EQ(read.length, 7U);
    EXPECT_EQ(read.number, 8U);
    ASSERT_EQ(decode(encode(CancelMessage{}).span(), decoded), Violation::none);
    EXPECT_TRUE(std::holds_alternative<CancelMessage>(decoded));
}

TEST(StreamWire, RefusesUnknownKindsFlagsAndBits) {
    const EncodedMessage credit = encode(CreditMessage{});
    EXPECT_EQ(decode_changed(credit, 0, 0), Violation::malformed);
    EXPECT_EQ(decode_changed(credit, 0, 9), Violation::malformed);
    EXPECT_EQ(decode_changed(credit, 1, 1), Violation::malformed);
    EXPECT_EQ(decode_changed(credit, 3, 1), Violation::malformed);
    EXPECT_EQ(decode_changed(credit, 4, 1), Violation::none);
    EXPECT_EQ(decode_changed(encode(AdvertMessage{}), 1, 2), Violation::malformed);
    EXPECT_EQ(decode_changed(encode(AdvertMessage{}), 1, 1), Violation::none);
    EXPECT_EQ(decode_changed(encode(TransferMessage{}), 1, 8), Violation::malformed);
    EXPECT_EQ(decode_changed(encode(TransferMessage{}), 1, transfer_unhurried), Violation::none);
    EXPECT_EQ(decode_changed(encode(TransferMessage{{MessageKind::direct}}), 1, transfer_unhurried),
              Violation::malformed);
    EXPECT_EQ(decode_changed(encode(TransferMessage{}), 1, 3), Violation::none);
}

TEST(StreamWire, ReadsEachKindInItsOwnSizeOnly) {
    const std::array<std::size_t, 8> sizes{48, 24, 24, 16, 8, 16, 16, 8};
    for (std::size_t kind = 1; kind <= sizes.size(); ++kind) {
        for (std::size_t size = 0; size <= largest_message; ++size) {
            std::array<std::byte, largest_message> bytes{};
            bytes[0] = static_cast<std::byte>(kind);
            Message decoded;
            EXPECT_EQ(decode(std::span{bytes}.first(size), decoded) == Violation::none,
                      size == sizes[kind - 1])
                << kind << " of " << size;
        }
    }
}

TEST(StreamWire, NamesEveryViolationOnce) {
    std::vector<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(Violation::no_memory); ++i) {
        names.push_back(name_of(static_cast<Violation>(i)));
    }
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
    EXPECT_FALSE(std::ranges::binary_search(names, "unknown"));
}

}  // namespace
}  // namespace millrace::stream
