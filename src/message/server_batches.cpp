// What a server does for several clients, or several answers, at once: it tells the handler of the
// requests that come next, posts answers to one client together, and serves clients in groups.
#include <algorithm>
#include <cstddef>

#include "millrace/base/clock.hpp"
#include "server_state.hpp"

namespace millrace::message {

using base::Status;

std::size_t Server::State::expect(std::size_t place, std::size_t end,
                                  const detail::HandlerRef& handler) {
    std::size_t seen = 0;
    for (; seen != options.look_ahead && (place = mailboxes.next(place, end)) != end; ++place) {
        ++seen;
        Peer& peer = *peers[place];
        if (!peer.line.has_value() || peer.is_paused) continue;
        std::span<const std::byte> message;
        if (peer.line.network() != nullptr) {
            // What it says stays until a visit passes it, and so does an end.
            if (peer.line->look(message) != Status::ok) continue;
        } else if (peer.line.ring()->look_at_front(message) != RingLane::Front::message) {
            continue;  // one in pieces, say: its visit puts it together
        }
        SessionHeader header;
        std::span<const std::byte> payload;
        if (!parse(message, header, payload)) continue;
        if (header.kind == SessionKind::request) {
            handler.expect(handler.handler, header.procedure, payload);
        } else if (header.kind == SessionKind::request_batch) {
            // As many as its visit serves, if its budget lasts.
            detail::RequestRun run{.at = payload.data() + std::min(peer.batch_at, payload.size()),
                                   .end = payload.data() + payload.size()};
            EntryHead entry;
            for (std::size_t i = 0; i != requests_of_a_visit && run.take(entry, payload); ++i) {
                handler.expect(handler.handler, entry.what, payload);
            }
        }
    }
    // By flags, a client may have changed its word since the server found it.
    return std::max<std::size_t>(1, seen);
}

std::size_t Server::State::lap_of_groups(const detail::HandlerRef& handler, std::size_t budget) {
    const std::size_t size = options.group_clients;
    if (base::ticks() >= group_end_ticks) begin_group(group_begin + size);
    for (std::size_t seen = 0;; begin_group(group_begin + size)) {
        const std::size_t requests = lap(handler, budget, group_begin, group_begin + size);
        // Behind all groups, and the first one once more, there is nothing.
        if (requests != 0 || seen > in_use) return requests;
        seen += size;
    }
}

void Server::State::begin_group(std::size_t place) noexcept {
    group_begin = place < in_use ? place : 0;
    group_end_ticks = base::ticks() + slice_ticks;
}

std::byte* Server::State::place_in_next_batch(Peer& peer, std::uint64_t id, std::size_t size) {
    send_answers();
    if (size > longest_entry) return nullptr;
    std::span<std::byte> room;
    const Status status = peer.line.ring()->claim_batch(batch_bytes(size), room);
    if (status != Status::ok) return nullptr;
    answers.open(room, id,
                 peer.resumes ? std::nullopt
                              : std::optional<std::size_t>{
                                    std::min<std::uint64_t>(peer.max_answer, longest_short)});
    return answers.place_for(size);
}

void Server::State::commit_answers() noexcept {
    if (!answers.is_open()) return;
    if (answers.is_empty()) return answers.drop();
    const std::uint64_t first = answers.first();
    RingLane& ring = *answered->line.ring();
    const std::size_t size = answers.close(
        {.id = first, .kind = SessionKind::answer_batch, .limit_us = ring.say_position()});
    // That the connection has ended is found by the next look.
    (void)ring.commit_batch(size);
}

void Server::State::send_answers() {
    commit_answers();
    sent(*answered);
}

void Server::State::gather(Peer& peer) {
    if (peer.is_gathering) return;
    // First what may throw: who does not stand there is never posted for.
    gathering.push_back(peer.id.place);
    peer.line.ring()->gather();
    peer.is_gathering = true;
}

void Server::State::post_gathered() noexcept {
    gathered_turns = 0;
    for (const auto& host : hosts.all) host->post_gathered();
    for (const std::uint32_t place : gathering) {
        Peer& peer = *peers[place];
        peer.is_gathering = false;
        // It may have left, and another one may have come, for whom nothing was gathered.
        if (RingLane* const ring = peer.line.ring(); ring != nullptr) ring->post_gathered();
    }
    gathering.clear();
}

}  // namespace millrace::message
