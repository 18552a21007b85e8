// Messages in a stream of bytes, as they travel over a socket: cut out of what was received, and
// laid side by side to be sent. Pure: bytes in, bytes out. Used by socket_lane.hpp, which reads and
// writes the socket.
//
//   offset 0         4        8                   8 + bytes
//   | bytes (u32)    | kind   | payload …         | zeroes up to a multiple of 8 |
//
// Integers are little-endian. So every payload is aligned to 8 in memory, as in a ring. Kinds:
//
//   message   a message of the session (session.hpp)
//   goodbye   the last frame of its sender: how many bytes of the other's frames it has passed, so
//             that the other knows whether all was read (8 bytes)
//
// A stream may be cut anywhere. Its sender may be hostile: a length is believed only as far as its
// bytes have come, so memory is taken for what was received, twice as much at most, and never more
// than for one message of the longest allowed; the payload of a longer one is passed over as it
// comes. What is no frame ends the stream.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

struct SocketFrame {
    enum class Kind : std::uint32_t {
        message = 0x4753'4d01,  // "\1MSG"
        goodbye = 0x4559'4201,  // "\1BYE"
    };
    std::uint32_t bytes = 0;  ///< of payload
    Kind kind = Kind::message;

    static constexpr std::size_t alignment = 8;
    /// Of the whole frame.
    [[nodiscard]] static constexpr std::uint64_t size_of(std::uint64_t payload) noexcept {
        return sizeof(std::uint64_t) + (payload + alignment - 1) / alignment * alignment;
    }
};
static_assert(sizeof(SocketFrame) == 8);
static_assert(std::endian::native == std::endian::little, "as everything that Millrace sends");

/// Memory for bytes that come in at its end and go out at its beginning. Aligned to 8, and so is
/// what was, when bytes are moved.
class ByteQueue {
  public:
    static constexpr std::size_t smallest = std::size_t{4} << 10;
    /// Beyond that, memory is given back as soon as the queue is empty.
    static constexpr std::size_t usual = std::size_t{64} << 10;

    [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
    [[nodiscard]] std::size_t size() const noexcept { return end_ - begin_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::byte* begin() noexcept { return memory_.get() + begin_; }
    [[nodiscard]] const std::byte* begin() const noexcept { return memory_.get() + begin_; }
    [[nodiscard]] std::byte* end() noexcept { return memory_.get() + end_; }
    /// After its end, without asking for more memory.
    [[nodiscard]] std::size_t room() const noexcept {
        return capacity_ > end_ ? capacity_ - end_ : 0;
    }

    /// Makes room() at least `bytes`. Where that takes more memory, it is for `more` bytes, if
    /// these are more: what is moved then has to be worth it.
    void make_room(std::size_t bytes, std::size_t more = 0);
    /// `bytes` of the room are filled.
    void filled(std::size_t bytes) noexcept { end_ += bytes; }
    void drop(std::size_t bytes) noexcept {
        begin_ += bytes;
        if (begin_ == end_) became_empty();
    }
    /// The memory that make_room() would have.
    [[nodiscard]] std::size_t capacity_for(std::size_t bytes, std::size_t more) const noexcept;
    /// Gives half of its memory back. Only empty.
    void shrink() noexcept;

  private:
    void became_empty() noexcept;

    std::unique_ptr<std::byte[]> memory_;
    std::size_t capacity_ = 0;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

/// The receiving half. One thread. Nothing throws but bad_alloc.
class SocketInbox {
  public:
    enum class Found : std::uint8_t {
        nothing,    ///< no whole frame is here
        message,    ///< … in front, until pass()
        too_large,  ///< a longer one than allowed: its session head, until pass()
        goodbye,    ///< nothing comes after it
        garbage,    ///< so is what is here
    };

    /// `max_message_bytes`: head included. `part`: whose the memory of long messages is.
    explicit SocketInbox(std::size_t max_message_bytes, HeldPart part = HeldPart{}) noexcept
        : max_message_bytes_{max_message_bytes}, part_{std::move(part)} {}

    /// Where the next bytes go, at least one.
    [[nodiscard]] std::span<std::byte> room();
    /// That many are there.
    void took(std::size_t bytes) noexcept;

    [[nodiscard]] Found front(std::span<const std::byte>& message) const noexcept;
    /// Of what front() has found: a message, or one that is too large.
    void pass() noexcept;
    [[nodiscard]] bool has_front() const noexcept {
        std::span<const std::byte> message;
        return front(message) != Found::nothing;
    }
    /// It ends between two frames, not within one.
    [[nodiscard]] bool is_between_frames() const noexcept { return bytes_.empty() && skip_ == 0; }
    /// Bytes of frames that were passed, all in all.
    [[nodiscard]] std::uint64_t passed() const noexcept { return passed_; }
    /// The message in front is too large because there is no room for it.
    [[nodiscard]] bool exceeds_budget() const noexcept { return is_refused_; }
    /// Bytes of a frame in front that is not whole, and is not passed over.
    [[nodiscard]] std::size_t begun_bytes() const noexcept {
        return skip_ != 0 || has_front() ? 0 : bytes_.size();
    }
    /// What the peer's goodbye says. Only if front() finds one.
    [[nodiscard]] std::uint64_t passed_by_peer() const noexcept;
    [[nodiscard]] std::size_t capacity() const noexcept { return bytes_.capacity(); }

  private:
    /// Gulps in a row that needed less than a quarter of the memory, before half of it goes.
    static constexpr std::uint32_t small_gulps = 64;

    void note() noexcept {
        part_.set_anyhow(bytes_.capacity() > ByteQueue::usual ? bytes_.capacity() : 0);
    }

    ByteQueue bytes_;
    std::size_t max_message_bytes_;
    HeldPart part_;
    bool is_refused_ = false;  ///< there is no room for the message in front
    std::uint64_t skip_ = 0;   ///< bytes still to come of a message that was too large
    std::uint64_t passed_ = 0;
    std::uint32_t small_gulps_ = 0;
    bool was_filled_ = false;  ///< the last gulp took all the room
};

/// The sending half. One thread. Nothing throws but bad_alloc.
class SocketOutbox {
  public:
    /// Room for a message of `size` bytes; the same again, until it is committed.
    [[nodiscard]] std::span<std::byte> claim(std::size_t size);
    /// At most as many as were claimed.
    void commit(std::size_t size) noexcept;
    void append(const SessionHead& head, std::span<const std::byte> payload);
    /// `passed`: SocketInbox::passed.
    void append_goodbye(std::uint64_t passed);

    [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
    [[nodiscard]] std::span<const std::byte> pending() const noexcept {
        return {bytes_.begin(), bytes_.size()};
    }
    void sent(std::size_t bytes) noexcept { bytes_.drop(bytes); }
    /// Bytes of messages' frames, all in all.
    [[nodiscard]] std::uint64_t laid() const noexcept { return laid_; }

  private:
    void lay(SocketFrame::Kind kind, std::size_t size) noexcept;

    ByteQueue bytes_;
    std::uint64_t laid_ = 0;
};

}  // namespace millrace::message
