// The sending half of a ring of frames: where the next frame goes, what is put there, and which
// bytes must then be transmitted. The ring is the receiver's, where its memory is addressable, or
// the sender's own copy of it. Knows no device; the channel moves what it says. The layout and its
// argument stand in frame.hpp.
//
//     message::FrameWriter writer{ring, own_secret};
//     if (writer.free_bytes(consumed) >= writer.needed(piece.size())) …   // skip, or
//     message::Transmission bytes = writer.send(piece, flags);            // what is to travel
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/message/detail/copy.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/ring/watermark.hpp"

namespace millrace::message {

/// Bytes of the ring to be transmitted, in address order, to the same offset at the receiver.
struct Transmission {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

/// What is laid before a payload that lies elsewhere.
using PieceHead = std::array<std::uint64_t, 2>;

/// One thread. Never blocks, allocates or throws.
class FrameWriter {
  public:
    FrameWriter() noexcept = default;
    /// `ring`: a size for which `valid_ring` holds, aligned to 64, outlives the writer.
    /// `secret`, `first_position`: what the receiver begins with, too.
    FrameWriter(std::span<std::byte> ring, std::uint64_t secret,
                std::uint64_t first_position = 0) noexcept
        : ring_{ring.data()},
          size_{ring.size()},
          end_{ring.data() + ring.size()},
          front_{ring.data() + (first_position & (ring.size() - 1))},
          position_{first_position},
          secret_{secret},
          tag_{ring::frame_tag(first_position, secret)} {}

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

    [[nodiscard]] std::uint64_t to_the_end() const noexcept { return size_ - offset(); }

    /// Passes over the rest of the ring. Precondition: must_skip, and needed() bytes are free.
    Transmission skip() noexcept { return lay(0, frame_skip, size_ - offset()); }

    /// Where the payload of the next piece goes. Precondition: not must_skip, needed() are free.
    /// Until commit() it is not a frame, and may be claimed again, or given up.
    [[nodiscard]] std::span<std::byte> payload(std::uint64_t length) const noexcept {
        return {front_ + word_bytes, length};
    }
    /// Makes a frame of the first `length` bytes of what was claimed.
    Transmission commit(std::uint64_t length, std::uint8_t flags) noexcept {
        return lay(length, flags, frame_bytes(length));
    }

    /// As commit(), of a whole message after which the rest of its block stays unused.
    /// Precondition: the ring has blocks, `length` is not 0, and frame_bytes_apart() of it are
    /// free.
    Transmission commit_apart(std::uint64_t length) noexcept {
        return lay(length, frame_skip, frame_bytes_apart(position_, length));
    }

    /// Copies a piece and makes a frame of it. Precondition: as payload().
    ///
    /// The cache line of the header goes last: the receiver looks at it all the time, and would
    /// take it away between a store there and the next one after it.
    [[gnu::always_inline]] Transmission send(std::span<const std::byte> piece,
                                             std::uint8_t flags) noexcept {
        constexpr std::size_t in_first_line = frame_alignment - word_bytes;
        const std::size_t length = piece.size();
        std::byte* const place = front_ + word_bytes;
        const std::uint64_t facts = frame_facts(flags, length);
        if (length <= in_first_line) {
            copy_short(place, piece.data(), length);
        } else {
            copy_any(place + in_first_line, piece.data() + in_first_line, length - in_first_line);
            ring::store_word(place + padded(length), trailer_word(tag_, facts));
            std::atomic_signal_fence(std::memory_order_seq_cst);
            copy_short(place, piece.data(), in_first_line);
            return show(length, facts, frame_bytes(length));
        }
        return commit(length, flags);
    }

    /// As send(), of a piece that begins with a head of 16 bytes, which lies elsewhere.
    [[gnu::always_inline]] Transmission send(const PieceHead& head,
                                             std::span<const std::byte> rest) noexcept {
        constexpr std::size_t in_first_line = frame_alignment - word_bytes - sizeof(PieceHead);
        const std::size_t length = sizeof head + rest.size();
        std::byte* const place = front_ + word_bytes;
        std::byte* const behind = place + sizeof head;
        const std::uint64_t facts = frame_facts(frame_whole, length);
        if (rest.size() <= in_first_line) {
            copy_short(behind, rest.data(), rest.size());
        } else {
            copy_any(behind + in_first_line, rest.data() + in_first_line,
                     rest.size() - in_first_line);
            ring::store_word(place + padded(length), trailer_word(tag_, facts));
            std::atomic_signal_fence(std::memory_order_seq_cst);
            copy_short(behind, rest.data(), in_first_line);
        }
        copy_two_words(place, head);
        if (rest.size() <= in_first_line) return commit(length, frame_whole);
        return show(length, facts, frame_bytes(length));
    }

    /// After commit() and send(): the frame takes a whole slot (FrameReader::pass_slot).
    void pass_slot(std::uint64_t slot) noexcept {
        position_ = (position_ + slot - 1) & ~(slot - 1);
        front_ = ring_ + offset();
        tag_ = ring::frame_tag(position_, secret_);
    }

  private:
    [[nodiscard]] std::uint64_t offset() const noexcept { return position_ & (size_ - 1); }

    Transmission lay(std::uint64_t length, std::uint8_t flags, std::uint64_t extent) noexcept {
        const std::uint64_t facts = frame_facts(flags, length);
        ring::store_word(front_ + word_bytes + padded(length), trailer_word(tag_, facts));
        return show(length, facts, extent);
    }
    /// The header last: where the ring is the receiver's, it looks there first.
    [[gnu::always_inline]] Transmission show(std::uint64_t length, std::uint64_t facts,
                                             std::uint64_t extent) noexcept {
        std::byte* const place = front_;
        base::telling_peers();
        ring::store_word(place, header_word(tag_, facts));
        front_ = place + extent;
        if (front_ == end_) [[unlikely]]
            front_ = ring_;
        position_ += extent;
        tag_ = ring::frame_tag(position_, secret_);
        return {static_cast<std::uint64_t>(place - ring_), wire_bytes(length)};
    }

    std::byte* ring_ = nullptr;
    std::uint64_t size_ = 0;
    std::byte* end_ = nullptr;    ///< of the ring
    std::byte* front_ = nullptr;  ///< where position_ lies in the ring
    std::uint64_t position_ = 0;
    std::uint64_t secret_ = 0;
    std::uint64_t tag_ = 0;  ///< of the next frame
};

}  // namespace millrace::message
