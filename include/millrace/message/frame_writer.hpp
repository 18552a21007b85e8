// The sending half of a ring of frames, on the sender's own copy of the ring: where the next
// frame goes, what is put there, and which bytes must then be transmitted. Knows no device; the
// channel posts what it says. The layout and its argument stand in frame.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "millrace/base/status.hpp"
#include "millrace/message/frame.hpp"

namespace millrace::message {

/// Bytes of the ring to be transmitted, in address order, to the same offset at the receiver.
struct Transmission {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

/// One thread. Never blocks, allocates or throws.
class FrameWriter {
  public:
    FrameWriter() noexcept = default;
    /// `ring`: zeroed, a size for which `valid_ring` holds, aligned to 64, outlives the writer.
    /// `first_position`: what the receiver begins with, too.
    explicit FrameWriter(std::span<std::byte> ring, std::uint64_t first_position = 0) noexcept
        : ring_{ring.data()}, size_{ring.size()}, position_{first_position} {}

    /// The longest payload that fits in one piece.
    [[nodiscard]] std::uint64_t max_length() const noexcept { return size_ - 2 * word_bytes; }
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
    /// Bytes produced so far; the receiver's position never passes it.
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    [[nodiscard]] std::uint64_t free_bytes(std::uint64_t consumed) const noexcept {
        return size_ - (position_ - consumed);
    }
    /// True if a piece of `length` cannot follow directly, since the ring ends before.
    [[nodiscard]] bool must_skip(std::uint64_t length) const noexcept {
        return frame_bytes(length) > size_ - offset();
    }
    /// How many free bytes the next step (the skip if there must be one, else the piece) needs.
    [[nodiscard]] std::uint64_t needed(std::uint64_t length) const noexcept {
        return must_skip(length) ? size_ - offset() : frame_bytes(length);
    }

    /// Passes over the rest of the ring. Precondition: must_skip, and needed() bytes are free.
    Transmission skip() noexcept {
        const std::uint64_t at = offset();
        store_frame(at, 0, frame_skip, 0, word_bytes, size_ - at);
        return {at, 2 * word_bytes};
    }

    /// Where the payload of the next piece goes. Precondition: not must_skip, needed() are free.
    [[nodiscard]] std::span<std::byte> payload(std::uint64_t length) const noexcept {
        return {ring_ + offset() + word_bytes, length};
    }
    /// Makes a frame of the claimed payload, of which the first `length - unused` bytes count.
    /// All of it is transmitted: what the caller may have changed must reach the receiver, too.
    Transmission commit(std::uint64_t length, std::uint8_t flags,
                        std::uint32_t unused = 0) noexcept {
        const std::uint64_t at = offset();
        store_frame(at, length, flags, unused, word_bytes + padded(length), frame_bytes(length));
        return {at, wire_bytes(length)};
    }

  private:
    [[nodiscard]] std::uint64_t offset() const noexcept { return position_ & (size_ - 1); }
    /// A byte that differs from the stale one.
    [[nodiscard]] static std::uint8_t successor(std::byte stale) noexcept {
        return static_cast<std::uint8_t>(std::to_integer<unsigned>(stale) + 1U);
    }

    void store_frame(std::uint64_t at, std::uint64_t length, std::uint8_t flags,
                     std::uint32_t unused, std::uint64_t footer_offset,
                     std::uint64_t extent) noexcept {
        std::byte* const footer = ring_ + at + footer_offset;
        const std::uint8_t mark = successor(footer[7]);
        const std::uint64_t header =
            header_word(tag_, mark, flags, static_cast<std::uint32_t>(length));
        std::memcpy(ring_ + at, &header, word_bytes);
        position_ += extent;
        // After the header: a frame as large as the ring is followed by its own place.
        tag_ = successor(ring_[offset() + 7]);
        const std::uint64_t word = footer_word(mark, unused, tag_);
        std::memcpy(footer, &word, word_bytes);
    }

    std::byte* ring_ = nullptr;
    std::uint64_t size_ = 0;
    std::uint64_t position_ = 0;
    std::uint8_t tag_ = first_tag;
};

}  // namespace millrace::message
