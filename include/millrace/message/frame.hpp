// Frames: how one piece of a message lies in a ring of bytes, and why the receiver can tell a
// frame that has arrived from whatever lay there before. Used by FrameWriter and FrameReader.
//
//   offset 0          8                    8 + length, up to 8      end, up to 64
//   | header word     | payload            | footer word            | (not transmitted) |
//
//   header   63..56 tag      the value that the frame before announced
//            55..48 0
//            47..40 mark     what the footer's mark will be
//            39..32 flags
//            31..0  length   of the payload as claimed, in bytes
//   footer   63..56 mark     as the header said
//            55..40 0
//            39..8  unused   bytes at the end of the claimed payload that are not part of it
//            7..0   next tag the tag of the header that follows this frame
//
// A frame begins on a cache line, so a message touches as few lines as its bytes need: up to 48
// bytes of payload travel in one, 64 in two. The tag is the last byte of the header and the mark
// the last byte of the footer: bytes that land in address order complete each word with them.
//
// Invariant (M): the sender's ring equals the receiver's ring once everything posted has landed.
// Both begin as zeroes, and the sender transmits every byte that it changes: a claimed payload
// travels in full, even if less of it was used (`unused`) or all of it was given up (frame_void).
//
// Hence nothing stale can pass for a frame, whatever payloads have lain there, and nothing needs
// zeroing (work 001, section 4.1.2, clears the buffer or writes a zero behind each message):
//   - Where the next header will be, the receiver's ring holds, until it arrives, the same byte b
//     as the sender's ring does now. The sender announces tag b + 1, which differs from b.
//   - Where the footer of this frame will be, the receiver's ring holds the byte m that the
//     sender's ring holds before the footer is stored there. The header names mark m + 1.
//   - So a matching tag is the new header, and a matching mark the new footer; the footer is the
//     last to land, so what lies between is complete.
// Between the announcement and the header nothing changes the header's place: a claimed payload
// begins behind it. Bytes that lie between a footer and the next frame are neither changed nor
// transmitted.
//
// Source: work 001, sections 4.1.1 to 4.1.3 (ring, detection, header and footer).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "millrace/base/peer_causality.hpp"

namespace millrace::message {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

inline constexpr std::size_t frame_alignment = 64;
inline constexpr std::size_t word_bytes = 8;

enum FrameFlags : std::uint8_t {
    frame_whole = 0,      ///< a message in one piece
    frame_more = 1,       ///< further pieces of the same message follow
    frame_continues = 2,  ///< not the first piece of its message
    frame_void = 4,       ///< no message: a claim that was given up
    frame_skip = 8,       ///< no message: the rest up to the end of the ring is unused
    frame_close = 16,     ///< no message: the sender sends no more
};
/// Every flag of a piece of a message; larger values are frames without a message.
inline constexpr std::uint8_t frame_piece_flags = frame_more | frame_continues;

/// Bytes of the ring that a piece of `length` bytes takes.
[[nodiscard]] constexpr std::uint64_t padded(std::uint64_t length) noexcept {
    return (length + (word_bytes - 1)) & ~std::uint64_t{word_bytes - 1};
}
/// Bytes transmitted: header, payload, footer.
[[nodiscard]] constexpr std::uint64_t wire_bytes(std::uint64_t length) noexcept {
    return padded(length) + 2 * word_bytes;
}
[[nodiscard]] constexpr std::uint64_t frame_bytes(std::uint64_t length) noexcept {
    return (wire_bytes(length) + (frame_alignment - 1)) & ~std::uint64_t{frame_alignment - 1};
}

[[nodiscard]] constexpr std::uint64_t header_word(std::uint8_t tag, std::uint8_t mark,
                                                  std::uint8_t flags,
                                                  std::uint32_t length) noexcept {
    return std::uint64_t{tag} << 56 | std::uint64_t{mark} << 40 | std::uint64_t{flags} << 32 |
           length;
}
[[nodiscard]] constexpr std::uint64_t footer_word(std::uint8_t mark, std::uint32_t unused,
                                                  std::uint8_t next_tag) noexcept {
    return std::uint64_t{mark} << 56 | std::uint64_t{unused} << 8 | next_tag;
}
/// The byte by which a word is recognised: header's tag, footer's mark.
[[nodiscard]] constexpr std::uint8_t top_byte(std::uint64_t word) noexcept {
    return static_cast<std::uint8_t>(word >> 56);
}
[[nodiscard]] constexpr std::uint8_t header_mark(std::uint64_t header) noexcept {
    return static_cast<std::uint8_t>(header >> 40);
}
[[nodiscard]] constexpr std::uint8_t header_flags(std::uint64_t header) noexcept {
    return static_cast<std::uint8_t>(header >> 32);
}
[[nodiscard]] constexpr std::uint32_t header_length(std::uint64_t header) noexcept {
    return static_cast<std::uint32_t>(header);
}
[[nodiscard]] constexpr std::uint32_t footer_unused(std::uint64_t footer) noexcept {
    return static_cast<std::uint32_t>(footer >> 8);
}
[[nodiscard]] constexpr std::uint8_t footer_next_tag(std::uint64_t footer) noexcept {
    return static_cast<std::uint8_t>(footer);
}

/// The tag of the first header in a ring of zeroes.
inline constexpr std::uint8_t first_tag = 1;

inline constexpr std::size_t smallest_ring = 128;
inline constexpr std::size_t largest_ring = std::size_t{1} << 30;
/// Positions count bytes and wrap at 2^64: only powers of two then stay in step.
[[nodiscard]] constexpr bool valid_ring(std::uint64_t bytes) noexcept {
    return std::has_single_bit(bytes) && bytes >= smallest_ring && bytes <= largest_ring;
}

static_assert(frame_bytes(0) == 64 && frame_bytes(48) == 64 && frame_bytes(49) == 128);
static_assert(wire_bytes(64) == 80 && frame_bytes(64) == 128);

namespace detail {
/// Words that the other side writes or that a device reads are only touched through these.
inline std::uint64_t load_word(const std::byte* at) noexcept {
    // atomic_ref<const T> arrives with C++26; the load does not write.
    auto* word = const_cast<std::uint64_t*>(reinterpret_cast<const std::uint64_t*>(at));
    const std::uint64_t value =
        std::atomic_ref<std::uint64_t>{*word}.load(std::memory_order_acquire);
    base::heard_from_peers();
    return value;
}
}  // namespace detail

}  // namespace millrace::message
