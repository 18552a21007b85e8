// Watermarks: the words in a ring by which its consumer sees that an item has arrived whole.
// TransferNotification::watermark of the engine (work 000, section 4.2); used by Sender and
// Receiver.
//
// Fixed slots                                  Frames (any number of bytes)
//
//   0            payload                         0          header: tag's upper half | length
//   size         padding                         8          payload
//   slot - 8     mark                            8 + length padding to 8
//                                                ... + 8    trailer
//
// The word that comes last in address order is written last or, where a device does not keep the
// order of one WRITE's bytes, in a WRITE of its own after it. No slot need be cleared: marks name
// the position in the stream, which never comes again, instead of a lap that must be erased.
//  - A slot's mark is at the same address in every lap, where payload never lies: the position
//    itself is enough, and nothing can forge it.
//  - A frame's words fall where payload of earlier laps lay: they are a hash of position and a
//    secret of the connection, so that no payload can be chosen (or happen, but for 2^-64 a
//    frame) to look like one. Only the trailer decides: a header mistaken for one (2^-32) makes
//    the consumer look at a word that does not match, once more, until the true header arrives.
//  - Where a frame does not fit before the end of the ring, a skip word sends the consumer to
//    the beginning. It decides alone, so all 64 of its bits must match.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::ring {

/// A word of ring memory: naturally aligned, so that it arrives whole.
[[nodiscard]] inline std::uint64_t load_word(const std::byte* at) noexcept {
    return std::atomic_ref<std::uint64_t>{
        *reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(at))}
        .load(std::memory_order_acquire);
}
inline void store_word(std::byte* at, std::uint64_t word) noexcept {
    std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(at)}.store(
        word, std::memory_order_release);
}

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t number,
                                               std::uint64_t multiple) noexcept {
    return (number + multiple - 1) / multiple * multiple;
}

inline constexpr std::uint64_t mark_bytes = 8;
/// What a frame has around its payload: header and trailer.
inline constexpr std::uint64_t frame_overhead = 16;

/// The bytes a frame of `length` takes in the ring.
[[nodiscard]] constexpr std::uint64_t frame_bytes(std::uint64_t length) noexcept {
    return frame_overhead + ((length + 7) & ~std::uint64_t{7});
}

/// The mark of the slot at `position`, in a stream that began at `initial`. Never 0, which is what
/// fresh memory holds.
[[nodiscard]] constexpr std::uint64_t slot_mark(std::uint64_t position,
                                                std::uint64_t initial) noexcept {
    return position - initial + 1;
}

/// What the words of a frame at `position` are made of: a bijection of it, so that no two positions
/// have the same, which mixes all bits of it and of the secret.
[[nodiscard]] constexpr std::uint64_t frame_tag(std::uint64_t position,
                                                std::uint64_t secret) noexcept {
    const std::uint64_t x = (position ^ secret) * 0xbf58476d1ce4e5b9;
    return (x ^ (x >> 32)) * 0x94d049bb133111eb;
}
[[nodiscard]] constexpr std::uint64_t frame_header(std::uint64_t tag,
                                                   std::uint32_t length) noexcept {
    return (tag & 0xffffffff00000000) | length;
}
[[nodiscard]] constexpr bool is_frame_header(std::uint64_t word, std::uint64_t tag) noexcept {
    return (word ^ tag) >> 32 == 0;
}
[[nodiscard]] constexpr std::uint32_t frame_length(std::uint64_t header) noexcept {
    return static_cast<std::uint32_t>(header);
}
[[nodiscard]] constexpr std::uint64_t frame_trailer(std::uint64_t tag,
                                                    std::uint32_t length) noexcept {
    return tag ^ (length * 0x9e3779b97f4a7c15);
}
[[nodiscard]] constexpr std::uint64_t skip_word(std::uint64_t tag) noexcept { return ~tag; }

}  // namespace millrace::ring
