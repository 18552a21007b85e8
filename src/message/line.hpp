// A line: one end of a session's connection. Whole messages of any size in both directions, and
// nothing waits: what finds no room is kept until flush() finds some. Over rings (channel_core.hpp)
// large messages are announced, and READ by who receives them (rendezvous.hpp), if both ends have
// agreed to that. A message in pieces, which is what else there is, is put together here, piece by
// piece, and what waits is kept here; a wire (wire.hpp) does both by itself. Used by the server and
// the client.
//
// Rings are what is fast: their path is inlined, and asks one flag, that of its own rare cases,
// which a wire has set for good.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "assembly.hpp"
#include "channel_core.hpp"
#include "millrace/base/prefetch.hpp"
#include "millrace/base/shared_lines.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/message/held_bytes.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "rendezvous.hpp"
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
    /// `max_message_bytes`: the longest that is put together, its head included. `held`: whose the
    /// memory of long messages is; null: nobody's.
    Line(std::unique_ptr<Channel::Core> core, std::size_t max_message_bytes,
         const std::shared_ptr<HeldBytes>& held = nullptr) noexcept
        : core_{std::move(core)},
          takes_lines_{core_->stores && base::readers_take_lines()},
          assembled_{max_message_bytes, HeldPart{held}},
          held_{held} {}
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
    /// `takes`: this end has nothing to send that would have to wait for take_lines().
    [[gnu::always_inline]] void pass(bool takes = false) noexcept {
        if (in_place()) [[likely]] {
            if (takes && takes_lines_) take_lines();
            if (core_->pass_whole(taken_)) [[unlikely]]
                (void)core_->tell_peer();
        } else {
            pass_otherwise();
        }
    }

    /// What look() has called too large was so because this end holds too much.
    [[nodiscard]] bool exceeds_budget() const noexcept {
        return is_wire() ? wire_->exceeds_budget() : assembled_.exceeds_budget();
    }
    /// The message of which a part has come, if there is one; not one that is READ.
    [[nodiscard]] Begun begun() const noexcept {
        if (is_wire()) return wire_->begun();
        if (!assembling_) return {};
        return {assembled_.begun(), assembled_.bytes().size()};
    }

    /// What the place of the next frame says.
    enum class Front : std::uint8_t {
        nothing,  ///< no frame has come
        message,  ///< one that is whole, and lies in the ring
        other,    ///< something that look() is to see to
    };
    /// For who awaits a message of many lines, which may have the rest of its block to itself: it
    /// has the processor fetch all of these at once (once for each message), before what is at
    /// their end is looked at. What is found stays until pass_batch().
    [[nodiscard, gnu::always_inline]] Front look_at_front(
        std::span<const std::byte>& message) noexcept {
        if (receives_otherwise_ || core_->is_not_plain) [[unlikely]]
            return Front::other;
        const FrameReader& reader = core_->reader;
        const std::uint64_t facts = reader.front_facts();
        if (facts > facts_mask) return Front::nothing;
        const std::uint64_t length = header_length(facts);
        ask_for_lines(length);
        if (!reader.is_message(facts)) [[unlikely]]
            return Front::other;
        taken_ = facts == length ? length : nothing;
        apart_ = facts == length ? 0 : length;
        message = {reader.payload(), length};
        return Front::message;
    }
    /// Has the processor fetch the lines of the frame in front, whose payload has so many bytes.
    [[gnu::always_inline]] void ask_for_lines(std::uint64_t length) noexcept {
        const FrameReader& reader = core_->reader;
        if (!core_->stores || reader.position() == asked_at_) return;
        asked_at_ = reader.position();
        const std::byte* const second = reader.awaited().place + frame_alignment;
        const std::uint64_t behind = std::min(wire_bytes(length), most_asked_bytes);
        if (behind <= frame_alignment) return;
        if (takes_lines_) [[likely]] {
            ask_to_write(second, behind - frame_alignment);
        } else {
            for (std::uint64_t at = 0; at < behind - frame_alignment; at += frame_alignment) {
                __builtin_prefetch(second + at);
            }
        }
    }
    /// For who comes back to look: asks for the header in front; when that has had the time to
    /// come, for the lines behind it, if it is one.
    void ask_for_front() noexcept {
        const FrameReader& reader = core_->reader;
        if (receives_otherwise_ || core_->is_not_plain) return;
        if (std::exchange(header_asked_at_, reader.position()) != reader.position()) {
            __builtin_prefetch(reader.awaited().place);
            return;
        }
        const std::uint64_t facts = reader.front_facts();
        if (facts <= facts_mask) ask_for_lines(header_length(facts));
    }
    /// Has the processor fetch the lines that the next batch is likely to be laid in. Not beside
    /// those of one that is awaited and read first: a processor waits for some 20 lines at a time.
    [[gnu::always_inline]] void ask_for_place() const noexcept {
        if (is_wire() || !core_->stores) return;
        const std::uint64_t likely =
            std::min({std::uint64_t{last_batch_}, core_->writer.to_the_end(), most_asked_bytes});
        ask_to_write(core_->writer.payload(0).data() - word_bytes, likely);
    }
    /// pass() of what look_at_front(), or look(), has found, whose lines this end has all to itself
    /// then.
    [[gnu::always_inline]] void pass_batch() noexcept {
        const bool is_apart = !in_place();
        if (is_apart && apart_ == 0) return pass_otherwise();
        const std::size_t length = is_apart ? std::exchange(apart_, 0) : taken_;
        if (takes_lines_) take_all_lines(length);
        if (is_apart ? core_->pass_apart(length, 2) : core_->pass_whole(length, 2)) [[unlikely]]
            (void)core_->tell_peer();
    }

    // --- sending

    /// Room for a batch of `least` bytes or more, a multiple of 8, as much as there is, and a
    /// quarter of the ring at most; to be filled, and committed before anything else is sent. Where
    /// the ring ends before there is room for as much as the last one took, it begins anew: one
    /// that is cut in two is answered in two, and so are those behind it. Only of rings.
    base::Status claim_batch(std::size_t least, std::span<std::byte>& place) noexcept {
        if (sends_otherwise_) return base::Status::full;
        // It is posted when it is committed. Until then credits, wake-ups and READs may be.
        if (!core_->stores && core_->window.free() < slots_of_batch()) {
            if (core_->window.reap() != base::Status::ok) return core_->lost_or_closed();
            if (core_->window.free() < slots_of_batch()) return core_->found_full();
        }
        base::Status status = base::Status::full;
        const std::size_t longest =
            std::min<std::size_t>(core_->longest_here, core_->writer.size() / 4);
        if (least < last_batch_ && last_batch_ <= longest) status = core_->reserve(last_batch_);
        if (status == base::Status::full) status = core_->reserve(least);
        if (status != base::Status::ok) return status;
        constexpr std::size_t in_words = ~(word_bytes - 1);
        const std::size_t here = std::min<std::size_t>(longest, core_->room - 2 * word_bytes);
        place = core_->writer.payload(std::max(least, here & in_words));
        return status;
    }
    /// Slots of the send window that are free when a batch is begun.
    [[nodiscard]] std::uint32_t slots_of_batch() const noexcept {
        return std::min<std::uint32_t>(16, core_->window.slots() / 4);
    }
    base::Status commit_batch(std::size_t size) noexcept {
        last_batch_ = size;
        // A short one would rather have few lines than lines that nobody fetches too early.
        constexpr std::size_t least_apart = 4 * frame_alignment;
        if (size >= least_apart && core_->stores && !sends_otherwise_ &&
            core_->writer.size() >= smallest_ring_of_blocks) {
            return core_->commit_apart_if_roomy(size);
        }
        return commit(size);
    }
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
        return send_otherwise(head, payload);
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
    /// … and of those that the peer is to READ.
    [[nodiscard]] std::size_t owed_bytes() const noexcept {
        return waiting_bytes() + (large_ == nullptr ? 0 : large_->staged_bytes());
    }
    /// Bytes of messages that were kept, or announced, and are no more, all in all.
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept {
        if (is_wire()) return wire_->flushed_bytes();
        return flushed_bytes_ + (large_ == nullptr ? 0 : large_->taken_bytes());
    }

    // --- large messages

    /// Who announces more than `max_bytes` of large messages.
    enum class Excess : std::uint8_t {
        in_pieces,  ///< sends the next one in pieces
        waits,      ///< until the peer has READ some, which nobody rings for: it looks by a clock
    };
    /// Both ends have agreed to announce what is longer than `setting` says. Only of rings, and
    /// before anything large is sent.
    void agree(const LargeMessages& setting, Excess excess) noexcept;
    [[nodiscard]] bool has_agreed() const noexcept { return agreed_.allowed; }
    /// Room for a payload that claim() does not take, to be filled and committed. False: send() it.
    [[nodiscard]] bool claim_large(std::size_t size, std::span<std::byte>& place);
    base::Status commit_large(const SessionHead& head, std::size_t size);
    /// The peer may READ what was announced to it still.
    [[nodiscard]] bool has_announced() const noexcept {
        return large_ != nullptr && large_->has_announced();
    }
    /// Messages that were announced since it was asked last.
    [[nodiscard]] std::uint64_t count_announced() noexcept {
        return large_ == nullptr ? 0 : large_->count_announced();
    }
    /// As flush(), and `full` also while something is announced.
    base::Status flush_all() noexcept;
    /// Which messages are announced, in a line. Only of rings.
    [[nodiscard]] std::string explain_large() const;
    /// Gives back memory that was not used for long.
    void tidy() noexcept;
    void tidy_now_and_then() noexcept {
        constexpr std::uint32_t looks_between = 63;
        if ((++looks_since_tidy_ & looks_between) == 0) tidy();
    }
    [[nodiscard]] bool keeps_memory() const noexcept {
        return large_ != nullptr && (large_->has_announced() || large_->keeps_memory());
    }

    /// The payload of a message …_by_read. None: nobody may send it.
    [[nodiscard]] std::optional<Announcement> announced(
        std::span<const std::byte> payload) const noexcept {
        return has_agreed() ? parse_announcement(payload) : std::nullopt;
    }
    /// It is to be READ: then look() finds the message, with `head` as that of one in the ring.
    /// False: the peer announces more than it may.
    [[nodiscard]] bool fetch(const SessionHeader& header, const Announcement& from);
    /// … or not.
    [[nodiscard]] bool decline();
    /// As Rendezvous::give_up, and others.
    bool give_up(std::uint64_t id) noexcept { return large_ != nullptr && large_->give_up(id); }
    [[nodiscard]] bool is_fetching(std::uint64_t id) const noexcept {
        return large_ != nullptr && large_->is_fetching(id);
    }
    [[nodiscard]] bool is_fetching() const noexcept {
        return large_ != nullptr && large_->is_busy();
    }
    /// … and it was not declined.
    [[nodiscard]] bool wants_fetched() const noexcept {
        return large_ != nullptr && large_->wants_some();
    }
    /// Another number, once some more of it has come.
    [[nodiscard]] std::uint64_t fetch_progress() const noexcept {
        return large_ == nullptr ? 0 : large_->progress();
    }
    /// Some of it is whole, and look() will find it.
    [[nodiscard]] bool has_fetched() const noexcept {
        return large_ != nullptr && large_->has_done();
    }
    /// A look would go on with what is READ.
    [[nodiscard]] bool fetch_is_due() noexcept { return large_ != nullptr && large_->is_due(); }
    /// What look() found came so. `given_up`, and `no_memory` (which look() calls `too_large`):
    /// only its head did.
    using Arrival = Rendezvous::Arrival;
    [[nodiscard]] Arrival arrival() const noexcept { return arrived_; }
    /// A look asks for nothing but the place of the next frame.
    [[nodiscard]] bool receives_here() const noexcept { return !receives_otherwise_; }

    // --- waiting, of a client

    /// Another number, once something has come or goes on, be it a piece of a message.
    [[nodiscard]] std::uint64_t progress() const noexcept {
        return is_wire() ? wire_->progress() : core_->activity() + fetch_progress();
    }
    /// Waits until `ready()`, which looks or flushes, has found something.
    template <class Ready>
    base::Status wait(Ready&& ready, const base::Deadline& deadline,
                      const base::WaitPolicy& policy) {
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
    /// Of one message, whatever its header says.
    static constexpr std::uint64_t most_asked_bytes = frame_block;

    [[gnu::always_inline]] base::Status send_here(const SessionHead& head,
                                                  std::span<const std::byte> payload) noexcept {
        const base::Status status = core_->reserve(sizeof head + payload.size());
        if (status != base::Status::ok) [[unlikely]]
            return status;
        return core_->send(head, payload);
    }
    [[nodiscard]] bool in_place() const noexcept { return taken_ != nothing; }
    /// What was found lies in place, and is passed otherwise.
    void note_apart(std::size_t length) noexcept {
        taken_ = nothing;
        apart_ = length;
    }
    /// A whole message that a look at pieces has found.
    void note_found(const Piece& piece) noexcept {
        if (core_->reader.is_apart()) {
            note_apart(piece.payload.size());
        } else {
            taken_ = piece.payload.size();
        }
    }
    /// Stores to the first and the last line of a message, which are all that a short one has,
    /// before its space returns: so they are this end's alone, and the peer's stores to them, one
    /// lap later, do not wait for one line after the other.
    [[gnu::always_inline]] void take_lines() const noexcept {
        std::byte* const payload = const_cast<std::byte*>(core_->reader.payload());
        ring::store_word(payload - word_bytes, 0);
        ring::store_word(payload + padded(taken_), 0);
    }
    [[gnu::always_inline]] static void ask_to_write(const std::byte* begin,
                                                    std::uint64_t bytes) noexcept {
        const std::uint64_t lines = (bytes + frame_alignment - 1) / frame_alignment;
#pragma GCC unroll 4
        for (std::uint64_t line = 0; line != lines; ++line) {
            base::fetch_to_write(begin + line * frame_alignment);
        }
    }
    void take_all_lines(std::size_t length) const noexcept {
        std::byte* const frame = const_cast<std::byte*>(core_->reader.payload()) - word_bytes;
#pragma GCC unroll 4
        for (std::size_t at = 0; at < wire_bytes(length); at += frame_alignment) {
            ring::store_word(frame + at, 0);
        }
    }
    [[gnu::noinline, gnu::cold]] base::Status look_otherwise(std::span<const std::byte>& message);
    base::Status look_at_fetched(std::span<const std::byte>& message);
    base::Status look_at_wire(std::span<const std::byte>& message);
    [[gnu::noinline]] base::Status look_in_pieces(std::span<const std::byte>& message);
    base::Status put_together(Piece piece, std::span<const std::byte>& message);
    [[gnu::noinline]] void pass_otherwise() noexcept;
    [[gnu::noinline]] base::Status claim_otherwise(std::size_t size, std::span<std::byte>& place);
    [[gnu::noinline]] base::Status commit_otherwise(std::size_t size) noexcept;
    [[gnu::noinline]] base::Status try_send_otherwise(const SessionHead& head,
                                                      std::span<const std::byte> payload);
    [[gnu::noinline]] base::Status send_otherwise(const SessionHead& head,
                                                  std::span<const std::byte> payload);
    base::Status keep(const SessionHead& head, std::span<const std::byte> payload);
    [[nodiscard]] bool announces() const noexcept {
        return has_agreed() && agreed_.longer_than != LargeMessages::never;
    }
    /// It is so long that it is announced, where there is memory for that.
    [[nodiscard]] bool is_to_be_read(const SessionHead& head, std::size_t bytes) const noexcept;
    [[nodiscard]] bool is_to_be_read(std::span<const std::byte> message) const noexcept;
    /// Of what waits, the first message becomes its announcement, if there is memory for it.
    /// False: that will be, once the peer has READ some of what was announced to it.
    [[nodiscard]] bool announce_front() noexcept;
    [[nodiscard]] Rendezvous& large();
    /// What else a look has to see to.
    void note_otherwise() noexcept {
        receives_otherwise_ = is_assembled_ || (large_ != nullptr && large_->is_busy());
    }
    void wait_until_taken(const base::Deadline& deadline) noexcept;
    void end_rest() noexcept;
    void rest() noexcept;
    [[nodiscard]] std::unique_ptr<connect::Readiness>& readiness() noexcept {
        return is_wire() ? wire_readiness_ : core_->readiness;
    }
    [[nodiscard]] base::StandingParker& parker() noexcept {
        return is_wire() ? wire_->parker() : *core_->sleeper;
    }

    LargeMessages agreed_{.allowed = false};
    Excess excess_ = Excess::in_pieces;
    std::unique_ptr<Rendezvous> large_;  ///< made when it is needed; outlives the queue pair
    Rendezvous::Arrival arrived_ = Rendezvous::Arrival::none;
    std::uint32_t looks_since_tidy_ = 0;
    std::unique_ptr<Channel::Core> core_;
    std::uint64_t asked_at_ = ~std::uint64_t{0};  ///< of the message whose lines were asked for
    std::uint64_t header_asked_at_ = ~std::uint64_t{0};  ///< … whose header was
    std::size_t last_batch_ = 0;                         ///< bytes of the last one that was sent
    std::size_t taken_ = nothing;  ///< bytes of the message that look() found in place
    std::size_t apart_ = 0;        ///< the same, if that has the rest of its block to itself
    bool takes_lines_ = false;     ///< the peer stores, and this is a processor where that helps it
    /// `assembled_` is handed out until pass(), or something is to be READ, or it is a wire.
    bool receives_otherwise_ = false;
    bool sends_otherwise_ = false;  ///< some messages wait, or it is a wire

    Assembly assembled_{0};
    std::shared_ptr<HeldBytes> held_;  ///< of what is READ, too
    bool assembling_ = false;
    bool is_assembled_ = false;  ///< it is handed out

    std::list<std::vector<std::byte>> waiting_;  ///< empty and moved without memory
    std::size_t begun_ = 0;                      ///< bytes of the first one that were sent
    std::size_t waiting_bytes_ = 0;
    std::uint64_t flushed_bytes_ = 0;

    std::unique_ptr<Wire> wire_;
    std::unique_ptr<connect::Readiness> wire_readiness_;  ///< if a descriptor was asked for
};

}  // namespace millrace::message
