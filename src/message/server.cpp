// Server: the public calls, and how requests are found, taken and answered at once.
#include "millrace/message/server.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/yielding.hpp"
#include "protection.hpp"
#include "server_state.hpp"

namespace millrace::message {

using base::Status;

// --- Request

namespace {
[[nodiscard]] Server::State& state_of(detail::Serving* server) noexcept {
    return *static_cast<Server::State*>(server);
}
[[nodiscard]] Server::State::Peer& peer_of(void* peer) noexcept {
    return *static_cast<Server::State::Peer*>(peer);
}
}  // namespace

struct detail::RequestAccess {
    static Request make(Server::State& server, Server::State::Peer& peer,
                        const SessionHeader& header, std::span<const std::byte> payload) noexcept {
        return {&server, &peer, peer.id, header, payload};
    }
    [[nodiscard]] static Server::State& server_of(const Request& request) noexcept {
        return state_of(request.server_);
    }
    [[nodiscard]] static bool is_answered(const Request& request) noexcept {
        return request.stage_ == Request::Stage::answered;
    }
    [[nodiscard]] static Server::State::Peer& peer_of(const Request& request) noexcept {
        return *static_cast<Server::State::Peer*>(request.peer_);
    }
    static void mark_as_put_off(Request& request, std::uint64_t taken_at) noexcept {
        request.was_put_off_ = true;
        request.taken_at_ = taken_at;
    }
};

// What throws for want of memory leaves the request open, so that its client is told otherwise.

Status Request::answer_alone(std::span<const std::byte> payload) {
    Server::State& server = state_of(server_);
    Server::State::Peer& peer = peer_of(peer_);
    if (!peer.is_plain || payload.size() > peer.max_answer) [[unlikely]]
        return note_answered(server.answer(peer, header_.id, Outcome::ok, payload));
    ++server.counts.answers;
    const SessionHead head = pack(SessionHeader{.id = header_.id, .kind = SessionKind::answer});
    stage_ = Stage::answered;
    if (peer.line.ring()->try_send(head, payload) == Status::ok) [[likely]]
        return Status::ok;
    stage_ = Stage::open;
    return note_answered(server.give(peer, head, payload));
}

Status Request::answer_in_batch(std::span<const std::byte> payload) {
    if (stage_ == Stage::answered) return Status::closed;
    Server::State& server = state_of(server_);
    Server::State::Peer& peer = peer_of(peer_);
    if (!peer.resumes && payload.size() <= peer.max_answer) [[likely]] {
        std::byte* const place = server.place_in_batch(peer, header_.id, payload.size());
        if (place != nullptr) [[likely]] {
            copy_any(place, payload.data(), payload.size());
            ++server.counts.answers;
            server.add_to_batch(header_.id, Outcome::ok, payload.size());
            return note_answered(Status::ok);
        }
    }
    return note_answered(server.answer(peer, header_.id, Outcome::ok, payload));
}

Status Request::fail(std::string_view why) {
    if (stage_ == Stage::answered) return Status::closed;
    return note_answered(
        state_of(server_).answer(peer_of(peer_), header_.id, Outcome::failed, bytes_of_text(why)));
}

Status Request::claim(std::size_t size, std::span<std::byte>& room) {
    if (stage_ == Stage::answered) return Status::closed;
    Server::State& server = state_of(server_);
    Server::State::Peer& peer = peer_of(peer_);
    if (size > peer.max_answer) {
        (void)note_answered(server.answer(peer, header_.id, Outcome::too_large, {}));
        return Status::too_large;
    }
    is_kept_ = true;
    is_large_ = false;
    if (!peer.resumes) {
        if (stage_ != Stage::open) {
            std::byte* const place = server.place_in_batch(peer, header_.id, size);
            stage_ = place != nullptr ? Stage::claimed_in_batch : Stage::open_in_batch;
            if (place != nullptr) {
                room = {place, size};
                return Status::ok;
            }
            server.send_answers();
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
    server.scratch.resize(size);
    room = server.scratch;
    return Status::ok;
}

Status Request::commit(std::size_t size) {
    const bool is_laid = stage_ == Stage::claimed_in_batch;
    Server::State& server = state_of(server_);
    Server::State::Peer& peer = peer_of(peer_);
    if (is_laid) {
        ++server.counts.answers;
        server.add_to_batch(header_.id, Outcome::ok, size);
        return note_answered(Status::ok);
    }
    const SessionHead head = pack(SessionHeader{.id = header_.id, .kind = SessionKind::answer});
    if (is_large_) {
        const Status status = note_answered(peer.line->commit_large(head, size));
        ++server.counts.answers;
        server.sent(peer);
        return status == Status::ok ? Status::ok : Status::closed;
    }
    if (is_kept_) {
        return note_answered(
            server.answer(peer, header_.id, Outcome::ok, std::span{server.scratch}.first(size)));
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
    Reply reply{server.replies, client_, header_.id};
    stage_ = Stage::answered;
    server.note_deferred(peer_of(peer_), header_.id);
    ++server.counts.deferred;
    return reply;
}

Status Request::put_off() {
    if (stage_ == Stage::answered) return Status::closed;
    if (was_put_off_ || !state_of(server_).put_off(peer_of(peer_), header_, payload_, taken_at_)) {
        return Status::full;
    }
    stage_ = Stage::answered;
    return Status::ok;
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

std::uint64_t Request::put_off_at() const noexcept {
    return was_put_off_ ? state_of(server_).handed_put_off_at : 0;
}

// --- serving

[[gnu::always_inline]] inline void Server::State::serve(Peer& peer, const SessionHeader& header,
                                                        std::span<const std::byte> payload,
                                                        const detail::HandlerRef& handler) {
    peer.taken = header.id;
    if (peer.resumes) [[unlikely]]
        forget_acknowledged(peer, header.id - header.behind);
    execute(peer, header, payload, handler);
}

[[gnu::always_inline]] inline void Server::State::hand_over(Peer& peer, std::uint64_t id,
                                                            Request& request,
                                                            const detail::HandlerRef& handler) {
    handler.call(handler.handler, request);
    if (!detail::RequestAccess::is_answered(request)) [[unlikely]]
        (void)answer(peer, id, Outcome::dropped, {});
}

[[gnu::always_inline]] inline void Server::State::execute(Peer& peer, const SessionHeader& header,
                                                          std::span<const std::byte> payload,
                                                          const detail::HandlerRef& handler) {
    if (is_draining || counts.pending >= options.max_pending) [[unlikely]]
        return decline(peer, header.id);
    ++counts.requests;
    Request request = detail::RequestAccess::make(*this, peer, header, payload);
    hand_over(peer, header.id, request, handler);
}

[[gnu::noinline, gnu::cold]] void Server::State::take_fetched(Peer& peer,
                                                              const SessionHeader& header,
                                                              std::span<const std::byte> payload,
                                                              const detail::HandlerRef& handler) {
    if (peer.resumes && std::erase(peer.unread, header.id) == 0) return;  // it was answered
    switch (peer.line->arrival()) {
        case Lane::Arrival::given_up: (void)answer(peer, header.id, Outcome::cancelled, {}); return;
        case Lane::Arrival::no_memory:
            ++counts.overloaded;
            (void)answer(peer, header.id, Outcome::overloaded, {});
            return;
        default: execute(peer, header, payload, handler);
    }
}

[[gnu::always_inline]] inline std::size_t Server::State::visit(Peer& peer,
                                                               const detail::HandlerRef& handler,
                                                               std::size_t budget) {
    if (!peer.is_plain || peer.is_paused) [[unlikely]]
        return visit_otherwise(peer, handler, budget);
    if (!peer.is_active) [[unlikely]]
        activate(peer);
    if (options.gather_turns > 1) [[unlikely]]
        gather(peer);
    std::span<const std::byte> message;
    SessionHeader header;
    std::span<const std::byte> payload;
    if (!peer.line.ring()->finds_whole(message) || !parse_request(message, header, payload) ||
        header.id != peer.taken + 1 || header.behind >= peer.window || header.behind >= header.id)
        [[unlikely]]
        return visit_otherwise(peer, handler, budget);
    serve(peer, header, payload, handler);
    if (!peer.is_plain) [[unlikely]]
        return 1;
    RingLane& ring = *peer.line.ring();
    ring.pass_at_leisure();
    if (!peer.is_paused) [[likely]]
        mailboxes.served(peer.id.place, ring.awaited());
    return 1;
}

bool Server::State::put_off(Peer& peer, const SessionHeader& header,
                            std::span<const std::byte> payload, std::uint64_t taken_at) {
    // What waits by itself leaves place for others.
    if (payload.size() > options.max_put_off_bytes - waiting_bytes ||
        counts.pending >= options.max_pending / 2) {
        return false;
    }
    waiting.push_back({.client = peer.id,
                       .header = header,
                       .payload = {payload.begin(), payload.end()},
                       .taken_at = taken_at,
                       .at = base::ticks()});
    waiting_bytes += payload.size();
    ++put_off_now;
    ++counts.put_off;
    // As one that was deferred, which its client may take back.
    note_deferred(peer, header.id);
    return true;
}

std::size_t Server::State::serve_put_off(const detail::HandlerRef& handler, std::size_t requests) {
    others_served += requests - put_off_now;
    put_off_now = 0;
    std::size_t due = requests == 0 ? 1 : others_served / Request::others_before;
    others_served = requests == 0 ? 0 : others_served % Request::others_before;
    std::size_t served = 0;
    for (; due != 0 && serve_next_put_off(handler); --due) ++served;
    if (waiting.empty()) others_served = 0;
    return served;
}

void Server::State::serve_put_off_one(Peer& peer, const PutOff& one,
                                      const detail::HandlerRef& handler) {
    if (is_draining) return decline(peer, one.header.id);
    if (options.gather_turns > 1 && peer.line.ring() != nullptr) gather(peer);
    handed_put_off_at = one.at;
    Request request = detail::RequestAccess::make(*this, peer, one.header, one.payload);
    detail::RequestAccess::mark_as_put_off(request, one.taken_at);
    hand_over(peer, one.header.id, request, handler);
}

bool Server::State::serve_next_put_off(const detail::HandlerRef& handler) {
    while (!waiting.empty()) {
        const PutOff one = std::move(waiting.front());
        waiting.pop_front();
        waiting_bytes -= one.payload.size();
        Peer* const peer = find(one.client);
        const std::uint64_t id = one.header.id;
        if (peer == nullptr || !take_deferred(*peer, id)) continue;
        try {
            serve_put_off_one(*peer, one, handler);
        } catch (const std::exception& error) {
            lose(*peer, error);
        }
        if (peer->line.network() != nullptr) tell(*peer);
        return true;
    }
    return false;
}

std::size_t Server::State::turn(const detail::HandlerRef& handler, std::size_t budget) {
    // Whoever serves by itself polls; when to yield is for rest() to say.
    const base::WaitsByPolicy here;
    if (is_nested) replies->wake();
    if (is_nested || must_look) look_at_kernel();
    if (replies->has_some()) [[unlikely]]
        take_replies();
    if (shared != nullptr || !by_send.empty()) look_for_sends();
    if (!joining.empty()) [[unlikely]]
        look_for_hellos();
    if (by_network != 0 && hosts_are_due()) [[unlikely]]
        look_at_hosts();
    if (!fetching.empty()) [[unlikely]]
        (void)look_for_fetched();
    all_had_their_turn = false;
    std::size_t requests = options.group_clients == 0 ? lap(handler, budget, 0, ~std::size_t{0})
                                                      : lap_of_groups(handler, budget);
    if (requests > HotPlaces::most) hot.forget();
    if (!waiting.empty()) [[unlikely]]
        requests += serve_put_off(handler, requests);
    all_had_their_turn = requests == 0 && budget != 0;
    if (!clogged.empty()) [[unlikely]]
        (void)flush_clogged();
    if ((!gathering.empty() || (by_network != 0 && options.gather_turns > 1)) &&
        (requests == 0 || ++gathered_turns >= options.gather_turns)) [[unlikely]]
        post_gathered();
    if (requests == 0 ? aside_is_due() : (++laps & 63) == 0) look_aside();
    // Behind the requests, which do not wait for the clock.
    if (kernel_is_due()) look_at_kernel();
    if (is_nested) keep_loop(requests != 0);
    return requests;
}

std::size_t Server::State::lap(const detail::HandlerRef& handler, std::size_t budget,
                               std::size_t from, std::size_t to) {
    // One lap, from behind the one who was served last. Each look is a new one: so between two of a
    // client's turns come all others whose message was there.
    std::size_t requests = 0;
    std::size_t expected = 0;
    const bool tells = handler.expect != nullptr && options.look_ahead != 0;
    const std::size_t begin = std::clamp(cursor, from, std::max(from, std::min(to, in_use)));
    bool is_second = false;
    std::size_t end = 0;
    const auto next_from = [&](std::size_t place) {
        end = std::min(is_second ? begin : to, in_use);
        return place < end ? mailboxes.next(place, end) : end;
    };
    const bool is_here = std::exchange(is_found, false) && begin == cursor && begin < in_use;
    if (is_here) end = std::min(to, in_use);
    for (std::size_t place = is_here ? begin : next_from(begin); requests != budget;) {
        if (place == end) {
            if (is_second) break;
            is_second = true;
            expected = 0;
            place = next_from(from);
            continue;
        }
        if (tells) {
            if (expected == 0) expected = expect(place, end, handler);
            --expected;
        }
        try {
            requests += visit(*peers[place], handler, budget - requests);
        } catch (const std::exception& error) {
            lose(*peers[place], error);
        }
        cursor = ++place;
        if (requests != budget) place = next_from(place);
    }
    return requests;
}

std::size_t Server::State::visit_otherwise(Peer& peer, const detail::HandlerRef& handler,
                                           std::size_t budget) {
    mailboxes.take(peer.id.place);
    // By a byte, places may be found of clients who have left, or who are not to be served.
    if (!peer.line.has_value() || peer.is_paused) [[unlikely]]
        return 0;
    RingLane* const ring = peer.line.ring();
    if (ring != nullptr) [[likely]] {
        activate(peer);
        if (options.gather_turns > 1) [[unlikely]]
            gather(peer);
    }
    std::span<const std::byte> message;
    std::size_t requests = 0;
    if (peer.is_plain && peer.batches && ring->look_at_front(message) == RingLane::Front::message) {
        ring->ask_for_place();
        SessionHeader header;
        std::span<const std::byte> entries;
        if (parse_here(message, header, entries) && header.kind == SessionKind::request_batch) {
            const Taken taken = take_batches(peer, header, entries, handler, budget, requests);
            if (taken != Taken::none && !peer.is_paused) looked(peer);
            return requests;
        }
    }
    const Status status = peer.line.look(message);
    switch (status) {
        case Status::ok: {
            const std::uint32_t generation = peer.id.generation;
            const Taken taken = take(peer, message, handler, budget, requests);
            if (taken == Taken::none) return requests;
            if (peer.id.generation != generation || !peer.line.has_value()) [[unlikely]]
                return requests;
            if (taken == Taken::message) peer.line.pass();
            break;
        }
        case Status::empty: count_vain_look(peer); break;
        case Status::too_large: {
            SessionHeader header;
            std::span<const std::byte> payload;
            if (peer.line->arrival() == Lane::Arrival::no_memory) {
                (void)parse(message, header, payload);
                take_fetched(peer, header, payload, handler);
                peer.line.pass();
                break;
            }
            const bool is_parsed = parse(message, header, payload);
            // Sent again after a resume, where there was memory for it the first time.
            const bool is_again =
                peer.line->exceeds_budget() && peer.resumes && header.id <= peer.taken;
            if (!is_parsed || header.kind != SessionKind::request ||
                (!is_again && header.id != peer.taken + 1)) {
                misbehaved(peer, "a message that is too large, and no request");
                return 0;
            }
            peer.taken = std::max(peer.taken, header.id);
            if (is_again && std::erase(peer.unread, header.id) == 0) {
                repeat(peer, header.id);
            } else if (peer.line->exceeds_budget()) {
                ++counts.over_budget;
                ++counts.overloaded;
                (void)answer(peer, header.id, Outcome::overloaded, {});
            } else {
                (void)answer(peer, header.id, Outcome::too_large, {});
            }
            peer.line.pass();
            break;
        }
        case Status::closed: part(peer, true); return 0;
        default: part(peer, false); return 0;
    }
    if (peer.is_paused) [[unlikely]]
        return requests;
    looked(peer);
    return requests;
}

void Server::State::looked_at_network(Peer& peer) {
    if (peer.line.network()->has_more()) {
        lanes_have_more = true;
        return tell(peer);
    }
    mailboxes.leave_out(peer.id.place);
    // What it has to be told goes together, now that there is nothing more to answer.
    switch (peer.line->flush()) {
        case Status::ok: return;
        case Status::full: return clog(peer);
        default: return tell(peer);  // it has ended, which a look finds
    }
}

bool Server::State::hosts_are_due() noexcept {
    if (is_nested) return false;  // the hub has looked
    const bool has_work = std::exchange(lanes_have_more, false);
    if (!has_work && (hosts_are_busy || by_ring == 0)) return true;
    return base::ticks() - hosts_looked_at >= hosts_every;
}

void Server::State::look_at_hosts() {
    told.clear();
    beside_is_busy = false;
    for (const auto& host : hosts.all) host->look(told);
    for (const std::uint32_t place : told) {
        if (peers[place]->line.has_value()) tell(*peers[place]);
    }
    hosts_are_busy = !told.empty() || beside_is_busy;
    beside_was_busy |= beside_is_busy;
    hosts_looked_at = base::ticks();
}

Server::State::Taken Server::State::take(Peer& peer, std::span<const std::byte> message,
                                         const detail::HandlerRef& handler, std::size_t budget,
                                         std::size_t& requests) {
    SessionHeader header;
    std::span<const std::byte> payload;
    if (!parse(message, header, payload)) [[unlikely]] {
        misbehaved(peer, "a message that is none of a session");
        return Taken::none;
    }
    if (header.kind == SessionKind::request && peer.phase == Phase::joined) [[likely]] {
        if (header.behind >= peer.window || header.behind >= header.id) [[unlikely]] {
            misbehaved(peer, "a request outside of its window");
            return Taken::none;
        }
        if (header.id == peer.taken + 1) [[likely]] {
            requests = 1;
            serve(peer, header, payload, handler);
            return Taken::message;
        }
        if (peer.line->arrival() != Lane::Arrival::none) {
            requests = 1;
            take_fetched(peer, header, payload, handler);
            return Taken::message;
        }
        if (header.id > peer.taken || !peer.resumes) {
            misbehaved(peer, "a request out of its order");
            return Taken::none;
        }
        if (!peer.line->is_fetching(header.id) && std::erase(peer.unread, header.id) != 0) {
            // Announced before the session was resumed, and not announced again.
            requests = 1;
            execute(peer, header, payload, handler);
            return Taken::message;
        }
        repeat(peer, header.id);
        return Taken::message;
    }
    if (header.kind == SessionKind::request_by_read && peer.phase == Phase::joined) {
        return take_announced(peer, header, payload) ? Taken::message : Taken::none;
    }
    if (header.kind == SessionKind::request_batch && peer.phase == Phase::joined && peer.batches &&
        peer.line->arrival() == Lane::Arrival::none) {
        return take_batches(peer, header, payload, handler, budget, requests);
    }
    if (header.kind == SessionKind::cancel && peer.phase == Phase::joined) {
        cancel(peer, header.id);
        return Taken::message;
    }
    if (header.kind == SessionKind::moved && peer.phase == Phase::joined) {
        settle(peer);
        return Taken::message;
    }
    if (header.kind == SessionKind::hello && peer.phase == Phase::joining) {
        const std::optional<Hello> hello = parse_hello(payload);
        if (hello.has_value()) {
            join(peer, *hello);
            return Taken::message;
        }
    }
    if (peer.phase == Phase::refused) return Taken::message;
    misbehaved(peer, "a message that is not allowed now");
    return Taken::none;
}

bool Server::State::serve_batch(Peer& peer, const SessionHeader& head,
                                std::span<const std::byte> entries,
                                const detail::HandlerRef& handler, std::size_t most,
                                std::size_t& requests) {
    const std::uint64_t count = head.procedure;
    const std::uint64_t done = peer.taken + 1 - head.id;
    // What was served of it in earlier visits.
    const std::size_t begun = std::exchange(peer.batch_at, 0);
    if (done >= count || (done == 0) != (begun == 0) || begun > entries.size() ||
        count > most_in_batch || head.behind >= head.id || head.behind + count > peer.window ||
        !peer.line.ring()->hear_position(head.limit_us)) {
        return false;
    }
    const std::uint64_t last = head.id + count - 1;
    if (peer.resumes) forget_acknowledged(peer, head.id - head.behind);
    const std::byte* const begin = entries.data();
    Request request = detail::RequestAccess::make(*this, peer, {.behind = head.behind}, {});
    const std::uint64_t before = peer.taken;
    detail::RequestRun run{.at = begin + begun,
                           .end = begin + entries.size(),
                           .taken = before,
                           .until = std::min(last, before + (most - requests)),
                           .is_paused = &peer.is_paused,
                           .most_pending = is_draining ? 0 : options.max_pending};
    const std::uint32_t generation = peer.id.generation;
    const auto note = [&] {
        if (peer.id.generation != generation) return;
        peer.taken = run.taken;
        if (run.is_sound && run.taken != last) {
            peer.batch_at = static_cast<std::size_t>(run.at - begin);
        }
    };
    try {
        handler.serve(handler.handler, request, run);
    } catch (...) {
        // There was no memory to keep an answer, say. The next visit goes on behind what was
        // served.
        note();
        if (peer.id.generation == generation && peer.line.has_value()) {
            if (run.taken == last) peer.line.pass();
            mailboxes.remind(peer.id.place);
        }
        throw;
    }
    note();
    requests += run.taken - before;
    return run.is_sound && (run.taken != last || run.at == run.end);
}

Server::State::Taken Server::State::take_batches(Peer& peer, SessionHeader head,
                                                 std::span<const std::byte> entries,
                                                 const detail::HandlerRef& handler,
                                                 std::size_t budget, std::size_t& requests) {
    const std::size_t most = std::min<std::size_t>(budget, requests_of_a_visit);
    const Answering answering{*this, peer};
    RingLane& ring = *peer.line.ring();
    std::span<const std::byte> message;
    // What its client laid where the ring ended goes on where it begins: it is one batch for it.
    do {
        const bool is_sound = serve_batch(peer, head, entries, handler, most, requests);
        if (!answering.is_there()) [[unlikely]]
            return Taken::none;
        if (!is_sound) [[unlikely]] {
            send_answers();
            misbehaved(peer, "several requests that are not what they say of themselves");
            return Taken::none;
        }
        if (peer.batch_at != 0) break;
        ring.pass_batch();
    } while (requests != most && !peer.is_paused &&
             ring.look_at_front(message) == RingLane::Front::message &&
             parse_here(message, head, entries) && head.kind == SessionKind::request_batch);
    send_answers();
    return Taken::passed;
}

// --- Server

Server::Server(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

const connect::Address& Server::address() const noexcept { return state_->listener.address(); }

void Server::threw(Request& request, std::string_view why) noexcept {
    ++detail::RequestAccess::server_of(request).counts.failed;
    try {
        (void)request.fail(why);
    } catch (const std::exception&) {
        // No memory for the text: serve() finds the request unanswered.
    }
}

void Server::decline(Request& request) {
    State& server = detail::RequestAccess::server_of(request);
    server.decline(detail::RequestAccess::peer_of(request), request.id());
}

void Server::drop(Request& request) {
    State& server = detail::RequestAccess::server_of(request);
    (void)server.answer(detail::RequestAccess::peer_of(request), request.id(), Outcome::dropped,
                        {});
}

std::size_t Server::turn_by(detail::HandlerRef handler, std::size_t budget) {
    state_->check_process("turn a message server");
    return state_->turn(handler, budget);
}

Status Server::serve_by(detail::HandlerRef handler, const base::Deadline& deadline) {
    state_->check_process("serve");
    constexpr unsigned turns_between = 63;
    state_->check_thread("serve the clients of a message server");
    const auto post_at_end = [](State* server) { server->post_gathered(); };
    const std::unique_ptr<State, decltype(post_at_end)> posting{state_.get(), post_at_end};
    for (unsigned turns = 0;; ++turns) {
        if (state_->stopping.load(std::memory_order_acquire)) {
            state_->stopping.store(false, std::memory_order_relaxed);
            return Status::closed;
        }
        const bool was_busy = state_->turn(handler, std::size_t{1024}) != 0;
        // A rest looks at the deadline itself.
        if ((turns & turns_between) == 0) {
            if (deadline.cancelled()) return Status::cancelled;
            if (deadline.expired()) return Status::timed_out;
        }
        if (was_busy) continue;
        const Status status = state_->rest(deadline);
        if (status != Status::ok) return status;
    }
}

Status Server::rest(const base::Deadline& deadline) {
    state_->check_process("rest in a message server");
    return state_->rest(deadline);
}

void Server::stop() noexcept {
    state_->stopping.store(true, std::memory_order_seq_cst);
    state_->hub.stop();
}

void Server::on_unwanted(std::function<void(ClientId, std::uint64_t)> call) {
    state_->unwanted = std::move(call);
}

void Server::on_moved(std::function<Knowledge(ClientId)> leaves,
                      std::function<void(ClientId, Knowledge)> comes) {
    state_->leaves = std::move(leaves);
    state_->comes = std::move(comes);
}

void Server::serve_beside(int descriptor, std::function<bool()> look) {
    state_->check_thread("serve something beside a message server's clients");
    state_->serve_beside(descriptor, std::move(look));
}

void Server::adopt() noexcept { state_->hub.adopt(); }

Status Server::drain(const base::Deadline& deadline) {
    begin_to_drain();
    base::NapParker nap;
    return base::wait_until([this] { return turn_to_drain(); }, deadline, state_->options.wait,
                            nap);
}

void Server::check_thread(const char* attempted) const { state_->check_thread(attempted); }

void Server::begin_to_drain() {
    State& server = *state_;
    server.check_thread("drain a message server");
    server.is_draining = true;
    server.options.group_clients = 0;  // a lap is of all from here on
    server.laps_of_drain = 0;
}

bool Server::turn_to_drain() {
    State& server = *state_;
    server.check_process("drain a message server");
    const auto nobody = [](Request&) {};
    const detail::HandlerRef handler = erase(nobody);
    // Whoever calls this may sleep before the next time, and shall where others have to do more.
    for (int laps = 64; laps != 0; --laps) {
        const std::uint64_t before = server.laps_of_drain;
        if (server.drain_by_a_lap(handler)) return true;
        if (server.laps_of_drain == before) break;
    }
    return false;
}

bool Server::State::drain_by_a_lap(const detail::HandlerRef& handler) {
    // A lap takes a message of each client, who has no more requests under way than its window, and
    // may have taken each of them back: behind so many, all that was here before is taken. From
    // then on nothing is, so that nobody holds it up who goes on asking.
    std::uint64_t window = 0;
    for (const auto& peer : peers) {
        if (peer->line.has_value()) window = std::max<std::uint64_t>(window, peer->window);
    }
    const bool takes = laps_of_drain <= 2 * window;
    look_at_kernel();  // for clients that are on their way here
    (void)turn(handler, takes ? ~std::size_t{0} : 0);
    // What it answered has to be under way before this may be the last turn.
    post_gathered();
    const auto among = [&](const std::vector<std::uint32_t>& places, auto&& is_so) {
        return std::any_of(places.begin(), places.end(), [&](std::uint32_t place) {
            return peers[place]->line.has_value() && is_so(*peers[place]);
        });
    };
    if (counts.pending != 0 ||
        among(fetching, [](const Peer& peer) { return peer.line->wants_fetched(); })) {
        return false;
    }
    if (!among(clogged, [](const Peer& peer) { return peer.is_paused; })) ++laps_of_drain;
    return clogged.empty() && !(takes && has_message());
}

Status Server::close(const base::Deadline& deadline) {
    const Status status = drain(deadline);
    State& server = *state_;
    for (const auto& peer : server.peers) {
        if (peer->line.has_value()) peer->line->begin_close();
    }
    for (const auto& peer : server.peers) {
        if (peer->line.has_value()) {
            server.unwatch(*peer);
            std::string why;
            // Where the client's byte is registered. It stays until the goodbye is said: a byte
            // that is written meanwhile would cost the client its connection.
            const auto endpoint = peer->line->link().shared_endpoint();
            (void)peer->line->close(deadline, why);
            server.mailboxes.withdraw(peer->id.place);
            peer->line.reset();
        }
        // The byte of one that has moved may be written to still, and is given back at the end.
        if (peer->phase != State::Phase::vacant && peer->phase != State::Phase::moved) {
            server.part(*peer, true);
        }
    }
    return status;
}

int Server::descriptor() {
    State& server = *state_;
    const int descriptor = server.hub.descriptor();
    if (!std::exchange(server.is_nested, true)) server.hub.post([] {});
    return descriptor;
}

ServerStats Server::stats() const noexcept {
    if (!state_->hub.is_current()) return state_->shown();
    state_->show();
    return state_->counts;
}

namespace {

[[nodiscard]] std::string requests_by_send(const ServerOptions& options) {
    if (!options.requests_by_send) return "requests by SEND are refused, as the program chose";
    const std::size_t slot = std::min(options.slot_bytes, options.ring_bytes);
    if (options.receives == Receives::own) {
        return fmt::format(
            "requests by SEND, of clients that choose it: into receives of each client's own, {} "
            "of {} bytes",
            receives_for(options.ring_bytes, slot), slot);
    }
    return fmt::format(
        "requests by SEND, of clients that choose it: into {} receives of {} bytes that all share, "
        "as the program trusts its clients: one that sends more than its credits leaves the others "
        "without; completions say who has written",
        options.shared_receives, slot);
}

}  // namespace

std::string Server::explain() const {
    const State& server = *state_;
    const bool is_shared = server.options.polling == Polling::shared;
    const bool by_rings = server.options.transports.has(connect::Transport::rc) && !is_shared;
    const bool dense = server.mailboxes.polling() == Polling::dense;
    std::string text = fmt::format(
        "message server at {}: {} of {} clients, by {}\npolling: {}, because {}; {}\n",
        server.listener.address().to_string(), server.counts.clients, server.options.max_clients,
        server.options.transports.to_string(),
        name_of(is_shared ? Polling::shared : server.mailboxes.polling()), server.why_polling,
        dense ? fmt::format("one byte of each client, scanned by {}", name_of(best_scan_kernel()))
              : std::string{"the place of each client's next message"});
    if (server.options.group_clients != 0) {
        text += fmt::format(
            "clients are served in groups of {}, each for {} µs at a time\n",
            server.options.group_clients,
            std::chrono::duration_cast<std::chrono::microseconds>(server.options.group_slice)
                .count());
    }
    for (const auto& host : server.hosts.all) text += host->explain() + '\n';
    if (server.options.transports.has_rdma()) {
        text += explain_protection(server.options, server.mailboxes.polling()) + '\n';
    }
    text += fmt::format(
        "answers of one client wait in up to {} bytes before its requests wait, and for {} ms "
        "before it is dropped; {} requests may be deferred",
        server.options.max_waiting_bytes,
        std::chrono::duration_cast<std::chrono::milliseconds>(server.options.patience).count(),
        server.options.max_pending);
    if (by_rings) {
        text += fmt::format(
            "\n{}; answers by SEND are {}", requests_by_send(server.options),
            server.options.answers_by_send ? "allowed" : "refused, as the program chose");
    }
    return text;
}

}  // namespace millrace::message
