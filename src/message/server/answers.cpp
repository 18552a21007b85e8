#include "server/answers.hpp"

#include <algorithm>
#include <exception>
#include <optional>

#include "server/state.hpp"

namespace millrace::message {

using base::Status;

namespace {
constexpr std::chrono::nanoseconds shortest_nap = std::chrono::microseconds{20};
constexpr std::chrono::nanoseconds longest_nap = std::chrono::milliseconds{1};
}  // namespace

void Answers::decline(Peer& peer, std::uint64_t id) {
    if (!server_.is_draining) ++server_.counts.overloaded;
    (void)answer(peer, id, server_.is_draining ? Outcome::draining : Outcome::overloaded, {});
}

void Answers::repeat(Peer& peer, std::uint64_t id) {
    ++server_.counts.repeated;
    if (peer.session.is_deferred(id)) return;  // its answer is under way
    const PeerSession::Kept* const kept = peer.session.kept(id);
    const SessionHead head =
        pack(SessionHeader{.id = id,
                           .kind = SessionKind::answer,
                           .outcome = kept != nullptr ? kept->outcome : Outcome::expired});
    ++server_.counts.answers;
    std::span<const std::byte> payload;
    if (kept != nullptr) payload = kept->payload;
    (void)give(peer, head, payload);
}

void Answers::defer(Peer& peer, std::uint64_t id) noexcept {
    if (peer.session.defer(id)) ++server_.counts.pending;
}

bool Answers::take_deferred(Peer& peer, std::uint64_t id) noexcept {
    const bool was_deferred = peer.session.take_deferred(id);
    if (was_deferred) --server_.counts.pending;
    return was_deferred;
}

void Answers::cancel(Peer& peer, std::uint64_t id) {
    if (peer.line->give_up(id)) return;               // and so is its answer, then
    if (id == 0 || !take_deferred(peer, id)) return;  // it is answered
    if (unwanted_) unwanted_(peer.id, id);
    (void)answer(peer, id, Outcome::cancelled, {});
}

void Answers::forget(Peer& peer) noexcept {
    if (unwanted_) {
        peer.session.each_deferred([&](std::uint64_t id) { unwanted_(peer.id, id); });
        unwanted_(peer.id, 0);
    }
    server_.counts.pending -= peer.session.pending();
}

Status Answers::answer(Peer& peer, std::uint64_t id, Outcome outcome,
                       std::span<const std::byte> payload) {
    Status result = Status::ok;
    if (payload.size() > peer.max_answer) [[unlikely]] {
        payload = {};
        outcome = Outcome::too_large;
        result = Status::too_large;
    }
    ++server_.counts.answers;
    if (peer.session.resumes() &&
        !peer.session.keep(id, outcome, payload, server_.options.tuning.max_kept_bytes)) {
        ++server_.counts.over_budget;
    }
    if (!peer.line.has_value()) return result;  // it may come back
    const SessionHead head =
        pack(SessionHeader{.id = id, .kind = SessionKind::answer, .outcome = outcome});
    const Status given = give(peer, head, payload);
    return given == Status::ok ? result : given;
}

Status Answers::give(Peer& peer, const SessionHead& head, std::span<const std::byte> payload) {
    if (served_ == &peer) [[unlikely]] {
        SessionHeader header;
        (void)parse(head, header);
        std::byte* const place = server_.place_in_batch(peer, header.id, payload.size());
        if (place != nullptr) {
            copy_any(place, payload.data(), payload.size());
            server_.add_to_batch(header.id, header.outcome, payload.size());
            return Status::ok;
        }
        send_batch();
    }
    if (peer.line->send(head, payload) != Status::ok) return Status::closed;
    sent(peer);
    return Status::ok;
}

void Answers::take_replies() {
    for (const auto& one : replies_->take()) {
        Peer* const peer = server_.places.find(one.client);
        if (peer == nullptr || !take_deferred(*peer, one.id)) continue;
        try {
            (void)answer(*peer, one.id, one.outcome, one.payload);
        } catch (const std::exception& error) {
            server_.clients.lose(*peer, error);
        }
        // What is said to it goes when it is looked at.
        if (peer->line.network() != nullptr) server_.turns.tell(*peer);
    }
}

// --- answers to several requests of one message

std::byte* Answers::place_in_next_batch(Peer& peer, std::uint64_t id, std::size_t size) {
    send_batch();
    if (size > longest_entry) return nullptr;
    std::span<std::byte> room;
    const Status status = peer.ring().claim_batch(batch_bytes(size), room);
    if (status != Status::ok) return nullptr;
    server_.batch.open(room, id,
                       peer.session.resumes() ? std::nullopt
                                              : std::optional<std::size_t>{std::min<std::uint64_t>(
                                                    peer.max_answer, longest_short)});
    return server_.batch.place_for(size);
}

void Answers::commit_batch() noexcept {
    BatchWriter& batch = server_.batch;
    if (!batch.is_open()) return;
    if (batch.is_empty()) return batch.drop();
    const std::size_t size = batch.close({.id = batch.first(),
                                          .kind = SessionKind::answer_batch,
                                          .limit_us = served_->ring().say_position()});
    // That the connection has ended is found by the next look.
    (void)served_->ring().commit_batch(size);
}

void Answers::send_batch() {
    commit_batch();
    sent(*served_);
}

Answers::Batch::~Batch() {
    if (is_there()) answers_->commit_batch();
    answers_->server_.batch.drop();
    answers_->served_ = nullptr;
}

// --- answers that wait for room

void Answers::clog(Peer& peer) {
    if (peer.has_ring()) server_.rest.activate(peer);
    server_.counts.large += peer.line->count_announced();
    if (!peer.is_clogged) {
        peer.is_clogged = true;
        if (!peer.line->is_clear()) ++server_.counts.kept_back;
        peer.flushed = {peer.line->flushed_bytes(), base::Clock::now()};
        clogged_.push_back(peer.id.place);
    }
    peer.owed_part.set_anyhow(peer.line->owed_bytes());
    const bool is_over_budget = server_.crowd->held()->is_full();
    if (!peer.is_paused &&
        (peer.line->waiting_bytes() > server_.options.tuning.max_waiting_bytes || is_over_budget)) {
        if (is_over_budget) ++server_.counts.over_budget;
        peer.is_paused = true;
        server_.turns.mailboxes().leave_out(peer.id.place);
    }
}

bool Answers::has_paused() {
    return std::any_of(clogged_.begin(), clogged_.end(), [&](std::uint32_t place) {
        const Peer& peer = server_.places[place];
        return peer.line.has_value() && peer.is_paused;
    });
}

bool Answers::may_go_on(const Peer& peer) const noexcept {
    return peer.line->owed_bytes() == 0 ||
           (peer.line->waiting_bytes() <= server_.options.tuning.max_waiting_bytes / 2 &&
            !server_.crowd->held()->is_full());
}

Status Answers::flush(Peer& peer, bool& has_moved) {
    if (!peer.line.has_value()) return Status::ok;  // it has left meanwhile
    Status status = peer.line->flush_all();
    peer.owed_part.set_anyhow(peer.line->owed_bytes());
    if (peer.line->flushed_bytes() != peer.flushed.at) {
        has_moved = true;
        peer.flushed = {peer.line->flushed_bytes(), base::Clock::now()};
    } else if (status == Status::full &&
               base::Clock::now() - peer.flushed.since > server_.options.patience) {
        server_.clients.misbehaved(peer, "it does not read its answers");
        return Status::ok;
    }
    if (status == Status::full && peer.is_paused && !peer.has_ring()) {
        // No look tells of its end, as nothing is taken from it.
        const Status end = peer.line.network()->end_of_peer();
        if (end != Status::ok) status = end;
    }
    if (peer.is_paused && may_go_on(peer)) {
        peer.is_paused = false;
        if (!peer.has_ring()) {
            server_.turns.tell(peer);
        } else {
            server_.turns.look_again(peer);
        }
    }
    return status;
}

bool Answers::flush() {
    bool has_moved = false;
    for (std::size_t i = 0; i < clogged_.size();) {
        Peer& peer = server_.places[clogged_[i]];
        const Status status = flush(peer, has_moved);
        if (status == Status::full) {
            ++i;
            continue;
        }
        peer.is_clogged = false;
        clogged_[i] = clogged_.back();
        clogged_.pop_back();
        if (status != Status::ok) server_.clients.part(peer, status == Status::closed);
    }
    if (has_moved) nap_ = std::chrono::nanoseconds{0};
    return has_moved;
}

std::chrono::nanoseconds Answers::next_nap() noexcept {
    nap_ = std::clamp(2 * nap_, shortest_nap, longest_nap);
    return nap_;
}

}  // namespace millrace::message
