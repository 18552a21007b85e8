// The rarer paths of a line: large messages, those that wait for room, and all by wire.
#include "line.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace millrace::message {

base::Status Line::look_otherwise(std::span<const std::byte>& message) {
    if (is_wire()) return look_at_wire(message);
    if (is_assembled_) {
        message = assembled_.bytes();
        return base::Status::ok;
    }
    return look_at_fetched(message);
}

base::Status Line::look_at_fetched(std::span<const std::byte>& message) {
    const bool is_lost = large_->pump() != base::Status::ok;
    if (is_lost) (void)core_->lost_or_closed();
    arrived_ = large_->arrival();
    if (arrived_ != Arrival::none) {
        taken_ = nothing;
        apart_ = 0;
        message = large_->message();
        return arrived_ == Arrival::no_memory ? base::Status::too_large : base::Status::ok;
    }
    if (!large_->is_busy()) note_otherwise();
    if (!large_->holds_ring()) return look_in_pieces(message);
    // An end is found all the same; and what lies behind a message that can never be READ is not
    // waited for.
    Piece piece;
    const base::Status status = core_->look(piece);
    if (status != base::Status::ok) return status;
    return is_lost ? core_->lost_or_closed() : base::Status::empty;
}

base::Status Line::look_at_wire(std::span<const std::byte>& message) {
    end_rest();
    const base::Status status = wire_->look(message);
    if (wire_readiness_ == nullptr) return status;
    if (status != base::Status::empty) {
        wire_readiness_->wake();
    } else if (!wire_readiness_->stays_awake(wire_->progress())) {
        rest();
    }
    return status;
}

void Line::rest() noexcept {
    const base::Clock::time_point due = wire_->due();
    wire_readiness_->rest(
        wire_->parker(),
        [this] {
            std::span<const std::byte> message;
            return wire_->look(message) != base::Status::empty;
        },
        due == base::Clock::time_point::max()
            ? connect::Readiness::until_woken
            : std::max<std::chrono::nanoseconds>(due - base::Clock::now(),
                                                 std::chrono::nanoseconds{1}));
}

void Line::end_rest() noexcept {
    if (!is_wire()) {
        core_->end_rest();
    } else if (wire_readiness_ != nullptr) {
        wire_readiness_->end(wire_->parker());
    }
}

int Line::descriptor(const base::WaitPolicy& policy) {
    std::unique_ptr<connect::Readiness>& its = readiness();
    if (its == nullptr) {
        if (is_wire()) {
            its = std::make_unique<connect::Readiness>(wire_->news(), policy.spin,
                                                       connect::Readiness::Alarm::timer);
        } else {
            its = std::make_unique<connect::Readiness>(core_->link.news(), policy.spin);
        }
    }
    return its->descriptor();
}

void Line::answer_goodbye() noexcept {
    if (is_wire()) {
        wire_->answer_goodbye();
    } else if (core_->ended_receiving == base::Status::closed) {
        core_->say_goodbye();
    }
}

base::Status Line::close(const base::Deadline& deadline, std::string& why_failed) {
    end_rest();
    if (is_wire()) {
        const base::Status status = wire_->close(deadline);
        why_failed = wire_->failure();
        return status;
    }
    // What was announced is the peer's to READ until then.
    if (has_announced()) wait_until_taken(deadline);
    core_->awaited_read = 0;
    Channel::Core& core = *core_;
    Channel channel{std::move(core_)};
    const base::Status status = channel.close(deadline);
    // The line ends in any case.
    if (!core.closing.is_closed()) core.say_goodbye();
    why_failed = channel.failure();
    return status;
}

base::Status Line::look_in_pieces(std::span<const std::byte>& message) {
    Piece piece;
    const base::Status status = core_->look(piece);
    if (status != base::Status::ok) return status;
    if (!piece.first || !piece.last) return put_together(piece, message);
    note_found(piece);
    message = piece.payload;
    return status;
}

base::Status Line::put_together(Piece piece, std::span<const std::byte>& message) {
    taken_ = nothing;
    apart_ = 0;
    for (int i = 0; i < pieces_of_a_look; ++i) {
        const std::size_t size = piece.payload.size();
        if (piece.first) {
            // One that was begun before it was given up by its sender.
            assembled_.begin();
            assembling_ = true;
        }
        if (piece.first && piece.last) {
            assembling_ = false;
            note_found(piece);
            message = piece.payload;
            return base::Status::ok;
        }
        if (assembling_ && !assembled_.append(piece.payload)) {
            assembled_.keep_head(piece.payload);
            assembling_ = false;
            core_->release(size, piece.last);
            receives_otherwise_ = is_assembled_ = true;
            message = assembled_.bytes();
            return base::Status::too_large;
        }
        core_->release(size, piece.last);
        if (piece.last && assembling_) {
            assembling_ = false;
            receives_otherwise_ = is_assembled_ = true;
            message = assembled_.bytes();
            return base::Status::ok;
        }
        const base::Status status = core_->look(piece);
        if (status != base::Status::ok) return status;
    }
    return base::Status::empty;
}

void Line::pass_otherwise() noexcept {
    if (is_wire()) return wire_->pass();
    if (apart_ != 0) {
        if (core_->pass_apart(std::exchange(apart_, 0))) (void)core_->tell_peer();
        return;
    }
    if (arrived_ != Arrival::none) {
        arrived_ = Arrival::none;
        large_->pop();
        return note_otherwise();
    }
    is_assembled_ = false;
    note_otherwise();
    assembled_.clear();
}

base::Status Line::claim_otherwise(std::size_t size, std::span<std::byte>& place) {
    return is_wire() ? wire_->claim(size, place) : base::Status::full;
}

base::Status Line::commit_otherwise(std::size_t size) noexcept {
    // What was claimed before others had to wait goes before them.
    if (!is_wire()) return core_->commit(size, frame_whole);
    const base::Status status = wire_->commit(size);
    // A program's loop is to come here once more.
    if (wire_readiness_ != nullptr && wire_->holds_back()) wire_readiness_->wake();
    return status;
}

base::Status Line::try_send_otherwise(const SessionHead& head, std::span<const std::byte> payload) {
    std::span<std::byte> place;
    const base::Status status = claim_otherwise(sizeof head + payload.size(), place);
    if (status != base::Status::ok) return status;
    copy_two_words(place.data(), head);
    if (!payload.empty()) std::memcpy(place.data() + sizeof head, payload.data(), payload.size());
    return commit_otherwise(sizeof head + payload.size());
}

base::Status Line::send_otherwise(const SessionHead& head, std::span<const std::byte> payload) {
    if (is_to_be_read(head, sizeof head + payload.size())) {
        std::span<std::byte> place;
        if (claim_large(payload.size(), place)) {
            std::memcpy(place.data(), payload.data(), payload.size());
            return commit_large(head, payload.size());
        }
    }
    return keep(head, payload);
}

bool Line::is_to_be_read(const SessionHead& head, std::size_t bytes) const noexcept {
    if (!announces() || bytes <= core_->longest_here) return false;
    // Nothing but these: a welcome is said while the client has agreed to nothing yet.
    SessionHeader header;
    return parse(head, header) &&
           (header.kind == SessionKind::request || header.kind == SessionKind::answer);
}

bool Line::is_to_be_read(std::span<const std::byte> message) const noexcept {
    SessionHead head;
    if (!announces() || message.size() <= core_->longest_here) return false;
    std::memcpy(&head, message.data(), sizeof head);
    return is_to_be_read(head, message.size());
}

bool Line::announce_front() noexcept {
    std::vector<std::byte>& message = waiting_.front();
    const std::size_t size = message.size() - session_head_bytes;
    Rendezvous::Announced announced;
    std::vector<std::byte> announcement;
    try {
        announcement.resize(sizeof announced.head + sizeof announced.where);
        std::span<std::byte> place;
        // In pieces it would take many times as long, and so would all that follows it.
        if (!claim_large(size, place)) return !has_announced();
        SessionHead head;
        std::memcpy(&head, message.data(), sizeof head);
        std::memcpy(place.data(), message.data() + sizeof head, size);
        announced = large_->announce(head, size);
    } catch (const std::bad_alloc&) {
        return true;  // then in pieces
    }
    waiting_bytes_ -= message.size();
    flushed_bytes_ += message.size();
    std::memcpy(announcement.data(), &announced.head, sizeof announced.head);
    std::memcpy(announcement.data() + sizeof announced.head, announced.where.data(),
                sizeof announced.where);
    message = std::move(announcement);
    waiting_bytes_ += message.size();
    return true;
}

base::Status Line::keep(const SessionHead& head, std::span<const std::byte> payload) {
    if (is_wire()) return wire_->send(head, payload);
    std::vector<std::byte> message(sizeof head + payload.size());
    std::memcpy(message.data(), &head, sizeof head);
    if (!payload.empty()) std::memcpy(message.data() + sizeof head, payload.data(), payload.size());
    const std::size_t bytes = message.size();
    waiting_.push_back(std::move(message));
    waiting_bytes_ += bytes;
    sends_otherwise_ = true;
    const base::Status status = flush();
    return status == base::Status::full ? base::Status::ok : status;
}

base::Status Line::flush() noexcept {
    if (is_wire()) return wire_->flush();
    while (!waiting_.empty()) {
        if (excess_ == Excess::waits && begun_ == 0 && is_to_be_read(waiting_.front()) &&
            !announce_front()) {
            return base::Status::full;
        }
        const std::span<const std::byte> whole = waiting_.front();
        const std::size_t at_once = core_->max_piece();
        std::size_t length = whole.size() - begun_;
        std::uint8_t flags = begun_ == 0 ? frame_whole : frame_continues;
        if (whole.size() > at_once) {
            // Pieces of an eighth: the peer takes one while the next ones travel.
            const std::size_t piece =
                std::min(frame_bytes(core_->writer.size() / 8) - 2 * word_bytes, at_once);
            if (length > piece) flags |= frame_more;
            length = std::min(piece, length);
        }
        base::Status status = core_->reserve_piece(length);
        if (status != base::Status::ok) return status;
        status = core_->send(whole.subspan(begun_, length), flags);
        if (status != base::Status::ok) return status;
        begun_ += length;
        flushed_bytes_ += length;
        if (begun_ == whole.size()) {
            waiting_bytes_ -= whole.size();
            waiting_.pop_front();
            begun_ = 0;
        }
    }
    sends_otherwise_ = false;
    return base::Status::ok;
}

// --- large messages

void Line::agree(const LargeMessages& setting, Excess excess) noexcept {
    agreed_ = setting;
    excess_ = excess;
    if (!setting.allowed || setting.longer_than == LargeMessages::never) return;
    constexpr std::size_t least = 48;  // as an announcement takes that
    const std::size_t longest = setting.longer_than == 0
                                    ? core_->writer.size() / 2
                                    : std::max(setting.longer_than, least) + session_head_bytes;
    core_->longest_here = std::clamp(longest, least + session_head_bytes, largest_ring);
}

std::string Line::explain_large() const {
    if (!has_agreed()) {
        return "large messages: in pieces through the ring, as not both ends allow otherwise";
    }
    const std::string read =
        "what the other end announces is READ, beside what comes through the ring";
    if (agreed_.longer_than == LargeMessages::never) {
        return fmt::format("large messages: {}; this end announces none, as the program chose",
                           read);
    }
    return fmt::format(
        "large messages: of more than {} bytes they are announced, and READ by the other end{}; {}",
        core_->longest_here - session_head_bytes,
        agreed_.keeps_order ? ", in their order among the others" : "", read);
}

Rendezvous& Line::large() {
    if (large_ == nullptr) large_ = std::make_unique<Rendezvous>(*core_, agreed_, HeldPart{held_});
    return *large_;
}

bool Line::claim_large(std::size_t size, std::span<std::byte>& place) {
    return announces() && large().claim(size, place);
}

base::Status Line::commit_large(const SessionHead& head, std::size_t size) {
    const Rendezvous::Announced announced = large_->announce(head, size);
    try {
        const base::Status status = try_send(announced.head, announced.where);
        return status == base::Status::full ? keep(announced.head, announced.where) : status;
    } catch (...) {
        large_->take_back();  // the peer will not hear of it
        throw;
    }
}

base::Status Line::flush_all() noexcept {
    const base::Status status = flush();
    if (!has_announced()) return status;
    if (!large_->reclaim()) return base::Status::peer_lost;
    return status == base::Status::ok && large_->has_announced() ? base::Status::full : status;
}

void Line::tidy() noexcept {
    if (large_ == nullptr) return;
    (void)large_->reclaim();
    large_->tidy(base::Clock::now());
}

bool Line::fetch(const SessionHeader& header, const Announcement& from) {
    SessionHeader plain = header;
    plain.kind =
        header.kind == SessionKind::request_by_read ? SessionKind::request : SessionKind::answer;
    receives_otherwise_ = true;
    return large().fetch(pack(plain), from);
}

bool Line::decline() {
    receives_otherwise_ = true;
    return large().decline();
}

void Line::wait_until_taken(const base::Deadline& deadline) noexcept {
    base::NapParker nap;
    (void)base::wait_until(
        [this] {
            const base::Status status = flush_all();
            return status != base::Status::full || core_->window.broken() ||
                   core_->link.peer() != connect::PeerState::alive;
        },
        deadline, core_->options.wait, nap);
}

}  // namespace millrace::message
