// The receiving half of a ring of frames: recognises the next frame in memory that the peer
// writes, and passes over it. Knows no device. The layout and its argument stand in frame.hpp.
//
//     message::FrameReader reader{ring, secret_of_the_sender};
//     if (reader.arriving()) …                       // cheap, and asked again and again
//     if (std::uint64_t header; reader.front(header)) … message::header_length(header) …
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "millrace/message/detail/frame.hpp"
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
          end_{ring.data() + ring.size()},
          front_{ring.data() + (first_position & (ring.size() - 1))},
          position_{first_position},
          secret_{secret},
          tag_{ring::frame_tag(first_position, secret)},
          head_{header_word(tag_, 0)} {}

    /// Bytes consumed so far: what the sender may write over.
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

    /// Cheap and hardly ever wrong: false means that nothing has arrived.
    [[nodiscard]] bool arriving() const noexcept {
        return is_header(load_frame_word(front_), tag_);
    }

    /// Where the next frame will begin, and its tag: for code that looks at many rings in turn.
    struct Awaited {
        const std::byte* place = nullptr;
        std::uint64_t tag = 0;
        [[nodiscard]] bool arriving() const noexcept {
            return is_header(load_frame_word(place), tag);
        }
        [[gnu::always_inline]] void ask_for_second_line() const noexcept {
            __builtin_prefetch(place + frame_alignment);
        }
    };
    [[nodiscard]] Awaited awaited() const noexcept { return {front_, tag_}; }

    /// A frame has arrived in front: its header.
    [[nodiscard, gnu::always_inline]] bool front(std::uint64_t& header) const noexcept {
        ask_for_second_line();
        const std::byte* const place = front_;
        header = load_frame_word(place);
        if (!is_header(header, tag_)) return false;
        return ends_with(place, header_length(header), header & facts_mask);
    }
    /// The same, if it is a message that is whole, of at most `most` bytes (what memory has, so
    /// that no address wraps): the length of its payload.
    [[nodiscard, gnu::always_inline]] bool front_whole(std::uint64_t most,
                                                       std::uint64_t& length) const noexcept {
        ask_for_second_line();
        const std::byte* const place = front_;
        length = load_frame_word(place) ^ head_;
        // No more than is left of the ring, and so less than any bit of tag or flags that differs.
        const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(place) + wire_bytes(0) + length;
        return length <= most && end <= reinterpret_cast<std::uintptr_t>(end_) &&
               load_frame_word(place + word_bytes + padded(length)) == trailer_word(tag_, length);
    }
    /// What is said of the frame in front, by one load of its header; more than `facts_mask`: none
    /// has come.
    [[nodiscard, gnu::always_inline]] std::uint64_t front_facts() const noexcept {
        return load_frame_word(front_) ^ head_;
    }
    /// True if a message of which front_facts() said that is whole, and there: one that lies side
    /// by side with the next one, or has the rest of its block to itself.
    [[nodiscard, gnu::always_inline]] bool is_message(std::uint64_t facts) const noexcept {
        const std::uint64_t length = header_length(facts);
        if (facts != length && (facts != frame_facts(frame_skip, length) || length == 0 ||
                                size_ < smallest_ring_of_blocks)) [[unlikely]]
            return false;
        return ends_with(front_, length, facts);
    }
    /// The payload of what front() has found.
    [[nodiscard]] const std::byte* payload() const noexcept { return front_ + word_bytes; }

    /// Looks for the next frame. `piece` is set when there is one, and stays valid until release.
    Look look(Piece& piece) noexcept {
        std::uint64_t header;
        if (!front(header)) return Look::nothing;
        const std::uint8_t flags = header_flags(header);
        const std::uint64_t length = header_length(header);
        extent_ = frame_bytes(length);
        is_apart_ = false;
        if (flags > frame_piece_flags) [[unlikely]]
            return pass(piece, flags, length);
        piece.payload = {payload(), length};
        piece.first = (flags & frame_continues) == 0;
        piece.last = (flags & frame_more) == 0;
        return Look::piece;
    }

    /// True, once, if looks have passed over the rest of the ring since the last call.
    [[nodiscard]] bool take_skipped() noexcept { return std::exchange(skipped_, false); }

    /// Passes over the piece that look() found last. The sender may write over it once it is told
    /// the new position.
    void release() noexcept { go_on(extent_); }
    /// As release(), of what front() found, of a payload of `length`.
    [[gnu::always_inline]] void release(std::uint64_t length) noexcept {
        go_on(frame_bytes(length));
    }
    /// … and of one that has the rest of its block to itself.
    void release_apart(std::uint64_t length) noexcept {
        go_on(frame_bytes_apart(position_, length));
    }
    /// What look() found last has the rest of its block to itself.
    [[nodiscard]] bool is_apart() const noexcept { return is_apart_; }

    // --- frames that come one in each receive of `slot` bytes (a power of two)

    /// The next frame will lie there, as far as is known; nothing of it is looked at but by
    /// arriving(), until place() says that it has come.
    void expect(const std::byte* at) noexcept { front_ = end_ = at; }
    /// It has come, of so many bytes. False: what has come is not a frame that a SEND may bring.
    [[nodiscard]] bool place(const std::byte* at, std::uint64_t bytes) noexcept {
        front_ = at;
        end_ = at + bytes;
        std::uint64_t header;
        if (!front(header)) return false;
        const std::uint8_t flags = header_flags(header);
        return flags <= frame_piece_flags || flags == frame_close;
    }
    /// After release(): a frame takes its whole slot.
    void pass_slot(std::uint64_t slot) noexcept {
        position_ = (position_ + slot - 1) & ~(slot - 1);
        tag_ = ring::frame_tag(position_, secret_);
        head_ = header_word(tag_, 0);
    }

    /// The line after that of the header travels with it, if a message takes two.
    [[gnu::always_inline]] void ask_for_second_line() const noexcept {
        awaited().ask_for_second_line();
    }

  private:
    /// True if the trailer of these facts lies where it belongs.
    [[nodiscard, gnu::always_inline]] bool ends_with(const std::byte* place, std::uint64_t length,
                                                     std::uint64_t facts) const noexcept {
        const std::byte* const trailer = place + word_bytes + padded(length);
        // A stale word may look like a header: then its length may be anything.
        if (trailer + word_bytes > end_) [[unlikely]]
            return false;
        return load_frame_word(trailer) == trailer_word(tag_, facts);
    }
    [[gnu::always_inline]] void go_on(std::uint64_t bytes) noexcept {
        position_ += bytes;
        front_ += bytes;
        if (front_ == end_) [[unlikely]]
            front_ = ring_;
        tag_ = ring::frame_tag(position_, secret_);
        head_ = header_word(tag_, 0);
    }
    /// A frame has arrived that is not a message, or takes more than its bytes.
    [[gnu::noinline]] Look pass(Piece& piece, std::uint8_t flags, std::uint64_t length) noexcept {
        if (flags == frame_close && length == 0) return Look::closed;
        if (flags == frame_skip && length != 0 && size_ >= smallest_ring_of_blocks) {
            extent_ = frame_bytes_apart(position_, length);
            is_apart_ = true;
            piece = {{payload(), length}};
            return Look::piece;
        }
        // A skip never comes at the beginning of the ring: so it does not lead round and round.
        if (flags != frame_skip || length != 0 || front_ == ring_) return Look::broken;
        go_on(static_cast<std::uint64_t>(end_ - front_));
        skipped_ = true;
        return look(piece);
    }

    const std::byte* ring_ = nullptr;
    std::uint64_t size_ = 0;
    const std::byte* end_ = nullptr;    ///< of the ring
    const std::byte* front_ = nullptr;  ///< where position_ lies in the ring
    std::uint64_t position_ = 0;
    std::uint64_t extent_ = 0;
    std::uint64_t secret_ = 0;
    std::uint64_t tag_ = 0;
    std::uint64_t head_ = 0;  ///< header of a whole message of no bytes
    bool skipped_ = false;
    bool is_apart_ = false;
};

}  // namespace millrace::message
