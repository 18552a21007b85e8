// The rarer paths of a lane of rings: large messages, those that wait for room, and sleeping.
#include "lane/ring_lane.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace millrace::message {

using base::Status;

// --- receiving

Status RingLane::look_at_other(std::span<const std::byte>& message) {
    if (is_assembled_) {
        message = assembled_.bytes();
        return Status::ok;
    }
    const bool is_lost = large_->pump() != Status::ok;
    if (is_lost) (void)core_->lost_or_closed();
    arrived_ = large_->arrival();
    if (arrived_ != Arrival::none) {
        note_found(0, true);
        message = large_->message();
        return arrived_ == Arrival::no_memory ? Status::too_large : Status::ok;
    }
    if (!large_->is_busy()) note_other_work();
    if (!large_->holds_ring()) return look_in_pieces(message);
    // An end is found all the same; and what lies after a message that can never be READ is not
    // waited for.
    Piece piece;
    const Status status = core_->look(piece);
    if (status != Status::ok) return status;
    return is_lost ? core_->lost_or_closed() : Status::empty;
}

Status RingLane::look_in_pieces(std::span<const std::byte>& message) {
    Piece piece;
    const Status status = core_->look(piece);
    if (status != Status::ok) return status;
    if (!piece.first || !piece.last) return put_together(piece, message);
    note_found(piece.payload.size(), core_->reader.is_apart());
    message = piece.payload;
    return status;
}

Status RingLane::put_together(Piece piece, std::span<const std::byte>& message) {
    note_found(0, true);
    for (int i = 0; i < pieces_of_a_look; ++i) {
        const std::size_t size = piece.payload.size();
        if (piece.first && piece.last) {
            assembled_.give_up();
            note_found(size, core_->reader.is_apart());
            message = piece.payload;
            return Status::ok;
        }
        const Assembly::Took took = assembled_.take(piece.payload, piece.first, piece.last);
        core_->release(size, piece.last);
        if (took != Assembly::Took::part) {
            has_other_work_ = is_assembled_ = true;
            message = assembled_.bytes();
            return took == Assembly::Took::whole ? Status::ok : Status::too_large;
        }
        const Status status = core_->look(piece);
        if (status != Status::ok) return status;
    }
    return Status::empty;
}

void RingLane::pass_other() noexcept {
    if (apart_ != 0) {
        if (core_->pass_apart(std::exchange(apart_, 0))) (void)core_->tell_peer();
        return;
    }
    if (arrived_ != Arrival::none) {
        arrived_ = Arrival::none;
        large_->pop();
        return note_other_work();
    }
    is_assembled_ = false;
    note_other_work();
    assembled_.clear();
}

// --- sending

Status RingLane::claim_batch(std::size_t least, std::span<std::byte>& place) noexcept {
    if (keeps_some_) return Status::full;
    // It is posted when it is committed. Until then credits, wake-ups and READs may be.
    if (!core_->stores && core_->window().free() < slots_of_batch()) {
        if (core_->window().reap() != Status::ok) return core_->lost_or_closed();
        if (core_->window().free() < slots_of_batch()) return core_->found_full();
    }
    Status status = Status::full;
    const std::size_t longest =
        std::min<std::size_t>(core_->longest_here, core_->writer.size() / 4);
    if (least < last_batch_ && last_batch_ <= longest) status = core_->reserve(last_batch_);
    if (status == Status::full) status = core_->reserve(least);
    if (status != Status::ok) return status;
    constexpr std::size_t in_words = ~(word_bytes - 1);
    const std::size_t here = std::min<std::size_t>(longest, core_->room - 2 * word_bytes);
    place = core_->writer.payload(std::max(least, here & in_words));
    return status;
}

Status RingLane::commit_batch(std::size_t size) noexcept {
    last_batch_ = size;
    // A short one would rather have few lines than lines that nobody fetches too early.
    constexpr std::size_t least_apart = 4 * frame_alignment;
    if (size >= least_apart && core_->stores && !keeps_some_ &&
        core_->writer.size() >= smallest_ring_of_blocks) {
        return core_->commit_apart_if_roomy(size);
    }
    return commit(size);
}

Status RingLane::write_byte(const ibv_sge& from, const verbs::RemoteAddress& to) noexcept {
    return core_->window().post(
        verbs::Write{
            .from = {&from, 1},
            .to = to,
            .flags = core_->max_inline >= 1 ? verbs::SendFlags::inlined : verbs::SendFlags::none},
        core_->signal);
}

Status RingLane::send_long(const SessionHead& head, std::span<const std::byte> payload) {
    if (is_to_be_read(head, sizeof head + payload.size())) {
        std::span<std::byte> place;
        if (claim_large(payload.size(), place)) {
            std::memcpy(place.data(), payload.data(), payload.size());
            return commit_large(head, payload.size());
        }
    }
    return keep(head, payload);
}

Status RingLane::keep(const SessionHead& head, std::span<const std::byte> payload) {
    kept_.keep(std::as_bytes(std::span{head}), payload);
    keeps_some_ = true;
    const Status status = flush();
    return status == Status::full ? Status::ok : status;
}

Status RingLane::flush() noexcept {
    while (!kept_.empty()) {
        if (excess_ == Excess::waits && kept_.begun() == 0 && is_to_be_read(kept_.front()) &&
            !announce_front()) {
            return Status::full;
        }
        const std::span<const std::byte> whole = kept_.front();
        const std::size_t at_once = core_->max_piece();
        std::size_t length = whole.size() - kept_.begun();
        std::uint8_t flags = kept_.begun() == 0 ? frame_whole : frame_continues;
        if (whole.size() > at_once) {
            // Pieces of an eighth: the peer takes one while the next ones travel.
            const std::size_t piece =
                std::min(frame_bytes(core_->writer.size() / 8) - 2 * word_bytes, at_once);
            if (length > piece) flags |= frame_more;
            length = std::min(piece, length);
        }
        Status status = core_->reserve_last(length);
        if (status != Status::ok) return status;
        status = core_->send(whole.subspan(kept_.begun(), length), flags);
        if (status != Status::ok) return status;
        (void)kept_.take(length);
    }
    keeps_some_ = false;
    return Status::ok;
}

// --- large messages

void RingLane::agree(const LargeMessages& setting, Excess excess) noexcept {
    agreed_ = setting;
    excess_ = excess;
    if (!setting.allowed || setting.longer_than == LargeMessages::never) return;
    constexpr std::size_t least = 48;  // as an announcement takes that
    const std::size_t longest = setting.longer_than == 0
                                    ? core_->writer.size() / 2
                                    : std::max(setting.longer_than, least) + session_head_bytes;
    core_->longest_here = std::clamp(longest, least + session_head_bytes, largest_ring);
}

std::string RingLane::explain_large() const {
    if (!has_agreed()) {
        return "large messages: in pieces through the ring, as not both ends allow more";
    }
    const std::string read =
        "what the other end announces is READ, besides what comes through the ring";
    if (agreed_.longer_than == LargeMessages::never) {
        return fmt::format("large messages: {}; this end announces none, as the program chose",
                           read);
    }
    return fmt::format(
        "large messages: of more than {} bytes they are announced, and READ by the other end{}; {}",
        core_->longest_here - session_head_bytes,
        agreed_.keeps_order ? ", in their order among the others" : "", read);
}

Rendezvous& RingLane::large() {
    if (large_ == nullptr) large_ = std::make_unique<Rendezvous>(*core_, agreed_, HeldPart{held_});
    return *large_;
}

bool RingLane::is_to_be_read(const SessionHead& head, std::size_t bytes) const noexcept {
    if (!announces() || bytes <= core_->longest_here) return false;
    // Nothing but these: a welcome is said while the client has agreed to nothing yet.
    SessionHeader header;
    return parse(head, header) &&
           (header.kind == SessionKind::request || header.kind == SessionKind::answer);
}

bool RingLane::is_to_be_read(std::span<const std::byte> message) const noexcept {
    SessionHead head;
    if (!announces() || message.size() <= core_->longest_here) return false;
    std::memcpy(&head, message.data(), sizeof head);
    return is_to_be_read(head, message.size());
}

bool RingLane::announce_front() noexcept {
    const std::span<const std::byte> message = kept_.front();
    const std::size_t size = message.size() - session_head_bytes;
    try {
        std::vector<std::byte> announcement(sizeof(SessionHead) + announcement_bytes);
        std::span<std::byte> place;
        // In pieces it would take many times as long, and so would all that follows it.
        if (!claim_large(size, place)) return !has_announced();
        SessionHead head;
        std::memcpy(&head, message.data(), sizeof head);
        std::memcpy(place.data(), message.data() + sizeof head, size);
        const Rendezvous::Announced announced = large_->announce(head, size);
        std::memcpy(announcement.data(), &announced.head, sizeof announced.head);
        std::memcpy(announcement.data() + sizeof announced.head, announced.where.data(),
                    announcement_bytes);
        kept_.replace_front(std::move(announcement));
    } catch (const std::bad_alloc&) {
        // Then in pieces.
    }
    return true;
}

bool RingLane::claim_large(std::size_t size, std::span<std::byte>& place) {
    return announces() && large().claim(size, place);
}

Status RingLane::commit_large(const SessionHead& head, std::size_t size) {
    const Rendezvous::Announced announced = large_->announce(head, size);
    try {
        const Status status = try_send(announced.head, announced.where);
        return status == Status::full ? keep(announced.head, announced.where) : status;
    } catch (...) {
        large_->take_back();  // the peer will not hear of it
        throw;
    }
}

Status RingLane::flush_all() noexcept {
    const Status status = flush();
    if (!has_announced()) return status;
    if (!large_->reclaim()) return Status::peer_lost;
    return status == Status::ok && large_->has_announced() ? Status::full : status;
}

bool RingLane::fetch(const SessionHeader& header, const Announcement& from) {
    SessionHeader plain = header;
    plain.kind =
        header.kind == SessionKind::request_by_read ? SessionKind::request : SessionKind::answer;
    has_other_work_ = true;
    return large().fetch(pack(plain), from);
}

bool RingLane::decline() {
    has_other_work_ = true;
    return large().decline();
}

// --- waiting

int RingLane::descriptor(const base::WaitPolicy& policy) {
    return core_->end.descriptor(policy.spin);
}

int RingLane::watch(std::chrono::nanoseconds spin) {
    if (watched_ == nullptr) {
        watched_ = std::make_unique<connect::Readiness>(core_->link().news(), spin);
        watched_->hush();
    }
    return watched_->descriptor();
}

void RingLane::fall_asleep(std::optional<std::size_t> lacks) noexcept {
    core_->wants_room = lacks.has_value();
    core_->wanted_size = lacks.value_or(0);
    core_->end.readiness() = std::move(watched_);
    core_->rest();
    watched_ = std::move(core_->end.readiness());
}

void RingLane::wake() noexcept {
    if (!watched_->end(*core_->sleeper)) {
        core_->sleeper->retract();  // what came without an announcement is taken, too
        // Told once, by the socket: the next look finds it.
        (void)core_->link().peer_now();
    }
    core_->falls_asleep = core_->wants_room = false;
    watched_->hush();
}

// --- the conversation

Status RingLane::try_close() noexcept {
    end_rest();
    const auto deliver = [this] {
        // What waits, and what was announced, is the peer's before the close frame.
        const bool is_alive = core_->link().peer() == connect::PeerState::alive;
        const Status status = is_alive ? flush_all() : Status::ok;
        return status == Status::ok ? core_->deliver() : status;
    };
    return core_->try_close(
        deliver, [this] { return is_clear() && !has_announced() && core_->peer_had_all(); });
}

}  // namespace millrace::message
