// What a handler may do with a request, and a Reply later.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

namespace {
[[nodiscard]] Server::State& state_of(detail::Serving* server) noexcept {
    return *static_cast<Server::State*>(server);
}
[[nodiscard]] Peer& peer_of(void* peer) noexcept { return *static_cast<Peer*>(peer); }
}  // namespace

// What throws for want of memory leaves the request open, so that its client gets another answer.

Status Request::answer_alone(std::span<const std::byte> payload) {
    Server::State& server = state_of(server_);
    Peer& peer = peer_of(peer_);
    if (!peer.is_plain || payload.size() > peer.max_answer) [[unlikely]]
        return note_answered(server.answering.answer(peer, header_.id, Outcome::ok, payload));
    ++server.counts.answers;
    const SessionHead head = pack(SessionHeader{.id = header_.id, .kind = SessionKind::answer});
    stage_ = Stage::answered;
    if (peer.ring().try_send(head, payload) == Status::ok) [[likely]]
        return Status::ok;
    stage_ = Stage::open;
    return note_answered(server.answering.give(peer, head, payload));
}

Status Request::answer_in_batch(std::span<const std::byte> payload) {
    if (stage_ == Stage::answered) return Status::closed;
    Server::State& server = state_of(server_);
    Peer& peer = peer_of(peer_);
    if (!peer.session.resumes() && payload.size() <= peer.max_answer) [[likely]] {
        std::byte* const place = server.place_in_batch(peer, header_.id, payload.size());
        if (place != nullptr) [[likely]] {
            copy_any(place, payload.data(), payload.size());
            ++server.counts.answers;
            server.add_to_batch(header_.id, Outcome::ok, payload.size());
            return note_answered(Status::ok);
        }
    }
    return note_answered(server.answering.answer(peer, header_.id, Outcome::ok, payload));
}

Status Request::fail(std::string_view why) {
    if (stage_ == Stage::answered) return Status::closed;
    return note_answered(state_of(server_).answering.answer(peer_of(peer_), header_.id,
                                                            Outcome::failed, bytes_of_text(why)));
}

Status Request::claim(std::size_t size, std::span<std::byte>& room) {
    if (stage_ == Stage::answered) return Status::closed;
    Server::State& server = state_of(server_);
    Peer& peer = peer_of(peer_);
    if (size > peer.max_answer) {
        (void)note_answered(server.answering.answer(peer, header_.id, Outcome::too_large, {}));
        return Status::too_large;
    }
    is_kept_ = true;
    is_large_ = false;
    if (!peer.session.resumes()) {
        if (stage_ != Stage::open) {
            std::byte* const place = server.place_in_batch(peer, header_.id, size);
            stage_ = place != nullptr ? Stage::claimed_in_batch : Stage::open_in_batch;
            if (place != nullptr) {
                room = {place, size};
                return Status::ok;
            }
            server.answering.send_batch();
        }
        const Status status = peer.line.claim(session_head_bytes + size, room);
        if (status == Status::closed || status == Status::peer_lost) return Status::closed;
        is_kept_ = status != Status::ok;
        is_large_ = status == Status::too_large && peer.line->claim_large(size, room);
        if (is_large_) return Status::ok;
    }
    if (!is_kept_) {
        room = room.subspan(session_head_bytes);
        return Status::ok;
    }
    room = server.answering.scratch(size);
    return Status::ok;
}

Status Request::commit(std::size_t size) {
    const bool is_laid = stage_ == Stage::claimed_in_batch;
    Server::State& server = state_of(server_);
    Peer& peer = peer_of(peer_);
    if (is_laid) {
        ++server.counts.answers;
        server.add_to_batch(header_.id, Outcome::ok, size);
        return note_answered(Status::ok);
    }
    const SessionHead head = pack(SessionHeader{.id = header_.id, .kind = SessionKind::answer});
    if (is_large_) {
        const Status status = note_answered(peer.line->commit_large(head, size));
        ++server.counts.answers;
        server.answering.sent(peer);
        return status == Status::ok ? Status::ok : Status::closed;
    }
    if (is_kept_) {
        return note_answered(server.answering.answer(peer, header_.id, Outcome::ok,
                                                     server.answering.scratched(size)));
    }
    stage_ = Stage::answered;
    // The same place as before: nothing was laid since.
    std::span<std::byte> room;
    (void)peer.line.claim(session_head_bytes + size, room);
    copy_two_words(room.data(), head);
    ++server.counts.answers;
    return peer.line.commit(session_head_bytes + size) == Status::ok ? Status::ok : Status::closed;
}

Reply Request::defer() {
    if (stage_ == Stage::answered) return {};
    Server::State& server = state_of(server_);
    // First what may throw.
    Reply reply{server.answering.replies(), client_, header_.id};
    stage_ = Stage::answered;
    server.answering.defer(peer_of(peer_), header_.id);
    ++server.counts.deferred;
    return reply;
}

Status detail::PuttingOff::put_off(Request& request) {
    if (request.stage_ == Request::Stage::answered) return Status::closed;
    if (request.was_put_off_ || !state_of(request.server_)
                                     .put_off.add(peer_of(request.peer_), request.header_,
                                                  request.payload_, request.taken_at_)) {
        return Status::full;
    }
    request.stage_ = Request::Stage::answered;
    return Status::ok;
}

std::uint64_t detail::PuttingOff::put_off_at(const Request& request) noexcept {
    return request.was_put_off_ ? state_of(request.server_).put_off.handed_at() : 0;
}

base::Deadline Request::deadline_from_taken() const noexcept {
    static const double ns_per_tick =
        1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
    // The counters of two cores may differ by a little.
    const auto ticks =
        std::max<std::int64_t>(0, static_cast<std::int64_t>(base::ticks() - taken_at_));
    const auto since = static_cast<std::int64_t>(static_cast<double>(ticks) * ns_per_tick);
    return base::Deadline::at(base::Clock::now() - std::chrono::nanoseconds{since} + limit());
}

// --- Reply

Reply::Reply() noexcept = default;
Reply::Reply(std::shared_ptr<detail::ReplyQueue> queue, ClientId client, std::uint64_t id)
    : queue_{std::move(queue)}, given_{Given{.client = client, .id = id}}, client_{client} {}
Reply::Reply(Reply&&) noexcept = default;

Reply& Reply::operator=(Reply&& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(given_, other.given_);
    std::swap(client_, other.client_);
    return *this;
}

Reply::~Reply() {
    // What is given says that it was dropped, as nothing else was said.
    if (is_due()) (void)queue_->give(std::move(given_));
}

Status Reply::give(Outcome outcome, std::span<const std::byte> payload) {
    if (!is_due()) return Status::closed;
    // It stays due if there is no memory.
    given_.front().payload.assign(payload.begin(), payload.end());
    given_.front().outcome = outcome;
    return std::exchange(queue_, nullptr)->give(std::move(given_));
}

Status Reply::answer(std::span<const std::byte> payload) { return give(Outcome::ok, payload); }
Status Reply::fail(std::string_view why) { return give(Outcome::failed, bytes_of_text(why)); }

}  // namespace millrace::message
