// The receiving half of a ring of frames: recognises the next frame in memory that the peer
// writes, and passes over it. Knows no device. The layout and its argument stand in frame.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/message/frame.hpp"

namespace millrace::message {

/// A message, or a part of one that is larger than the ring. A first piece that arrives before
/// the last one of the message before says that the sender gave that message up.
struct Piece {
    std::span<const std::byte> payload;
    bool first = true;  ///< the message begins with this piece
    bool last = true;   ///< the message ends with this piece
};

/// One thread. Never blocks, allocates or throws. Validates whatever the peer wrote.
class FrameReader {
  public:
    enum class Look : std::uint8_t {
        nothing,  ///< no complete frame yet
        piece,    ///< a piece of a message; release() it
        closed,   ///< the sender sends no more
        broken,   ///< what lies there is no frame that this protocol allows
    };

    FrameReader() noexcept = default;
    /// As FrameWriter's constructor.
    explicit FrameReader(std::span<const std::byte> ring, std::uint64_t first_position = 0) noexcept
        : ring_{ring.data()}, size_{ring.size()}, position_{first_position} {}

    /// Bytes consumed so far: what the sender may write over.
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

    /// Cheap and often wrong in one direction only: false means that nothing has arrived.
    [[nodiscard]] bool arriving() const noexcept {
        return top_byte(detail::load_word(ring_ + offset())) == tag_;
    }

    /// Looks for the next frame. `piece` is set when there is one, and stays valid until release.
    Look look(Piece& piece) noexcept {
        const std::uint64_t begin = position_;
        for (;;) {
            const std::uint64_t at = offset();
            const std::uint64_t header = detail::load_word(ring_ + at);
            if (top_byte(header) != tag_) return Look::nothing;
            const std::uint64_t length = header_length(header);
            const std::uint8_t flags = header_flags(header);
            if (flags > frame_piece_flags) [[unlikely]] {
                const Look special = look_special(at, header);
                if (special != Look::piece) return special;
                // Something was passed over. What lies in front of us is at most one ring: a peer
                // that leads us round it again would do so for ever.
                if (position_ - begin > size_) return Look::broken;
                continue;
            }
            if (frame_bytes(length) > size_ - at) [[unlikely]]
                return Look::broken;
            const std::uint64_t footer =
                detail::load_word(ring_ + at + word_bytes + padded(length));
            if (top_byte(footer) != header_mark(header)) return Look::nothing;
            const std::uint64_t unused = footer_unused(footer);
            if (unused > length) [[unlikely]]
                return Look::broken;
            next_tag_ = footer_next_tag(footer);
            extent_ = frame_bytes(length);
            piece.payload = {ring_ + at + word_bytes, length - unused};
            piece.first = (flags & frame_continues) == 0;
            piece.last = (flags & frame_more) == 0;
            return Look::piece;
        }
    }

    /// Passes over the piece that look() found last. The sender may write over it once it is told
    /// the new position.
    void release() noexcept {
        position_ += extent_;
        tag_ = next_tag_;
    }

  private:
    [[nodiscard]] std::uint64_t offset() const noexcept { return position_ & (size_ - 1); }

    Look look_special(std::uint64_t at, std::uint64_t header) noexcept {
        const std::uint8_t flags = header_flags(header);
        const std::uint64_t length = header_length(header);
        if (flags != frame_void && flags != frame_skip && flags != frame_close) {
            return Look::broken;
        }
        if (flags != frame_void && length != 0) return Look::broken;
        if (flags == frame_skip && at == 0) return Look::broken;  // would pass over everything
        if (frame_bytes(length) > size_ - at) return Look::broken;
        const std::uint64_t footer = detail::load_word(ring_ + at + word_bytes + padded(length));
        if (top_byte(footer) != header_mark(header)) return Look::nothing;
        if (flags == frame_close) return Look::closed;
        position_ += flags == frame_skip ? size_ - at : frame_bytes(length);
        tag_ = footer_next_tag(footer);
        return Look::piece;
    }

    const std::byte* ring_ = nullptr;
    std::uint64_t size_ = 0;
    std::uint64_t position_ = 0;
    std::uint64_t extent_ = 0;
    std::uint8_t tag_ = first_tag;
    std::uint8_t next_tag_ = 0;
};

}  // namespace millrace::message
