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

#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/frame_writer.hpp"

namespace millrace::message {
namespace {

using Look = FrameReader::Look;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t secret = 0x5ec4e7;

/// A sender, a receiver, and between them bytes under way that land in order, as late as we like.
class BareRing {
  public:
    explicit BareRing(std::size_t size, std::uint64_t first_position = 0)
        : sent_(size + frame_alignment),
          received_(size + frame_alignment),
          writer{{aligned(sent_), size}, secret, first_position},
          reader{{aligned(received_), size}, secret, first_position} {}

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
    /// Writes into the place of the next piece, and does not send it.
    bool claim(const Bytes& content) {
        if (!prepare(content.size())) return false;
        const auto room = writer.payload(content.size());
        std::copy(content.begin(), content.end(), room.begin());
        return true;
    }
    /// Sends it, and what comes next begins a block. False: no room for all of that.
    bool send_apart(const Bytes& message) {
        if (!claim(message) || writer.free_bytes(reader.position()) <
                                   frame_bytes_apart(writer.position(), message.size())) {
            return false;
        }
        under_way_.push_back(writer.commit_apart(message.size()));
        return true;
    }
    bool send(const Bytes& message, std::uint8_t flags = frame_whole, std::size_t unused = 0) {
        if (!claim(message)) return false;
        under_way_.push_back(writer.commit(message.size() - unused, flags));
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
    /// True: what is under way still changes nothing.
    [[nodiscard]] bool rest_is_there() {
        std::size_t landed = landed_;
        for (const Transmission& part : under_way_) {
            if (std::memcmp(aligned(received_) + part.offset + landed,
                            aligned(sent_) + part.offset + landed, part.bytes - landed) != 0) {
                return false;
            }
            landed = 0;
        }
        return true;
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
    std::deque<Transmission> under_way_;
    std::size_t landed_ = 0;

  public:
    FrameWriter writer;
    FrameReader reader;
};

Bytes frame_pattern(std::size_t size, unsigned seed) {
    Bytes bytes(size);
    std::mt19937 random{seed};
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

Bytes copy_of(const Piece& piece) { return {piece.payload.begin(), piece.payload.end()}; }

/// Lands `wire` byte by byte: nothing may be seen before the last byte, and then `expected`. Bytes
/// of the trailer that lay there already count as landed.
void expect_arrives_with_its_last_byte(BareRing& wire, const Bytes& expected,
                                       const std::string& context) {
    Piece piece;
    while (true) {
        const Look look = wire.reader.look(piece);
        if (look == Look::nothing) {
            ASSERT_TRUE(wire.land_one()) << context << ": not seen";
            continue;
        }
        ASSERT_EQ(look, Look::piece) << context;
        ASSERT_TRUE(wire.rest_is_there()) << context << ": seen before it was complete";
        ASSERT_EQ(copy_of(piece), expected) << context;
        wire.land_all();
        wire.reader.release();
        return;
    }
}

TEST(Frame, EverySizeArrivesWithItsLastByteAtEveryOffsetOfTheRing) {
    constexpr std::size_t ring = 1024;
    for (std::size_t size = 0; size <= 300; ++size) {
        for (std::uint64_t start = 0; start < ring; start += frame_alignment) {
            BareRing wire{ring, start};
            const Bytes message = frame_pattern(size, static_cast<unsigned>(size * 31 + start));
            ASSERT_TRUE(wire.send(message));
            expect_arrives_with_its_last_byte(
                wire, message, "size " + std::to_string(size) + " at " + std::to_string(start));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, ThePieceAsLargeAsTheRingArrivesAgainAndAgain) {
    for (const std::size_t ring : {std::size_t{128}, std::size_t{256}, std::size_t{4096}}) {
        BareRing wire{ring};
        for (unsigned lap = 0; lap < 600; ++lap) {
            const Bytes message = frame_pattern(wire.writer.max_length(), lap);
            ASSERT_TRUE(wire.send(message));
            ASSERT_FALSE(wire.room_for(0)) << "the ring is full";
            expect_arrives_with_its_last_byte(wire, message, "lap " + std::to_string(lap));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, NoFrameIsLongerThanTheRing) {
    BareRing wire{256};
    EXPECT_EQ(wire.writer.max_length(), 240U);
    EXPECT_EQ(frame_bytes(240), 256U);
    EXPECT_GT(frame_bytes(241), 256U);
}

/// What somebody would send to fool the receiver who sees the whole ring and knows everything but
/// the secret.
enum class Malice {
    zeroes,
    ones,
    headers,   ///< of the frames that come next at these places, by another secret
    trailers,  ///< likewise
    replay,    ///< what the ring held before, shifted by a word
    count
};

Bytes malicious(Malice malice, std::size_t size, unsigned turn, BareRing& wire, std::size_t ring) {
    Bytes bytes(size);
    const std::uint64_t next = wire.writer.position() & (ring - 1);
    for (std::size_t i = 0; i < size; ++i) {
        const auto word_index = static_cast<unsigned>(i / word_bytes);
        const unsigned shift = 8 * (i % word_bytes);
        // The same place, a lap later.
        const std::uint64_t position =
            wire.writer.position() + ring + (word_index + 1) * word_bytes;
        const std::uint64_t tag = ring::frame_tag(position, secret + 1 + turn);
        const std::uint64_t facts = frame_facts(0, turn % 17);
        std::uint64_t word = 0;
        switch (malice) {
            case Malice::zeroes: break;
            case Malice::ones: word = ~std::uint64_t{0}; break;
            case Malice::headers: word = header_word(tag, facts); break;
            case Malice::trailers: word = trailer_word(tag, facts); break;
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
        BareRing wire{ring};
        std::mt19937 random{static_cast<unsigned>(kind)};
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
    BareRing wire{ring};
    std::mt19937 random{7};
    for (unsigned turn = 0; turn < 10'000; ++turn) {
        const auto kind = static_cast<Malice>(random() % static_cast<unsigned>(Malice::count));
        const Bytes message = malicious(kind, random() % 490, turn, wire, ring);
        ASSERT_TRUE(wire.send_to_idle_reader(message));
        expect_arrives_with_its_last_byte(wire, message, "turn " + std::to_string(turn));
        if (HasFatalFailure()) return;
    }
}

TEST(Frame, AClaimThatWasUsedInPartArrivesShort) {
    constexpr std::size_t ring = 512;
    BareRing wire{ring};
    std::mt19937 random{11};
    for (unsigned turn = 0; turn < 2000; ++turn) {
        const std::size_t claimed = random() % 400;
        const std::size_t unused = claimed == 0 ? 0 : random() % (claimed + 1);
        const Bytes all = malicious(Malice::headers, claimed, turn, wire, ring);
        ASSERT_TRUE(wire.send_to_idle_reader(all, frame_whole, unused));
        const Bytes expected(all.begin(),
                             all.begin() + static_cast<std::ptrdiff_t>(claimed - unused));
        expect_arrives_with_its_last_byte(wire, expected, "turn " + std::to_string(turn));
        if (HasFatalFailure()) return;
    }
}

TEST(Frame, AClaimThatWasGivenUpIsNoFrame) {
    BareRing wire{512};
    for (unsigned turn = 0; turn < 500; ++turn) {
        wire.land_all();
        Piece piece;
        if (!wire.claim(frame_pattern(turn % 200, turn))) {
            ASSERT_EQ(wire.reader.look(piece), Look::nothing);
            ASSERT_TRUE(wire.claim(frame_pattern(turn % 200, turn)));
        }
        wire.land_all();
        ASSERT_EQ(wire.reader.look(piece), Look::nothing);
        const Bytes message = frame_pattern(40, turn);
        ASSERT_TRUE(wire.send_to_idle_reader(message));
        expect_arrives_with_its_last_byte(wire, message, "turn " + std::to_string(turn));
    }
}

TEST(Frame, CountersPassTwoToThe32AndTwoToThe64) {
    for (const std::uint64_t start :
         {(std::uint64_t{1} << 32) - 640, std::uint64_t{0} - 640, (std::uint64_t{1} << 63) - 64}) {
        BareRing wire{256, start};
        for (unsigned turn = 0; turn < 100; ++turn) {
            const Bytes message = frame_pattern(turn * 2, turn);
            ASSERT_TRUE(wire.send_to_idle_reader(message));
            expect_arrives_with_its_last_byte(wire, message, std::to_string(start));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Frame, OneMessageTouchesOneTransmissionUnlessItMustSkip) {
    BareRing wire{512};
    ASSERT_TRUE(wire.send(frame_pattern(300, 1)));
    EXPECT_EQ(wire.transmissions(), 1U);
    wire.land_all();
    Piece piece;
    ASSERT_EQ(wire.reader.look(piece), Look::piece);
    wire.reader.release();
    ASSERT_TRUE(wire.send(frame_pattern(300, 2)));
    EXPECT_EQ(wire.transmissions(), 2U) << "a skip and the message";
}

TEST(Frame, TheCloseFrameIsSeenBehindEverythingElseAndStays) {
    BareRing wire{256};
    ASSERT_TRUE(wire.send(frame_pattern(30, 1)));
    ASSERT_TRUE(wire.send({}, frame_close));
    wire.land_all();
    Piece piece;
    ASSERT_EQ(wire.reader.look(piece), Look::piece);
    wire.reader.release();
    EXPECT_EQ(wire.reader.look(piece), Look::closed);
    EXPECT_EQ(wire.reader.look(piece), Look::closed);
}

TEST(Frame, PiecesSayWhetherTheyBeginAndEndAMessage) {
    BareRing wire{1024};
    ASSERT_TRUE(wire.send(frame_pattern(8, 1), frame_more));
    ASSERT_TRUE(wire.send(frame_pattern(8, 2), frame_more | frame_continues));
    ASSERT_TRUE(wire.send(frame_pattern(8, 3), frame_continues));
    wire.land_all();
    Piece piece;
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(wire.reader.look(piece), Look::piece);
        EXPECT_EQ(piece.first, i == 0);
        EXPECT_EQ(piece.last, i == 2);
        wire.reader.release();
    }
}

/// As a peer that knows the secret may lay it.
void lay(BareRing& wire, std::uint64_t position, std::uint8_t flags, std::uint64_t length,
         std::uint64_t ring) {
    const std::uint64_t tag = ring::frame_tag(position, secret);
    const std::uint64_t facts = frame_facts(flags, length);
    const std::uint64_t header = header_word(tag, facts);
    const std::uint64_t trailer = trailer_word(tag, facts);
    const std::uint64_t at = position % ring;
    std::memcpy(wire.received() + at, &header, word_bytes);
    if (at + word_bytes + padded(length) + word_bytes <= ring) {
        std::memcpy(wire.received() + at + word_bytes + padded(length), &trailer, word_bytes);
    }
}

TEST(Frame, NonsenseOfThePeerIsBrokenAndNotFollowed) {
    struct Nonsense {
        std::uint8_t flags;
        std::uint64_t length;
        Look expected;
    };
    const std::vector<Nonsense> nonsense{
        {0, (std::uint64_t{1} << length_bits) - 1, Look::nothing},  // longer than the ring
        {0, 512 - 15, Look::nothing},                               // its trailer lies beyond it
        {frame_close | frame_skip, 0, Look::broken},
        {frame_skip, 0, Look::broken},  // passes over the whole ring
        {frame_skip | frame_more, 0, Look::broken},
        {frame_close, 8, Look::broken},
    };
    for (const auto& [flags, length, expected] : nonsense) {
        BareRing wire{512};
        lay(wire, 0, flags, length, 512);
        Piece piece;
        EXPECT_EQ(wire.reader.look(piece), expected) << unsigned{flags} << " " << length;
    }
}

TEST(Frame, TheNextOneBehindOneThatLiesApartBeginsABlock) {
    constexpr std::size_t ring = smallest_ring_of_blocks;
    BareRing wire{ring, 3 * frame_block - 256};
    // A whole one that ends with its block, one that begins before its end, and others.
    for (const std::size_t size : {100U, 1U, 4080U, 2000U, 64U, 4080U}) {
        const Bytes content = frame_pattern(size, static_cast<unsigned>(size));
        ASSERT_TRUE(wire.send(Bytes(20, std::byte{1})));
        ASSERT_TRUE(wire.send_apart(content)) << size;
        EXPECT_EQ(wire.writer.position() % frame_block, 0U) << size;
        wire.land_all();
        Piece piece;
        ASSERT_EQ(wire.reader.look(piece), Look::piece);
        EXPECT_FALSE(wire.reader.is_apart());
        wire.reader.release();
        std::uint64_t length = 0;
        EXPECT_FALSE(wire.reader.front_whole(ring, length));
        const std::uint64_t facts = wire.reader.front_facts();
        EXPECT_EQ(facts, frame_facts(frame_skip, size));
        EXPECT_TRUE(wire.reader.is_message(facts));
        EXPECT_FALSE(wire.reader.is_message(frame_facts(frame_whole, size)));
        ASSERT_EQ(wire.reader.look(piece), Look::piece);
        EXPECT_TRUE(wire.reader.is_apart());
        EXPECT_TRUE(piece.first && piece.last);
        EXPECT_EQ(copy_of(piece), content);
        if (size % 2 == 0) {
            wire.reader.release();
        } else {
            wire.reader.release_apart(size);
        }
        EXPECT_EQ(wire.reader.position(), wire.writer.position());
    }
}

TEST(Frame, NothingButAWholeMessageLiesApartAndOnlyInRingsOfBlocks) {
    struct Nonsense {
        std::uint8_t flags;
        std::uint64_t length;
        std::uint64_t ring;
        Look expected;
    };
    constexpr std::uint64_t large = smallest_ring_of_blocks;
    const std::vector<Nonsense> nonsense{
        {frame_skip, 8, large / 2, Look::broken},
        {frame_skip | frame_more, 8, large, Look::broken},
        {frame_skip | frame_continues, 8, large, Look::broken},
        {frame_skip | frame_close, 8, large, Look::broken},
        {frame_skip, large - 15, large, Look::nothing},  // its trailer lies beyond the ring
        {frame_skip, large - 16, large, Look::piece},
    };
    for (const auto& [flags, length, ring, expected] : nonsense) {
        BareRing wire{ring};
        lay(wire, 0, flags, length, ring);
        Piece piece;
        EXPECT_EQ(wire.reader.look(piece), expected) << unsigned{flags} << " " << length;
        EXPECT_EQ(wire.reader.is_message(wire.reader.front_facts()), expected == Look::piece)
            << unsigned{flags} << " " << length;
    }
    // Nor is what passes over the rest of a ring.
    BareRing wire{large};
    lay(wire, 0, frame_skip, 0, large);
    EXPECT_FALSE(wire.reader.is_message(wire.reader.front_facts()));
}

TEST(Frame, ARingFullOfSkipsDoesNotLeadRoundForEver) {
    BareRing wire{512, 64};
    lay(wire, 64, frame_skip, 0, 512);
    lay(wire, 512, frame_skip, 0, 512);
    Piece piece;
    EXPECT_EQ(wire.reader.look(piece), Look::broken);
}

RC_GTEST_PROP(Frame, AnyInterleavingDeliversWhatAQueueWould, ()) {
    const std::size_t ring = std::size_t{128} << *rc::gen::element(0, 1, 2, 3, 4, 7, 8);
    const auto start = *rc::gen::element<std::uint64_t>(0, 64, (std::uint64_t{1} << 32) - 128,
                                                        std::uint64_t{0} - 192);
    BareRing wire{ring, start};
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
                if (argument % 11 == 0 && size != 0 && ring >= smallest_ring_of_blocks) {
                    if (wire.send_apart(all)) queue.push_back(all);
                    break;
                }
                const bool given_up = argument % 7 == 0;
                if (given_up ? wire.claim(all) && false : wire.send(all, frame_whole, unused)) {
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
}

}  // namespace
}  // namespace millrace::message
