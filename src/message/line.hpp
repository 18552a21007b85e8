// A line: one end of a session's connection. Whole messages of any size in both directions, and
// nothing waits: what finds no room is kept until flush() finds some. Over rings (channel_core.hpp)
// a message in pieces is put together here, piece by piece, and what waits is kept here; a wire
// (wire.hpp) does both by itself. Used by the server and the client.
//
// Rings are what is fast: their path is inlined, and asks one flag, that of its own rare cases,
// which a wire has set for good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "channel_core.hpp"
#include "millrace/base/sole_use.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/message/session.hpp"
#include "wire.hpp"

namespace millrace::message {

/// Header and payload of a message, as session.hpp's parse() of it, where each instruction counts.
[[nodiscard, gnu::always_inline]] inline bool parse_here(
    std::span<const std::byte> message, SessionHeader& header,
    std::span<const std::byte>& payload) noexcept {
    if (message.size() < session_head_bytes) [[unlikely]]
        return false;
    SessionHead head;
    std::memcpy(&head, message.data(), sizeof head);
    payload = message.subspan(session_head_bytes);
    return parse(head, header);
}

/// The same of a request that says nothing of an outcome, as none does; false: of anything else.
[[nodiscard, gnu::always_inline]] inline bool parse_request(
    std::span<const std::byte> message, SessionHeader& header,
    std::span<const std::byte>& payload) noexcept {
    if (message.size() < session_head_bytes) [[unlikely]]
        return false;
    SessionHead head;
    std::memcpy(&head, message.data(), sizeof head);
    payload = message.subspan(session_head_bytes);
    header = {.id = head[0] & largest_request_id,
              .procedure = static_cast<std::uint16_t>(head[0] >> 48),
              .kind = SessionKind::request,
              .behind = static_cast<std::uint16_t>(head[1] >> 16),
              .limit_us = static_cast<std::uint32_t>(head[1] >> 32)};
    return static_cast<std::uint16_t>(head[1]) == static_cast<std::uint16_t>(SessionKind::request);
}

/// One thread. Allocates where a message is larger than the ring, or has to be kept.
class Line {
  public:
    /// `max_message_bytes`: the longest that is put together, its head included.
    Line(std::unique_ptr<Channel::Core> core, std::size_t max_message_bytes) noexcept
        : core_{std::move(core)}, max_message_bytes_{max_message_bytes} {}
    explicit Line(std::unique_ptr<Wire> wire) noexcept
        : receives_otherwise_{true}, sends_otherwise_{true}, wire_{std::move(wire)} {}

    [[nodiscard]] bool is_wire() const noexcept { return wire_ != nullptr; }
    /// Only of rings.
    [[nodiscard]] Channel::Core& core() noexcept { return *core_; }
    [[nodiscard]] const Channel::Core& core() const noexcept { return *core_; }
    /// Only of a wire.
    [[nodiscard]] Wire& wire() noexcept { return *wire_; }

    // --- receiving

    /// `ok`: the next message is whole, and stays until pass(). `too_large`: a longer one than
    /// allowed has begun; `message` is what its first piece brought, until pass(), and the rest
    /// will be passed over. Others as Channel::try_receive.
    [[gnu::always_inline]] base::Status look(std::span<const std::byte>& message) {
        if (finds_whole(message)) [[likely]]
            return base::Status::ok;
        return receives_otherwise_ ? look_otherwise(message) : look_in_pieces(message);
    }
    /// The most frequent case of look(): true if the next message lies whole in a ring.
    [[nodiscard, gnu::always_inline]] bool finds_whole(
        std::span<const std::byte>& message) noexcept {
        std::uint64_t length = 0;
        if (receives_otherwise_ || !core_->finds_whole(largest_ring, length)) [[unlikely]]
            return false;
        taken_ = length;
        message = {core_->reader.payload(), length};
        return true;
    }
    [[gnu::always_inline]] void pass() noexcept {
        if (in_place()) [[likely]] {
            if (core_->pass_whole(taken_)) [[unlikely]]
                (void)core_->tell_peer();
        } else {
            pass_otherwise();
        }
    }

    // --- sending

    /// Room for a message of `size` bytes where the peer will read it, or where it is sent from,
    /// its head included; to be filled and committed. Not ok: it cannot be laid there (now), or the
    /// connection has ended.
    [[gnu::always_inline]] base::Status claim(std::size_t size, std::span<std::byte>& place) {
        if (sends_otherwise_) [[unlikely]]
            return claim_otherwise(size, place);
        return core_->claim(size, place);
    }
    base::Status commit(std::size_t size) noexcept {
        if (sends_otherwise_) [[unlikely]]
            return commit_otherwise(size);
        return core_->commit(size, frame_whole);
    }

    /// Sends a copy, if there is room and nothing waits. Answers as Channel::try_send.
    [[gnu::always_inline]] base::Status try_send(const SessionHead& head,
                                                 std::span<const std::byte> payload) {
        return sends_otherwise_ ? try_send_otherwise(head, payload) : send_here(head, payload);
    }
    /// The most frequent case of try_send(), of rings where nothing waits; not ok: try the others.
    [[gnu::always_inline]] base::Status try_send_here(const SessionHead& head,
                                                      std::span<const std::byte> payload) noexcept {
        return sends_otherwise_ ? base::Status::full : send_here(head, payload);
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
    /// Of rings where nothing waits.
    [[nodiscard]] bool sends_here() const noexcept { return !sends_otherwise_; }
    [[nodiscard]] bool is_clear() const noexcept {
        return !sends_otherwise_ || (is_wire() && wire_->waiting_bytes() == 0);
    }
    /// Of messages that are kept.
    [[nodiscard]] std::size_t waiting_bytes() const noexcept {
        return is_wire() ? wire_->waiting_bytes() : waiting_bytes_;
    }
    /// Bytes of messages that were kept and are no more, all in all.
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept {
        return is_wire() ? wire_->flushed_bytes() : flushed_bytes_;
    }

    // --- waiting, of a client

    /// Waits until `ready()`, which looks or flushes, has found something.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
        if (ready()) return base::Status::ok;
        const base::SoleCall call{use_, "wait with a message client", link().peer_name()};
        end_rest();
        const connect::HeldReadiness held{readiness()};
        const base::Status status = base::wait_until(ready, deadline, policy, parker());
        if (core_ != nullptr) {
            core_->waiting_for_room = false;
            core_->falls_asleep = false;
        }
        return status;
    }
    /// As Client::descriptor.
    [[nodiscard]] int descriptor(const base::WaitPolicy& policy);

    // --- the conversation

    /// The peer has closed, and who does waits to hear that all was read.
    void answer_goodbye() noexcept;
    /// Its first half, that does not wait.
    void begin_close() noexcept {
        if (is_wire()) {
            wire_->begin_close();
        } else {
            (void)core_->send_close();
        }
    }
    /// As Channel::close. Ends the line.
    base::Status close(const base::Deadline& deadline, std::string& why_failed);
    [[nodiscard]] connect::Link& link() noexcept { return is_wire() ? wire_->link() : core_->link; }
    [[nodiscard]] std::string failure() const {
        return is_wire() ? wire_->failure() : core_->why_failed;
    }
    [[nodiscard]] std::string explain() const {
        return is_wire() ? wire_->explain() : core_->explain();
    }

  private:
    static constexpr std::size_t nothing = ~std::size_t{0};
    /// Pieces of one message that one look takes, so that others are not kept waiting.
    static constexpr int pieces_of_a_look = 8;

    [[gnu::always_inline]] base::Status send_here(const SessionHead& head,
                                                  std::span<const std::byte> payload) noexcept {
        const base::Status status = core_->reserve(sizeof head + payload.size());
        if (status != base::Status::ok) [[unlikely]]
            return status;
        return core_->send(head, payload);
    }
    [[nodiscard]] bool in_place() const noexcept { return taken_ != nothing; }
    [[gnu::noinline, gnu::cold]] base::Status look_otherwise(std::span<const std::byte>& message);
    [[gnu::noinline]] base::Status look_in_pieces(std::span<const std::byte>& message);
    base::Status put_together(Piece piece, std::span<const std::byte>& message);
    [[gnu::noinline]] void pass_otherwise() noexcept;
    [[gnu::noinline]] base::Status claim_otherwise(std::size_t size, std::span<std::byte>& place);
    [[gnu::noinline]] base::Status commit_otherwise(std::size_t size) noexcept;
    [[gnu::noinline]] base::Status try_send_otherwise(const SessionHead& head,
                                                      std::span<const std::byte> payload);
    [[gnu::noinline]] base::Status keep(const SessionHead& head,
                                        std::span<const std::byte> payload);
    void end_rest() noexcept;
    void rest() noexcept;
    [[nodiscard]] std::unique_ptr<connect::Readiness>& readiness() noexcept {
        return is_wire() ? wire_readiness_ : core_->readiness;
    }
    [[nodiscard]] base::StandingParker& parker() noexcept {
        return is_wire() ? wire_->parker() : *core_->sleeper;
    }

    std::unique_ptr<Channel::Core> core_;
    std::size_t taken_ = nothing;  ///< bytes of the message that look() found in place
    std::size_t max_message_bytes_ = 0;
    bool receives_otherwise_ = false;  ///< `assembled_` is handed out until pass(), or it is a wire
    bool sends_otherwise_ = false;     ///< some messages wait, or it is a wire

    base::SoleUse use_;  ///< by a wait or close() of a client that is under way

    std::vector<std::byte> assembled_;
    bool assembling_ = false;

    std::deque<std::vector<std::byte>> waiting_;
    std::size_t begun_ = 0;  ///< bytes of the first one that were sent
    std::size_t waiting_bytes_ = 0;
    std::uint64_t flushed_bytes_ = 0;

    std::unique_ptr<Wire> wire_;
    std::unique_ptr<connect::Readiness> wire_readiness_;  ///< if a descriptor was asked for
    std::uint64_t wire_activity_ = 0;                     ///< messages, both ways
};

}  // namespace millrace::message
