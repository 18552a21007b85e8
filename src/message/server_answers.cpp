// What a server does with answers beyond sending them at once: later ones (Reply), those in place
// of a handler's, what is kept for a session that resumes, and what waits for room.
#include <chrono>
#include <cstdint>
#include <utility>

#include "server_state.hpp"

namespace millrace::message {

using base::Status;

// --- Reply

Reply::Reply() noexcept = default;
Reply::Reply(std::shared_ptr<detail::ReplyQueue> queue, ClientId client, std::uint64_t id)
    : queue_{std::move(queue)},
      given_{std::make_unique<Given>(Given{.client = client, .id = id})},
      client_{client} {}
Reply::Reply(Reply&&) noexcept = default;

Reply& Reply::operator=(Reply&& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(given_, other.given_);
    std::swap(client_, other.client_);
    return *this;
}

Reply::~Reply() {
    // What is given says that it was dropped, as nothing else was said.
    if (given_ != nullptr) (void)queue_->give(std::move(given_));
}

Status Reply::give(Outcome outcome, std::span<const std::byte> payload) {
    if (given_ == nullptr) return Status::closed;
    // It stays due if there is no memory.
    given_->payload.assign(payload.begin(), payload.end());
    given_->outcome = outcome;
    return std::exchange(queue_, nullptr)->give(std::move(given_));
}

Status Reply::answer(std::span<const std::byte> payload) { return give(Outcome::ok, payload); }
Status Reply::fail(std::string_view why) { return give(Outcome::failed, bytes_of_text(why)); }

// --- answers

void Server::State::decline(Peer& peer, std::uint64_t id) {
    if (is_draining) {
        (void)answer(peer, id, Outcome::draining, {});
        return;
    }
    ++counts.overloaded;
    (void)answer(peer, id, Outcome::overloaded, {});
}

void Server::State::repeat(Peer& peer, std::uint64_t id) {
    ++counts.repeated;
    const std::size_t index = id & peer.mask;
    if (peer.deferred[index] == id) return;  // it is under way, and so will be its answer
    const KeptAnswer& kept = peer.kept[index];
    const bool is_kept = kept.id == id;
    const SessionHead head =
        pack(SessionHeader{.id = id,
                           .kind = SessionKind::answer,
                           .outcome = is_kept ? kept.outcome : Outcome::expired});
    ++counts.answers;
    std::span<const std::byte> payload;
    if (is_kept) payload = kept.payload;
    (void)give(peer, head, payload);
}

void Server::State::note_deferred(Peer& peer, std::uint64_t id) noexcept {
    std::uint64_t& place = peer.deferred[id & peer.mask];
    // A client that lies about what it has no answer to loses that one's.
    if (place == 0) {
        ++peer.pending;
        ++counts.pending;
    }
    place = id;
}

bool Server::State::take_deferred(Peer& peer, std::uint64_t id) noexcept {
    if (peer.deferred.empty() || peer.deferred[id & peer.mask] != id) return false;
    peer.deferred[id & peer.mask] = 0;
    --peer.pending;
    --counts.pending;
    return true;
}

void Server::State::cancel(Peer& peer, std::uint64_t id) {
    if (peer.line->give_up(id)) return;               // and so is its answer, then
    if (id == 0 || !take_deferred(peer, id)) return;  // it is answered
    if (unwanted) unwanted(peer.id, id);
    (void)answer(peer, id, Outcome::cancelled, {});
}

Status Server::State::answer(Peer& peer, std::uint64_t id, Outcome outcome,
                             std::span<const std::byte> payload) {
    Status result = Status::ok;
    if (payload.size() > peer.max_answer) [[unlikely]] {
        payload = {};
        outcome = Outcome::too_large;
        result = Status::too_large;
    }
    ++counts.answers;
    if (peer.resumes) keep(peer, id, outcome, payload);
    if (!peer.line.has_value()) return result;  // it may come back
    const SessionHead head =
        pack(SessionHeader{.id = id, .kind = SessionKind::answer, .outcome = outcome});
    const Status given = give(peer, head, payload);
    return given == Status::ok ? result : given;
}

Status Server::State::give(Peer& peer, const SessionHead& head,
                           std::span<const std::byte> payload) {
    if (answered == &peer) [[unlikely]] {
        SessionHeader header;
        (void)parse(head, header);
        std::byte* const place = place_in_batch(peer, header.id, payload.size());
        if (place != nullptr) {
            copy_any(place, payload.data(), payload.size());
            add_to_batch(header.id, header.outcome, payload.size());
            return Status::ok;
        }
        send_answers();
    }
    if (peer.line->send(head, payload) != Status::ok) return Status::closed;
    sent(peer);
    return Status::ok;
}

namespace {
/// So that what is held of all is not counted for each answer.
[[nodiscard]] std::size_t in_steps(std::size_t kept_bytes) noexcept {
    constexpr std::size_t step = std::size_t{16} << 10;
    return (kept_bytes + step - 1) / step * step;
}
}  // namespace

void Server::State::forget(Peer& peer, KeptAnswer& kept) noexcept {
    peer.kept_bytes -= kept.payload.size();
    (void)peer.kept_part.set(in_steps(peer.kept_bytes));
    // All of them together keep no more memory than may be kept of answers.
    clear_keeping(kept.payload, options.max_kept_bytes / peer.kept.size());
    kept.id = 0;
}

void Server::State::keep(Peer& peer, std::uint64_t id, Outcome outcome,
                         std::span<const std::byte> payload) {
    KeptAnswer& kept = peer.kept[id & peer.mask];
    forget(peer, kept);
    if (payload.size() > options.max_kept_bytes - peer.kept_bytes) return;
    kept.payload.assign(payload.begin(), payload.end());
    if (!peer.kept_part.set(in_steps(peer.kept_bytes + payload.size()))) {
        ++counts.over_budget;
        return give_back(kept.payload);
    }
    kept.id = id;
    kept.outcome = outcome;
    peer.kept_bytes += payload.size();
}

void Server::State::forget_acknowledged(Peer& peer, std::uint64_t lowest) noexcept {
    for (; peer.acknowledged < lowest; ++peer.acknowledged) {
        KeptAnswer& kept = peer.kept[peer.acknowledged & peer.mask];
        if (kept.id == peer.acknowledged) forget(peer, kept);
    }
    // What an honest client was to have READ of it, and sends again if it was not, is not below.
    if (!peer.unread.empty()) [[unlikely]] {
        std::erase_if(peer.unread, [&](std::uint64_t id) { return id < lowest; });
    }
}

void Server::State::take_replies() {
    detail::ReplyQueue::List given = replies->take();
    while (const auto one = given.pop()) {
        Peer* const peer = find(one->client);
        if (peer == nullptr || !take_deferred(*peer, one->id)) continue;
        try {
            (void)answer(*peer, one->id, one->outcome, one->payload);
        } catch (const std::exception& error) {
            lose(*peer, error);
        }
        // What is said to it goes when it is looked at.
        if (peer->line.network() != nullptr) tell(*peer);
    }
}

void Server::State::clog(Peer& peer) {
    if (peer.line.ring() != nullptr) activate(peer);
    counts.large += peer.line->count_announced();
    if (!peer.is_clogged) {
        peer.is_clogged = true;
        if (!peer.line->is_clear()) ++counts.kept_back;
        peer.clogged_since = base::Clock::now();
        peer.clogged_at = peer.line->flushed_bytes();
        clogged.push_back(peer.id.place);
    }
    peer.owed_part.set_anyhow(peer.line->owed_bytes());
    const bool is_over_budget = crowd->held()->is_full();
    if (!peer.is_paused &&
        (peer.line->waiting_bytes() > options.max_waiting_bytes || is_over_budget)) {
        if (is_over_budget) ++counts.over_budget;
        peer.is_paused = true;
        mailboxes.leave_out(peer.id.place);
    }
}

bool Server::State::may_go_on(const Peer& peer) const noexcept {
    return peer.line->owed_bytes() == 0 ||
           (peer.line->waiting_bytes() <= options.max_waiting_bytes / 2 &&
            !crowd->held()->is_full());
}

bool Server::State::flush_clogged() {
    bool has_moved = false;
    for (std::size_t i = 0; i < clogged.size();) {
        Peer& peer = *peers[clogged[i]];
        Status status = Status::ok;  // it has left meanwhile
        if (peer.line.has_value()) {
            status = peer.line->flush_all();
            peer.owed_part.set_anyhow(peer.line->owed_bytes());
            if (peer.line->flushed_bytes() != peer.clogged_at) {
                has_moved = true;
                peer.clogged_at = peer.line->flushed_bytes();
                peer.clogged_since = base::Clock::now();
            } else if (status == Status::full &&
                       base::Clock::now() - peer.clogged_since > options.patience) {
                misbehaved(peer, "it does not read its answers");
                status = Status::ok;
            }
        }
        if (status == Status::full && peer.is_paused && peer.line.network() != nullptr) {
            // No look tells of its end, as nothing is taken from it.
            const Status end = peer.line.network()->end_of_peer();
            if (end != Status::ok) status = end;
        }
        const bool is_there = peer.line.has_value();
        if (is_there && peer.is_paused && !peer.leaving_for.has_value() && may_go_on(peer)) {
            peer.is_paused = false;
            if (peer.line.ring() == nullptr) {
                tell(peer);
            } else {
                mailboxes.looked(peer.id.place, peer.line.ring()->awaited());
                mailboxes.remind(peer.id.place);
            }
        }
        if (status == Status::full) {
            ++i;
            continue;
        }
        peer.is_clogged = false;
        clogged[i] = clogged.back();
        clogged.pop_back();
        if (is_there && status != Status::ok) part(peer, status == Status::closed);
    }
    if (has_moved) nap_for_room = std::chrono::nanoseconds{0};
    return has_moved;
}

}  // namespace millrace::message
