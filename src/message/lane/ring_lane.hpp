// A lane of rings: both directions of a channel (channel_core.hpp), by store or by posting, by
// WRITE or by SEND. Large messages are announced, and READ by the end that receives them
// (rendezvous.hpp), if both ends have agreed to that. A message in pieces, which is what else there
// is, is put together here, piece by piece, and what waits is kept here. Used by the server and the
// client.
//
// Rings are what is fast: their short ways are inlined for callers that have this type, and ask two
// flags, that something else is to be looked at, and that something is kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "assembly.hpp"
#include "channel/channel_core.hpp"
#include "lane/cache_lines.hpp"
#include "lane/kept_messages.hpp"
#include "lane/lane.hpp"

namespace millrace::message {

/// Header and payload of a request, whose outcome is not looked at. False: it is no request.
[[nodiscard, gnu::always_inline]] inline bool parse_request(
    std::span<const std::byte> message, SessionHeader& header,
    std::span<const std::byte>& payload) noexcept {
    SessionHead head;
    if (!cut_head(message, head, payload)) [[unlikely]]
        return false;
    header = {.id = head[0] & largest_request_id,
              .procedure = static_cast<std::uint16_t>(head[0] >> 48),
              .kind = SessionKind::request,
              .behind = static_cast<std::uint16_t>(head[1] >> 16),
              .limit_us = static_cast<std::uint32_t>(head[1] >> 32)};
    return static_cast<std::uint16_t>(head[1]) == static_cast<std::uint16_t>(SessionKind::request);
}

/// Allocates where a message is larger than the ring, or has to be kept.
class RingLane final : public Lane {
  public:
    /// `max_message_bytes`: the longest that is put together, its head included. `held`: whose the
    /// memory of long messages is; null: nobody's.
    RingLane(std::unique_ptr<Channel::Core> core, std::size_t max_message_bytes,
             const std::shared_ptr<HeldBytes>& held = nullptr) noexcept
        : core_{std::move(core)},
          lines_{core_->stores},
          assembled_{max_message_bytes, HeldPart{held}},
          held_{held} {}

    // --- receiving

    [[gnu::always_inline]] base::Status look(std::span<const std::byte>& message) override {
        if (finds_whole(message)) [[likely]]
            return base::Status::ok;
        return has_other_work_ ? look_at_other(message) : look_in_pieces(message);
    }
    /// The most frequent case of look(): true if the next message lies whole in the ring.
    [[nodiscard, gnu::always_inline]] bool finds_whole(
        std::span<const std::byte>& message) noexcept {
        std::uint64_t length = 0;
        if (has_other_work_ || !core_->finds_whole(largest_ring, length)) [[unlikely]]
            return false;
        taken_ = length;
        message = {core_->reader.payload(), length};
        return true;
    }
    [[gnu::always_inline]] void pass() noexcept override {
        if (taken_ == nothing) [[unlikely]]
            return pass_other();
        if (core_->pass_whole(taken_)) [[unlikely]]
            (void)core_->tell_peer();
    }
    /// The same for an end that has nothing to send that would have to wait for some stores.
    [[gnu::always_inline]] void pass_at_leisure() noexcept {
        if (taken_ != nothing) [[likely]]
            lines_.take_ends(core_->reader, taken_);
        pass();
    }
    /// The same of a message of several requests or answers: an answer to it, which says how far
    /// this end has read (say_position), is likely to follow soon.
    [[gnu::always_inline]] void pass_batch() noexcept {
        const bool is_apart = taken_ == nothing;
        if (is_apart && apart_ == 0) return pass_other();
        const std::size_t length = is_apart ? std::exchange(apart_, 0) : taken_;
        lines_.take_all(core_->reader, length);
        if (is_apart ? core_->pass_apart(length, 2) : core_->pass_whole(length, 2)) [[unlikely]]
            (void)core_->tell_peer();
    }

    [[nodiscard]] bool exceeds_budget() const noexcept override {
        return assembled_.exceeds_budget();
    }
    [[nodiscard]] Begun begun() const noexcept override { return assembled_.begun(); }

    /// What the place of the next frame says.
    enum class Front : std::uint8_t {
        nothing,  ///< no frame has come
        message,  ///< one that is whole, and lies in the ring
        other,    ///< something that look() is to see to
    };
    /// For an end that awaits a message of many lines, which may have the rest of its block to
    /// itself: has all of these fetched at once, before its end is looked at. What is found stays
    /// until pass_batch().
    [[nodiscard, gnu::always_inline]] Front look_at_front(
        std::span<const std::byte>& message) noexcept {
        if (has_other_work_ || core_->is_not_plain) [[unlikely]]
            return Front::other;
        const FrameReader& reader = core_->reader;
        const std::uint64_t facts = reader.front_facts();
        if (facts > facts_mask) return Front::nothing;
        const std::uint64_t length = header_length(facts);
        lines_.ask_for_frame(reader, length);
        if (!reader.is_message(facts)) [[unlikely]]
            return Front::other;
        note_found(length, facts != length);
        message = {reader.payload(), length};
        return Front::message;
    }
    /// For an end that looks again a little later: has the next message fetched
    /// (CacheLines::ask_ahead).
    void ask_ahead() noexcept {
        if (!has_other_work_ && !core_->is_not_plain) lines_.ask_ahead(core_->reader);
    }
    /// Has the place fetched where a batch as long as the last one is laid next.
    [[gnu::always_inline]] void ask_for_place() const noexcept {
        lines_.ask_for_place(core_->writer, last_batch_);
    }
    /// What look() has found is a long one.
    void ask_for_frame(std::size_t length) noexcept { lines_.ask_for_frame(core_->reader, length); }
    /// Where the next frame will begin: for a server that looks at many lanes in turn.
    [[nodiscard, gnu::always_inline]] FrameReader::Awaited awaited() const noexcept {
        return core_->reader.awaited();
    }
    /// A frame lies there, whole.
    [[nodiscard]] bool has_frame() const noexcept {
        std::uint64_t header;
        return core_->reader.front(header);
    }
    /// The same, as far as memory tells of what comes by SEND.
    [[nodiscard]] bool seems_to_have_frame() const noexcept {
        return core_->reader.arriving() && (core_->incoming.has_value() || has_frame());
    }
    /// A look asks for nothing but the place of the next frame.
    [[nodiscard]] bool receives_here() const noexcept { return !has_other_work_; }
    /// For what messages do not tell of, such as the peer's end: `ok`, a message is there; `empty`,
    /// `closed`, `peer_lost`.
    base::Status look_around() noexcept {
        Piece piece;
        return core_->find_piece(piece, true);
    }
    /// A look would find something, a message or the end; by less than look_around().
    [[nodiscard]] bool has_news() noexcept {
        Piece piece;
        return core_->find_piece(piece, false) != base::Status::empty;
    }
    /// Messages come by SEND: completions tell of them, and poll_sends() takes these. False: there
    /// is one already, or they do not come so.
    [[nodiscard]] bool comes_by_send() const noexcept { return core_->incoming.has_value(); }
    bool poll_sends() noexcept {
        if (!core_->incoming.has_value() || !core_->incoming->empty()) return false;
        core_->poll_receives();
        return true;
    }

    // --- sending

    [[gnu::always_inline]] base::Status claim(std::size_t size,
                                              std::span<std::byte>& place) override {
        if (keeps_some_) [[unlikely]]
            return base::Status::full;
        return core_->claim(size, place);
    }
    /// What was claimed before others had to wait goes before them.
    base::Status commit(std::size_t size) noexcept override {
        return core_->commit(size, frame_whole);
    }
    /// Room for a batch of `least` bytes or more, a multiple of 8, as much as there is, and a
    /// quarter of the ring at most; to be filled, and committed before anything else is sent. Where
    /// the ring ends before there is room for as much as the last one took, it begins anew: one
    /// that is cut in two is answered in two, and so are those after it.
    base::Status claim_batch(std::size_t least, std::span<std::byte>& place) noexcept;
    base::Status commit_batch(std::size_t size) noexcept;
    [[gnu::always_inline]] base::Status try_send(const SessionHead& head,
                                                 std::span<const std::byte> payload) override {
        if (keeps_some_) [[unlikely]]
            return base::Status::full;
        const base::Status status = core_->reserve(sizeof head + payload.size());
        if (status != base::Status::ok) [[unlikely]]
            return status;
        return core_->send(head, payload);
    }
    base::Status send(const SessionHead& head, std::span<const std::byte> payload) override {
        const base::Status status = try_send(head, payload);
        if (status != base::Status::full && status != base::Status::too_large) [[likely]]
            return status;
        return send_long(head, payload);
    }
    base::Status flush() noexcept override;
    [[nodiscard]] bool is_clear() const noexcept override { return !keeps_some_; }
    [[nodiscard]] std::size_t waiting_bytes() const noexcept override { return kept_.bytes(); }
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept override {
        return kept_.flushed_bytes() + (large_ == nullptr ? 0 : large_->taken_bytes());
    }
    /// Messages are stored into the peer's ring.
    [[nodiscard]] bool stores() const noexcept { return core_->stores; }
    /// How far this end has read, for the head of a message that it is about to send; and what the
    /// peer says so. False: it cannot be there.
    [[nodiscard]] std::uint32_t say_position() noexcept { return core_->say_position(); }
    [[nodiscard]] bool hear_position(std::uint32_t said) noexcept {
        return core_->hear_position(said);
    }
    /// There is room for so many bytes, or the lane has ended.
    [[nodiscard]] bool finds_room(std::size_t size) noexcept {
        return core_->find_room(size) != base::Status::full;
    }

    // --- a byte that the peer has granted (mailboxes.hpp)

    /// Null: it can only be written.
    [[nodiscard]] std::shared_ptr<std::byte> map(const verbs::RemoteAddress& byte) {
        return core_->carrier.map(byte, 1);
    }
    /// Writes it, after what was sent. `full`: not yet.
    base::Status write_byte(const ibv_sge& from, const verbs::RemoteAddress& to) noexcept;

    // --- large messages

    /// What an end does that announces more than `max_bytes` of large messages.
    enum class Excess : std::uint8_t {
        in_pieces,  ///< sends the next one in pieces
        waits,      ///< until the peer has READ some, which nobody rings for: it looks by a clock
    };
    /// Both ends have agreed to announce what is longer than `setting` says. Before anything large
    /// is sent.
    void agree(const LargeMessages& setting, Excess excess) noexcept;
    [[nodiscard]] bool claim_large(std::size_t size, std::span<std::byte>& place) override;
    base::Status commit_large(const SessionHead& head, std::size_t size) override;
    base::Status flush_all() noexcept override;
    /// Which messages are announced, in a line.
    [[nodiscard]] std::string explain_large() const;
    /// A message that was announced() is to be READ: then look() finds it, with `head` as that of
    /// one in the ring. False: the peer announces more than it may.
    [[nodiscard]] bool fetch(const SessionHeader& header, const Announcement& from);
    /// … or not.
    [[nodiscard]] bool decline();

    // --- waiting, of a client

    [[nodiscard]] std::uint64_t progress() const noexcept override {
        return core_->activity() + fetch_progress();
    }
    [[nodiscard]] int descriptor(const base::WaitPolicy& policy) override;
    /// For an end that waits, and has looked in vain: true if nothing has come since, by a look at
    /// the place of the next frame alone. False also where it is time to look around, which look()
    /// does.
    [[nodiscard, gnu::always_inline]] bool stays_quiet() noexcept { return core_->stays_quiet(); }
    /// After a look that has found nothing: it had nothing else to do.
    [[nodiscard, gnu::always_inline]] bool counts_vain_look() noexcept {
        return !core_->end.has_descriptor() && core_->counts_vain_look();
    }
    /// Room is awaited, be it by the messages that are kept, and not messages.
    void wait_for_room(bool is_awaited) noexcept { core_->waiting_for_room = is_awaited; }
    /// Room was found by claim_batch(), so a program's loop is to come here once more.
    void note_room() noexcept {
        if (!core_->end.has_descriptor()) [[likely]]
            return;
        core_->wants_room = false;
        core_->end.wake();
    }

    // --- waiting, of a thread that has many lanes: its hub watches them all

    /// What becomes readable when the peer rings after fall_asleep(), until unwatch(). Throws Error
    /// (resource_exhausted): no more descriptors, unless it was watched already.
    int watch(std::chrono::nanoseconds spin);
    void unwatch() noexcept { watched_.reset(); }
    /// The peer is told that nobody looks, and rings for a message; and for room for one of so many
    /// bytes, if that is lacking.
    void fall_asleep(std::optional<std::size_t> lacks = {}) noexcept;
    /// Takes that back: it rings no more from here on, so this lane is looked at.
    void wake() noexcept;
    void set_place(std::uint32_t place) noexcept override {
        core_->server_place = place;
        core_->is_told = false;
    }

    // --- the conversation

    void answer_goodbye() noexcept override {
        if (core_->ended_receiving == base::Status::closed) core_->say_goodbye();
    }
    base::Status try_close() noexcept override;
    [[nodiscard]] connect::Link& link() noexcept override { return core_->link(); }
    [[nodiscard]] std::string failure() const override { return core_->failure(); }
    [[nodiscard]] std::string explain() const override { return core_->explain(); }

  private:
    friend struct RingLaneInside;  ///< peers that lie, in tests, do what no lane would

    static constexpr std::size_t nothing = ~std::size_t{0};
    /// Pieces of one message that one look takes, so that others are not kept waiting.
    static constexpr int pieces_of_a_look = 8;

    /// A whole message was found in the ring.
    [[gnu::always_inline]] void note_found(std::size_t length, bool is_apart) noexcept {
        taken_ = is_apart ? nothing : length;
        apart_ = is_apart ? length : 0;
    }
    /// Slots of the send window that are free when a batch is begun.
    [[nodiscard]] std::uint32_t slots_of_batch() const noexcept {
        return std::min<std::uint32_t>(16, core_->window().slots() / 4);
    }
    [[gnu::noinline, gnu::cold]] base::Status look_at_other(std::span<const std::byte>& message);
    [[gnu::noinline]] base::Status look_in_pieces(std::span<const std::byte>& message);
    base::Status put_together(Piece piece, std::span<const std::byte>& message);
    [[gnu::noinline]] void pass_other() noexcept;
    [[gnu::noinline]] base::Status send_long(const SessionHead& head,
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
    void note_other_work() noexcept {
        has_other_work_ = is_assembled_ || (large_ != nullptr && large_->is_busy());
    }

    void end_rest() noexcept override { core_->end_rest(); }
    void end_wait() noexcept override { core_->waiting_for_room = core_->falls_asleep = false; }
    [[nodiscard]] std::unique_ptr<connect::Readiness>& readiness() noexcept override {
        return core_->end.readiness();
    }
    [[nodiscard]] base::StandingParker& parker() noexcept override { return *core_->sleeper; }

    std::unique_ptr<Channel::Core> core_;
    std::size_t last_batch_ = 0;   ///< bytes of the last one that was sent
    std::size_t taken_ = nothing;  ///< bytes of the message that was found in place
    std::size_t apart_ = 0;        ///< the same, if that has the rest of its block to itself
    CacheLines lines_;
    bool has_other_work_ = false;  ///< for a look: `assembled_` is handed out, or some is READ
    bool keeps_some_ = false;      ///< messages wait
    bool is_assembled_ = false;    ///< it is handed out until pass()
    Excess excess_ = Excess::in_pieces;
    Assembly assembled_;
    std::shared_ptr<HeldBytes> held_;  ///< of what is READ, too
    KeptMessages kept_;
    std::unique_ptr<connect::Readiness> watched_;  ///< if a hub watches it
};

}  // namespace millrace::message
