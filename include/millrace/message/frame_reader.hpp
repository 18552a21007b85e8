// The receiving half of a ring of frames: recognises the next frame in memory that the peer
// writes, and passes over it. Knows no device. The layout and its argument stand in frame.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/message/frame.hpp"
#include "millrace/ring/watermark.hpp"

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
        broken,   ///< what lies there is a frame that this protocol does not allow
    };

    FrameReader() noexcept = default;
    /// As FrameWriter's constructor.
    explicit FrameReader(std::span<const std::byte> ring, std::uint64_t secret,
                         std::uint64_t first_position = 0) noexcept
        : ring_{ring.data()},
          size_{ring.size()},
          position_{first_position},
          secret_{secret},
          tag_{ring::frame_tag(first_position, secret)} {}

    /// Bytes consumed so far: what the sender may write over.
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

    /// Cheap and hardly ever wrong: false means that nothing has arrived.
    [[nodiscard]] bool arriving() const noexcept {
        return is_header(load_frame_word(ring_ + offset()), tag_);
    }

    /// Looks for the next frame. `piece` is set when there is one, and stays valid until release.
    Look look(Piece& piece) noexcept {
        const std::uint64_t at = offset();
        const std::uint64_t header = load_frame_word(ring_ + at);
        if (!is_header(header, tag_)) return Look::nothing;
        const std::uint64_t length = header_length(header);
        // A stale word may look like a header: then its length may be anything.
        extent_ = frame_bytes(length);
        if (extent_ > size_ - at) [[unlikely]]
            return Look::nothing;
        const std::uint64_t trailer = load_frame_word(ring_ + at + word_bytes + padded(length));
        if (trailer != trailer_word(tag_, header & facts_mask)) return Look::nothing;
        const std::uint8_t flags = header_flags(header);
        if (flags > frame_piece_flags) [[unlikely]]
            return pass(piece, flags, length);
        piece.payload = {ring_ + at + word_bytes, length};
        piece.first = (flags & frame_continues) == 0;
        piece.last = (flags & frame_more) == 0;
        return Look::piece;
    }

    /// Passes over the piece that look() found last. The sender may write over it once it is told
    /// the new position.
    void release() noexcept { go_on(extent_); }

  private:
    [[nodiscard]] std::uint64_t offset() const noexcept { return position_ & (size_ - 1); }
    void go_on(std::uint64_t bytes) noexcept {
        position_ += bytes;
        tag_ = ring::frame_tag(position_, secret_);
    }
    /// A frame that is no message has arrived.
    [[gnu::noinline]] Look pass(Piece& piece, std::uint8_t flags, std::uint64_t length) noexcept {
        if (flags == frame_close && length == 0) return Look::closed;
        // A skip never comes at the beginning of the ring: so it does not lead round and round.
        if (flags != frame_skip || length != 0 || offset() == 0) return Look::broken;
        go_on(size_ - offset());
        return look(piece);
    }

    const std::byte* ring_ = nullptr;
    std::uint64_t size_ = 0;
    std::uint64_t position_ = 0;
    std::uint64_t extent_ = 0;
    std::uint64_t secret_ = 0;
    std::uint64_t tag_ = 0;
};

}  // namespace millrace::message
