// Frames: how one piece of a message lies in a ring of bytes, and why the receiver can tell a
// frame that has arrived from whatever lay there before. Used by FrameWriter and FrameReader.
//
//   offset 0          8                    8 + length, up to 8      end, up to 64
//   | header word     | payload            | trailer word           | (not transmitted) |
//
//   header   63..34 tag      of the frame's position
//            33..30 flags
//            29..0  length   of the payload in bytes
//   trailer  64 bits that follow from position, flags and length
//
// A frame begins on a cache line, so a message touches as few lines as its bytes need: up to 48
// bytes of payload travel in one, 64 in two.
//
// Both words are made of a hash of the frame's position in the stream and of a secret that the
// sender has chosen for the connection (ring/watermark.hpp). A position never comes again, so what
// lay in the ring before, payloads of earlier laps included, does not match; nor can a payload be
// chosen to match, as nobody else knows the secret. The trailer decides, with 64 bits. A header
// that something stale looks like (2^-30) makes the receiver look at a word that does not match,
// once more, until the true header is there. Nothing relies on zeroes, and the sender reads nothing
// of what it has sent. Work 001, section 4.1.2, clears the buffer or writes a zero after each
// message.
//
// Where bytes land in address order, or the trailer is stored last, or the header is stored last
// (a sender that stores into the ring itself): a receiver that finds both words finds the payload.
//
//     std::uint64_t room = message::frame_bytes(payload.size());   // what it takes in the ring
//
// Source: work 001, sections 4.1.1 to 4.1.3 (ring, detection, header and footer).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/ring/watermark.hpp"

namespace millrace::message {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

inline constexpr std::size_t frame_alignment = 64;
inline constexpr std::size_t word_bytes = 8;

enum FrameFlags : std::uint8_t {
    frame_whole = 0,      ///< a message in one piece
    frame_more = 1,       ///< further pieces of the same message follow
    frame_continues = 2,  ///< not the first piece of its message
    /// Without payload: no message, and the rest up to the end of the ring is unused. With one: a
    /// whole message, and the rest of its block is unused (`frame_block`).
    frame_skip = 4,
    frame_close = 8,  ///< no message: the sender sends no more
};
/// Every flag of a piece of a message; larger values are frames without one, or that take more than
/// their bytes.
inline constexpr std::uint8_t frame_piece_flags = frame_more | frame_continues;

/// Bytes of the ring that a piece of `length` bytes takes.
[[nodiscard]] constexpr std::uint64_t padded(std::uint64_t length) noexcept {
    return (length + (word_bytes - 1)) & ~std::uint64_t{word_bytes - 1};
}
/// Bytes transmitted: header, payload, trailer.
[[nodiscard]] constexpr std::uint64_t wire_bytes(std::uint64_t length) noexcept {
    return padded(length) + 2 * word_bytes;
}
[[nodiscard]] constexpr std::uint64_t frame_bytes(std::uint64_t length) noexcept {
    return (wire_bytes(length) + (frame_alignment - 1)) & ~std::uint64_t{frame_alignment - 1};
}

inline constexpr unsigned length_bits = 30;
inline constexpr unsigned flag_bits = 4;
/// Of a header: what is not its tag.
[[nodiscard]] constexpr std::uint64_t frame_facts(std::uint8_t flags,
                                                  std::uint64_t length) noexcept {
    return std::uint64_t{flags} << length_bits | length;
}
inline constexpr std::uint64_t facts_mask = (std::uint64_t{1} << (length_bits + flag_bits)) - 1;
/// `tag`: ring::frame_tag of the frame's position and the sender's secret.
[[nodiscard]] constexpr std::uint64_t header_word(std::uint64_t tag, std::uint64_t facts) noexcept {
    return (tag & ~facts_mask) | facts;
}
[[nodiscard]] constexpr std::uint64_t trailer_word(std::uint64_t tag,
                                                   std::uint64_t facts) noexcept {
    return tag ^ (facts * 0x9e3779b97f4a7c15);
}
[[nodiscard]] constexpr bool is_header(std::uint64_t word, std::uint64_t tag) noexcept {
    return ((word ^ tag) & ~facts_mask) == 0;
}
[[nodiscard]] constexpr std::uint8_t header_flags(std::uint64_t header) noexcept {
    return static_cast<std::uint8_t>(header >> length_bits & ((1U << flag_bits) - 1));
}
[[nodiscard]] constexpr std::uint64_t header_length(std::uint64_t header) noexcept {
    return header & ((std::uint64_t{1} << length_bits) - 1);
}

/// Rings of this size and more have blocks. A message of many lines that lies directly after the
/// one before is fetched too early: a receiver that reads that one has its processor fetch on
/// beyond its end, and takes lines from the sender, which is about to write there. So one may say
/// that the next frame begins a block; no fetch goes that far.
inline constexpr std::uint64_t frame_block = 4096;
inline constexpr std::uint64_t smallest_ring_of_blocks = 4 * frame_block;
/// What a frame at `position` takes that has the rest of its block to itself.
[[nodiscard]] constexpr std::uint64_t frame_bytes_apart(std::uint64_t position,
                                                        std::uint64_t length) noexcept {
    const std::uint64_t end = position + frame_bytes(length);
    return ((end + (frame_block - 1)) & ~(frame_block - 1)) - position;
}

inline constexpr std::size_t smallest_ring = 128;
inline constexpr std::size_t largest_ring = std::size_t{1} << length_bits;
/// Positions count bytes and wrap at 2^64: only powers of two then stay in step.
[[nodiscard]] constexpr bool valid_ring(std::uint64_t bytes) noexcept {
    return std::has_single_bit(bytes) && bytes >= smallest_ring && bytes <= largest_ring;
}

static_assert(frame_bytes(0) == 64 && frame_bytes(48) == 64 && frame_bytes(49) == 128);
static_assert(wire_bytes(64) == 80 && frame_bytes(64) == 128);

/// A server that looks at many rings in turn, and finds something in most of them, asks for what
/// lies in those that it comes to soon: for the header in the fourth one from here, and, if that
/// has come, for all lines after it in the second. Measured in docs/performance.md.
inline constexpr std::size_t turns_to_header = 4;
inline constexpr std::size_t turns_to_lines = 2;

/// A word that the other side writes.
[[nodiscard]] inline std::uint64_t load_frame_word(const std::byte* at) noexcept {
    const std::uint64_t value = ring::load_word(at);
    base::heard_from_peers();
    return value;
}

}  // namespace millrace::message
