// Frames in plain memory, with a device that lands one byte after the other: what arrives, when it
// counts as arrived, and that nothing which lay in the ring before can pass for a frame.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "millrace/message/frame_reader.hpp"
#include "millrace/message/frame_writer.hpp"

namespace millrace::message {
namespace {

using Look = FrameReader::Look;
using Bytes = std::vector<std::byte>;

/// A sender, a receiver, and between them bytes under way that land in order, as late as we like.
class Wire {
  public:
    explicit Wire(std::size_t size, std::uint64_t first_position = 0)
        : sent_(size + frame_alignment),
          received_(size + frame_alignment),
          size_{size},
          writer{{aligned(sent_), size}, first_position},
          reader{{aligned(received_), size}, first_position} {}

    [[nodiscard]] bool room_for(std::uint64_t length) const {
        return writer.needed(length) <= writer.free_bytes(reader.position());
    }
    /// Skips if it must. False: no room.
    bool prepare(std::uint64_t length) {
        while (true) {
            if (!room_for(length)) return false;
            if (!writer.must_skip(length)) return true;
            under_way_.push_back(writer.skip());
        }
    }
    bool send(const Bytes& message, std::uint8_t flags = frame_whole, std::size_t unused = 0) {
        if (!prepare(message.size())) return false;
        const auto room = writer.payload(message.size());
        std::copy(message.begin(), message.end(), room.begin());
        under_way_.push_back(
            writer.commit(message.size(), flags, static_cast<std::uint32_t>(unused)));
        return true;
    }
    /// As send, where all that can be in the way is a skip that the reader has yet to pass over.
    bool send_to_idle_reader(const Bytes& message, std::uint8_t flags = frame_whole,
                             std::size_t unused = 0) {
        if (send(message, flags, unused)) return true;
        land_all();
        Piece piece;
        return reader.look(piece) == Look::nothing && send(message, flags, unused);
    }
    /// Lands one more byte. False: nothing is under way.
    bool land_one() {
        if (under_way_.empty()) return false;
        const Transmission& first = under_way_.front();
        const std::size_t at = first.offset + landed_;
        aligned(received_)[at] = aligned(sent_)[at];
        if (++landed_ == first.bytes) {
            landed_ = 0;
            under_way_.pop_front();
        }
        return true;
    }
    void land_all() {
        while (land_one()) {
        }
    }
    [[nodiscard]] std::size_t transmissions() const { return under_way_.size(); }
    [[nodiscard]] bool mirrors_equal() {
        return std::memcmp(aligned(sent_), aligned(received_), size_) == 0;
    }
    [[nodiscard]] std::byte* received() { return aligned(received_); }
    [[nodiscard]] std::byte* sent() { return aligned(sent_); }

  private:
    static std::byte* aligned(Bytes& bytes) {
        const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
        return bytes.data() + (frame_alignment - address % frame_alignment) % frame_alignment;
    }
    Bytes sent_;
    Bytes received_;
    std::size_t size_;
    std::deque<Transmission> under_way_;
    std::size_t landed_ = 0;

  public:
    FrameWriter writer;
    FrameReader reader;
};

Bytes pattern(std::size_t size, unsigned seed) {
    Bytes bytes(size);
    std::mt19937 random{seed};
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

Bytes copy_of(const Piece& piece) { return {piece.payload.begin(), piece.payload.end()}; }

/// Lands `wire` byte by byte: nothing may be seen before the last byte, and then `expected`.
void expect_arrives_with_its_last_byte(Wire& wire, const Bytes& expected,
                                       const std::string& context) {
    Piece piece;
    while (true) {
        const Look look = wire.reader.look(piece);
        const bool more = wire.transmissions() != 0;
        if (more) {
            ASSERT_EQ(look, Look::nothing) << context << ": seen before it was complete";
            wire.land_one();
            continue;
        }
        ASSERT_EQ(look, Look::piece) << context;
        ASSERT_EQ(copy_of(piece), expected) << context;
        wire.reader.release();
        return;
    }
}

TEST(Frame, EverySizeArrivesWithItsLastByteAtEveryOffsetOfTheRing) {
    constexpr std::size_t ring = 1024;
    for (std::size_t size = 0; size <= 300; ++size) {
        for (std::uint64_t start = 0; start < ring; start += frame_alignment) {
            Wire wire{ring, start};
            const Bytes message = pattern(size, static_cast<unsigned>(size * 31 + start));
            ASSERT_TRUE(wire.send(message));
            expect_arrives_with_its_last_byte(
                wire, message, "size " + std::to_string(size) + " at " + std::to_string(start));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, ThePieceAsLargeAsTheRingArrivesAgainAndAgain) {
    for (const std::size_t ring : {std::size_t{128}, std::size_t{256}, std::size_t{4096}}) {
        Wire wire{ring};
        for (unsigned lap = 0; lap < 600; ++lap) {
            const Bytes message = pattern(wire.writer.max_length(), lap);
            ASSERT_TRUE(wire.send(message));
            ASSERT_FALSE(wire.room_for(0)) << "the ring is full";
            expect_arrives_with_its_last_byte(wire, message, "lap " + std::to_string(lap));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, NoFrameIsLongerThanTheRing) {
    Wire wire{256};
    EXPECT_EQ(wire.writer.max_length(), 240U);
    EXPECT_EQ(frame_bytes(240), 256U);
    EXPECT_GT(frame_bytes(241), 256U);
}

/// What a sender who knows the protocol and sees the whole ring would send to fool the receiver.
enum class Malice {
    zeroes,
    ones,
    every_tag,     ///< words like headers, with a different tag each
    every_footer,  ///< words like footers, with a different mark each
    foresight,     ///< headers with the tag that is expected next, and the one after it
    replay,        ///< what the ring held before, shifted by a word
    count
};

Bytes malicious(Malice malice, std::size_t size, unsigned turn, Wire& wire, std::size_t ring) {
    Bytes bytes(size);
    const std::uint64_t next = wire.writer.position() & (ring - 1);
    for (std::size_t i = 0; i < size; ++i) {
        const auto word_index = static_cast<unsigned>(i / word_bytes);
        const unsigned shift = 8 * (i % word_bytes);
        const auto tag = static_cast<std::uint8_t>(word_index + turn);
        std::uint64_t word = 0;
        switch (malice) {
            case Malice::zeroes: break;
            case Malice::ones: word = ~std::uint64_t{0}; break;
            case Malice::every_tag: word = header_word(tag, tag, 0, turn % 17); break;
            case Malice::every_footer: word = footer_word(tag, 0, tag); break;
            case Malice::foresight:
                // The tag of the frame behind this one is made from the byte that lies there now.
                word =
                    header_word(static_cast<std::uint8_t>(
                                    std::to_integer<unsigned>(
                                        wire.sent()[(next + frame_bytes(size) + 7) & (ring - 1)]) +
                                    1 + word_index % 3),
                                tag, 0, word_index % 2 == 0 ? 0 : 8);
                break;
            case Malice::replay:
                word = std::to_integer<std::uint64_t>(wire.sent()[(next + i + 16) & (ring - 1)])
                       << shift;
                break;
            case Malice::count: break;
        }
        bytes[i] = static_cast<std::byte>(word >> shift);
    }
    return bytes;
}

TEST(Frame, NoStalePayloadPassesForAFrame) {
    constexpr std::size_t ring = 1024;
    for (int kind = 0; kind < static_cast<int>(Malice::count); ++kind) {
        Wire wire{ring};
        std::mt19937 random{static_cast<unsigned>(kind)};
        // More than 256 laps, so that every tag comes by everywhere.
        for (unsigned turn = 0; turn < 3000; ++turn) {
            const std::size_t size = random() % 700;
            const Bytes message = malicious(static_cast<Malice>(kind), size, turn, wire, ring);
            ASSERT_TRUE(wire.send_to_idle_reader(message));
            expect_arrives_with_its_last_byte(
                wire, message, "malice " + std::to_string(kind) + " turn " + std::to_string(turn));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, AllKindsOfMaliceMixedPassForNoFrame) {
    constexpr std::size_t ring = 512;
    Wire wire{ring};
    std::mt19937 random{7};
    for (unsigned turn = 0; turn < 10'000; ++turn) {
        const auto kind = static_cast<Malice>(random() % static_cast<unsigned>(Malice::count));
        const Bytes message = malicious(kind, random() % 490, turn, wire, ring);
        ASSERT_TRUE(wire.send_to_idle_reader(message));
        expect_arrives_with_its_last_byte(wire, message, "turn " + std::to_string(turn));
        if (HasFatalFailure()) return;
    }
}

TEST(Frame, AClaimThatWasUsedInPartArrivesShortAndLeavesTheRingsEqual) {
    constexpr std::size_t ring = 512;
    Wire wire{ring};
    std::mt19937 random{11};
    for (unsigned turn = 0; turn < 2000; ++turn) {
        const std::size_t claimed = random() % 400;
        const std::size_t unused = claimed == 0 ? 0 : random() % (claimed + 1);
        const Bytes all = malicious(Malice::every_tag, claimed, turn, wire, ring);
        ASSERT_TRUE(wire.send_to_idle_reader(all, frame_whole, unused));
        const Bytes expected(all.begin(),
                             all.begin() + static_cast<std::ptrdiff_t>(claimed - unused));
        expect_arrives_with_its_last_byte(wire, expected, "turn " + std::to_string(turn));
        ASSERT_TRUE(wire.mirrors_equal());
        if (HasFatalFailure()) return;
    }
}

TEST(Frame, AClaimThatWasGivenUpIsPassedOver) {
    Wire wire{512};
    for (unsigned turn = 0; turn < 500; ++turn) {
        ASSERT_TRUE(wire.send_to_idle_reader(pattern(turn % 200, turn), frame_void));
        wire.land_all();
        Piece piece;
        ASSERT_EQ(wire.reader.look(piece), Look::nothing);
        const Bytes message = pattern(40, turn);
        ASSERT_TRUE(wire.send_to_idle_reader(message));
        expect_arrives_with_its_last_byte(wire, message, "turn " + std::to_string(turn));
        ASSERT_TRUE(wire.mirrors_equal());
    }
}

TEST(Frame, CountersPassTwoToThe32AndTwoToThe64) {
    for (const std::uint64_t start :
         {(std::uint64_t{1} << 32) - 640, std::uint64_t{0} - 640, (std::uint64_t{1} << 63) - 64}) {
        Wire wire{256, start};
        for (unsigned turn = 0; turn < 100; ++turn) {
            const Bytes message = pattern(turn * 2, turn);
            ASSERT_TRUE(wire.send_to_idle_reader(message));
            expect_arrives_with_its_last_byte(wire, message, std::to_string(start));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, OneMessageTouchesOneTransmissionUnlessItMustSkip) {
    Wire wire{512};
    ASSERT_TRUE(wire.send(pattern(300, 1)));
    EXPECT_EQ(wire.transmissions(), 1U);
    wire.land_all();
    Piece piece;
    ASSERT_EQ(wire.reader.look(piece), Look::piece);
    wire.reader.release();
    ASSERT_TRUE(wire.send(pattern(300, 2)));
    EXPECT_EQ(wire.transmissions(), 2U) << "a skip and the message";
}

TEST(Frame, TheCloseFrameIsSeenBehindEverythingElseAndStays) {
    Wire wire{256};
    ASSERT_TRUE(wire.send(pattern(30, 1)));
    ASSERT_TRUE(wire.send({}, frame_close));
    wire.land_all();
    Piece piece;
    ASSERT_EQ(wire.reader.look(piece), Look::piece);
    wire.reader.release();
    EXPECT_EQ(wire.reader.look(piece), Look::closed);
    EXPECT_EQ(wire.reader.look(piece), Look::closed);
}

TEST(Frame, PiecesSayWhetherTheyBeginAndEndAMessage) {
    Wire wire{1024};
    ASSERT_TRUE(wire.send(pattern(8, 1), frame_more));
    ASSERT_TRUE(wire.send(pattern(8, 2), frame_more | frame_continues));
    ASSERT_TRUE(wire.send(pattern(8, 3), frame_continues));
    wire.land_all();
    Piece piece;
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(wire.reader.look(piece), Look::piece);
        EXPECT_EQ(piece.first, i == 0);
        EXPECT_EQ(piece.last, i == 2);
        wire.reader.release();
    }
}

TEST(Frame, NonsenseOfThePeerIsBrokenAndNotFollowed) {
    const std::vector<std::uint64_t> nonsense{
        header_word(first_tag, 0, 0, 0xffff'ffff),  // longer than the ring
        header_word(first_tag, 0, 0, 512 - 15),     // its footer lies beyond the ring
        header_word(first_tag, 0, 0x80, 8),         // an unknown flag
        header_word(first_tag, 0, frame_void | frame_skip, 0),
        header_word(first_tag, 0, frame_skip, 0),  // passes over the whole ring
        header_word(first_tag, 0, frame_close, 8),
        header_word(first_tag, 0, frame_void, 0xffff'fff8),
    };
    for (const std::uint64_t header : nonsense) {
        Wire wire{512};
        std::memcpy(wire.received(), &header, word_bytes);
        Piece piece;
        EXPECT_EQ(wire.reader.look(piece), Look::broken) << std::hex << header;
    }
    Wire wire{512};
    const std::uint64_t header = header_word(first_tag, 1, 0, 8);
    const std::uint64_t footer = footer_word(1, 9, 1);  // more unused than there is
    std::memcpy(wire.received(), &header, word_bytes);
    std::memcpy(wire.received() + 16, &footer, word_bytes);
    Piece piece;
    EXPECT_EQ(wire.reader.look(piece), Look::broken);
}

TEST(Frame, ARingFullOfFramesWithoutMessagesDoesNotLeadRoundForEver) {
    Wire wire{512};
    for (std::size_t at = 0; at < 512; at += 64) {
        const std::uint64_t header = header_word(first_tag, 1, frame_void, 0);
        const std::uint64_t footer = footer_word(1, 0, first_tag);
        std::memcpy(wire.received() + at, &header, word_bytes);
        std::memcpy(wire.received() + at + word_bytes, &footer, word_bytes);
    }
    Piece piece;
    EXPECT_EQ(wire.reader.look(piece), Look::broken);
}

RC_GTEST_PROP(Frame, AnyInterleavingDeliversWhatAQueueWould, ()) {
    const std::size_t ring = std::size_t{128} << *rc::gen::inRange(0, 5);
    const auto start = *rc::gen::element<std::uint64_t>(0, 64, (std::uint64_t{1} << 32) - 128,
                                                        std::uint64_t{0} - 192);
    Wire wire{ring, start};
    std::deque<Bytes> queue;
    unsigned turn = 0;
    const auto length = *rc::gen::inRange<std::size_t>(0, 400);
    const auto steps =
        *rc::gen::container<std::vector<unsigned>>(length, rc::gen::inRange<unsigned>(0, 1U << 20));
    const auto receive = [&] {
        Piece piece;
        const Look look = wire.reader.look(piece);
        RC_ASSERT(look == Look::piece || look == Look::nothing);
        if (look == Look::nothing) return false;
        RC_ASSERT(!queue.empty());
        RC_ASSERT(copy_of(piece) == queue.front());
        queue.pop_front();
        wire.reader.release();
        return true;
    };
    for (const unsigned step : steps) {
        const unsigned argument = step / 4;
        switch (step % 4) {
            case 0: {
                const auto kind =
                    static_cast<Malice>(argument % static_cast<unsigned>(Malice::count));
                const std::size_t size = (argument / 8) % (wire.writer.max_length() + 1);
                const Bytes all = malicious(kind, size, turn++, wire, ring);
                const std::size_t unused = argument % 5 == 0 ? size / 3 : 0;
                const bool given_up = argument % 7 == 0;
                if (wire.send(all, given_up ? frame_void : frame_whole, unused) && !given_up) {
                    queue.emplace_back(all.begin(),
                                       all.end() - static_cast<std::ptrdiff_t>(unused));
                }
                break;
            }
            case 1:
                for (unsigned i = 0; i < argument % 200; ++i) wire.land_one();
                break;
            case 2: (void)receive(); break;
            case 3: wire.land_all(); break;
        }
    }
    wire.land_all();
    while (receive()) {
    }
    RC_ASSERT(queue.empty());
    RC_ASSERT(wire.mirrors_equal());
}

}  // namespace
}  // namespace millrace::message
