// A line: one end of a session's channel. Whole messages of any size in both directions, and
// nothing waits: what finds no room in the peer's ring is kept here until flush() finds some, and a
// message in pieces is put together here, piece by piece. Used by the server and the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "channel_core.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// One thread. Allocates where a message is larger than the ring, or has to be kept.
class Line {
  public:
    /// `max_message_bytes`: the longest that is put together, its head included.
    Line(std::unique_ptr<Channel::Core> core, std::size_t max_message_bytes) noexcept
        : core_{std::move(core)}, max_message_bytes_{max_message_bytes} {}

    [[nodiscard]] Channel::Core& core() noexcept { return *core_; }
    [[nodiscard]] const Channel::Core& core() const noexcept { return *core_; }
    /// Ends the line, whose channel goes on.
    [[nodiscard]] std::unique_ptr<Channel::Core> take_core() noexcept { return std::move(core_); }

    // --- receiving

    /// `ok`: the next message is whole, and stays until pass(). `too_large`: a longer one than
    /// allowed has begun; `message` is what its first piece brought, until pass(), and the rest
    /// will be passed over. Others as Channel::try_receive.
    [[gnu::always_inline]] base::Status look(std::span<const std::byte>& message) {
        if (whole_) [[unlikely]] {
            message = assembled_;
            return base::Status::ok;
        }
        Piece piece;
        const base::Status status = core_->look(piece);
        if (status != base::Status::ok) return status;
        if (piece.first && piece.last) [[likely]] {
            taken_ = piece.payload.size();
            message = piece.payload;
            return status;
        }
        return put_together(piece, message);
    }
    [[gnu::always_inline]] void pass() noexcept {
        if (in_place()) [[likely]] {
            core_->release(taken_, true);
        } else {
            pass_assembled();
        }
    }

    // --- sending

    /// Room for a message of `size` bytes where the peer will read it, its head included; to be
    /// filled and committed. Not ok: it cannot be laid there (now), or the channel has ended.
    [[gnu::always_inline]] base::Status claim(std::size_t size,
                                              std::span<std::byte>& place) noexcept {
        if (!waiting_.empty()) [[unlikely]]
            return base::Status::full;
        return core_->claim(size, place);
    }
    base::Status commit(std::size_t size) noexcept { return core_->commit(size, frame_whole); }

    /// Sends a copy, if there is room and nothing waits. Answers as Channel::try_send.
    [[gnu::always_inline]] base::Status try_send(const SessionHead& head,
                                                 std::span<const std::byte> payload) noexcept {
        if (!waiting_.empty()) [[unlikely]]
            return base::Status::full;
        const base::Status status = core_->reserve(sizeof head + payload.size());
        if (status != base::Status::ok) [[unlikely]]
            return status;
        return core_->send(head, payload);
    }
    /// Sends a copy, or keeps it. `ok`, `closed` or `peer_lost`.
    base::Status send(const SessionHead& head, std::span<const std::byte> payload) {
        const base::Status status = try_send(head, payload);
        if (status != base::Status::full && status != base::Status::too_large) [[likely]]
            return status;
        return keep(head, payload);
    }
    /// Sends what is kept as far as there is room. `ok`: nothing is left; `full`; `closed`;
    /// `peer_lost`.
    base::Status flush() noexcept;
    [[nodiscard]] bool is_clear() const noexcept { return waiting_.empty(); }
    /// Of messages that are kept.
    [[nodiscard]] std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }
    /// Bytes of messages that were given to flush(), all in all.
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept { return flushed_bytes_; }

  private:
    static constexpr std::size_t nothing = ~std::size_t{0};
    /// Pieces of one message that one look takes, so that others are not kept waiting.
    static constexpr int pieces_of_a_look = 8;

    [[nodiscard]] bool in_place() const noexcept { return taken_ != nothing; }
    [[gnu::noinline]] base::Status put_together(Piece piece, std::span<const std::byte>& message);
    [[gnu::noinline]] void pass_assembled() noexcept;
    [[gnu::noinline]] base::Status keep(const SessionHead& head,
                                        std::span<const std::byte> payload);

    std::unique_ptr<Channel::Core> core_;
    std::size_t taken_ = nothing;  ///< bytes of the message that look() found in place
    std::size_t max_message_bytes_;

    std::vector<std::byte> assembled_;
    bool assembling_ = false;
    bool whole_ = false;  ///< `assembled_` is handed out until pass()

    std::deque<std::vector<std::byte>> waiting_;
    std::size_t begun_ = 0;  ///< bytes of the first one that were sent
    std::size_t waiting_bytes_ = 0;
    std::uint64_t flushed_bytes_ = 0;
};

}  // namespace millrace::message
