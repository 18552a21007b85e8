// How a server's requests are taken, and given to the handler.
//
// The short way is that of the next request, whole, of a client by rings whose session does not
// resume (visit). Everything else goes by visit_any.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

#include "millrace/base/detail/yielding.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

namespace {
/// Requests that came several in a message, of one client, that are served before another client's
/// turn.
constexpr std::size_t requests_of_a_visit = 16;
}  // namespace

[[gnu::always_inline]] inline void Server::State::execute(Peer& peer, const SessionHeader& header,
                                                          std::span<const std::byte> payload,
                                                          const detail::HandlerRef& handler) {
    if (is_draining || has_too_many_pending()) [[unlikely]]
        return answering.decline(peer, header.id);
    ++counts.requests;
    Request request = detail::RequestAccess::make(*this, peer, header, payload);
    detail::hand_over(*this, peer, request, handler);
}

std::size_t Server::State::turn(const detail::HandlerRef& handler, std::size_t budget) {
    // A program that serves by itself polls; when to yield is for rest() to say.
    const base::WaitsByPolicy here;
    rest.begin_turn();
    if (answering.replies()->has_some()) [[unlikely]]
        answering.take_replies();
    arrivals.look();
    if (announced.has_some()) [[unlikely]]
        (void)announced.look();
    std::size_t requests = turns.lap(budget, [&](std::size_t place, std::size_t left) {
        Peer& peer = places[place];
        try {
            return visit(peer, handler, left);
        } catch (const std::exception& error) {
            clients.lose(peer, error);
            return std::size_t{0};
        }
    });
    if (!put_off.is_empty()) [[unlikely]]
        requests += put_off.serve(handler, requests);
    turns.end(requests, budget);
    if (answering.has_clogged()) [[unlikely]]
        (void)answering.flush();
    rest.end_turn(requests != 0);
    return requests;
}

[[gnu::always_inline]] inline std::size_t Server::State::visit(Peer& peer,
                                                               const detail::HandlerRef& handler,
                                                               std::size_t budget) {
    if (!peer.is_plain || peer.is_paused) [[unlikely]]
        return visit_any(peer, handler, budget);
    if (!peer.is_active) [[unlikely]]
        rest.activate(peer);
    std::span<const std::byte> message;
    SessionHeader header;
    std::span<const std::byte> payload;
    if (!peer.ring().finds_whole(message) || !parse_request(message, header, payload) ||
        !peer.session.is_next(header.id) || !peer.session.allows(header)) [[unlikely]] {
        return visit_any(peer, handler, budget);
    }
    peer.session.take(header);
    execute(peer, header, payload, handler);
    if (!peer.is_plain) [[unlikely]]
        return 1;
    peer.ring().pass_at_leisure();
    if (!peer.is_paused) [[likely]]
        turns.mailboxes().served(peer.id.place, peer.ring().awaited());
    return 1;
}

std::size_t Server::State::visit_any(Peer& peer, const detail::HandlerRef& handler,
                                     std::size_t budget) {
    turns.mailboxes().take(peer.id.place);
    // A byte may find the place of a client that has left, or that is not to be served.
    if (!peer.line.has_value() || peer.is_paused) [[unlikely]]
        return 0;
    if (peer.has_ring()) [[likely]]
        rest.activate(peer);
    std::span<const std::byte> message;
    std::size_t requests = 0;
    if (peer.is_plain && peer.batches &&
        peer.ring().look_at_front(message) == RingLane::Front::message) {
        peer.ring().ask_for_place();
        SessionHeader header;
        std::span<const std::byte> entries;
        if (parse(message, header, entries) && header.kind == SessionKind::request_batch) {
            const Taken taken = take_batches(peer, header, entries, handler, budget, requests);
            if (taken != Taken::none && !peer.is_paused) arrivals.looked(peer);
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
        case Status::empty:
            if (peer.has_ring() && !peer.line->is_fetching()) ++counts.vain_looks;
            break;
        case Status::too_large:
            if (!take_too_large(peer, message, handler)) return 0;
            peer.line.pass();
            break;
        case Status::closed: clients.part(peer, true); return 0;
        default: clients.part(peer, false); return 0;
    }
    if (!peer.is_paused) [[likely]]
        arrivals.looked(peer);
    return requests;
}

bool Server::State::take_too_large(Peer& peer, std::span<const std::byte> message,
                                   const detail::HandlerRef& handler) {
    SessionHeader header;
    std::span<const std::byte> payload;
    const bool is_parsed = parse(message, header, payload);
    if (peer.line->arrival() == Lane::Arrival::no_memory) {
        take_fetched(peer, header, payload, handler);
        return true;
    }
    PeerSession& session = peer.session;
    // Sent again after a resume, where there was memory for it the first time.
    const bool is_over_budget = peer.line->exceeds_budget();
    const bool is_again = is_over_budget && session.resumes() && header.id <= session.taken();
    if (!is_parsed || header.kind != SessionKind::request ||
        (!is_again && !session.is_next(header.id))) {
        clients.misbehaved(peer, "a message that is too large, and no request");
        return false;
    }
    session.take_up_to(header.id);
    if (is_again && !session.take_unread(header.id)) {
        answering.repeat(peer, header.id);
    } else if (is_over_budget) {
        ++counts.over_budget;
        ++counts.overloaded;
        (void)answering.answer(peer, header.id, Outcome::overloaded, {});
    } else {
        (void)answering.answer(peer, header.id, Outcome::too_large, {});
    }
    return true;
}

[[gnu::noinline, gnu::cold]] void Server::State::take_fetched(Peer& peer,
                                                              const SessionHeader& header,
                                                              std::span<const std::byte> payload,
                                                              const detail::HandlerRef& handler) {
    if (peer.session.resumes() && !peer.session.take_unread(header.id)) return;  // it was answered
    switch (peer.line->arrival()) {
        case Lane::Arrival::given_up:
            (void)answering.answer(peer, header.id, Outcome::cancelled, {});
            return;
        case Lane::Arrival::no_memory:
            ++counts.overloaded;
            (void)answering.answer(peer, header.id, Outcome::overloaded, {});
            return;
        default: execute(peer, header, payload, handler);
    }
}

Server::State::Taken Server::State::take(Peer& peer, std::span<const std::byte> message,
                                         const detail::HandlerRef& handler, std::size_t budget,
                                         std::size_t& requests) {
    SessionHeader header;
    std::span<const std::byte> payload;
    if (!parse(message, header, payload)) [[unlikely]] {
        clients.misbehaved(peer, "a message that is none of a session");
        return Taken::none;
    }
    if (peer.phase == Peer::Phase::joined) [[likely]] {
        switch (header.kind) {
            case SessionKind::request:
                return take_request(peer, header, payload, handler, requests);
            case SessionKind::request_by_read:
                return announced.take(peer, header, payload) ? Taken::message : Taken::none;
            case SessionKind::request_batch:
                if (!peer.batches || peer.line->arrival() != Lane::Arrival::none) break;
                return take_batches(peer, header, payload, handler, budget, requests);
            case SessionKind::cancel: answering.cancel(peer, header.id); return Taken::message;
            default: break;
        }
    } else if (header.kind == SessionKind::hello && peer.phase == Peer::Phase::joining) {
        if (const std::optional<Hello> hello = parse_hello(payload)) {
            clients.join(peer, *hello);
            return Taken::message;
        }
    } else if (peer.phase == Peer::Phase::refused) {
        return Taken::message;
    }
    clients.misbehaved(peer, "a message that is not allowed now");
    return Taken::none;
}

Server::State::Taken Server::State::take_request(Peer& peer, const SessionHeader& header,
                                                 std::span<const std::byte> payload,
                                                 const detail::HandlerRef& handler,
                                                 std::size_t& requests) {
    PeerSession& session = peer.session;
    if (!session.allows(header)) [[unlikely]] {
        clients.misbehaved(peer, "a request outside of its window");
        return Taken::none;
    }
    if (session.is_next(header.id)) [[likely]] {
        requests = 1;
        session.take(header);
        execute(peer, header, payload, handler);
    } else if (peer.line->arrival() != Lane::Arrival::none) {
        requests = 1;
        take_fetched(peer, header, payload, handler);
    } else if (header.id > session.taken() || !session.resumes()) {
        clients.misbehaved(peer, "a request out of its order");
        return Taken::none;
    } else if (!peer.line->is_fetching(header.id) && session.take_unread(header.id)) {
        // Announced before the session was resumed, and not announced again.
        requests = 1;
        execute(peer, header, payload, handler);
    } else {
        answering.repeat(peer, header.id);
    }
    return Taken::message;
}

bool Server::State::serve_batch(Peer& peer, const SessionHeader& head,
                                std::span<const std::byte> entries,
                                const detail::HandlerRef& handler, std::size_t most,
                                std::size_t& requests) {
    PeerSession& session = peer.session;
    const std::uint64_t count = head.procedure;
    const std::uint64_t before = session.taken();
    const std::uint64_t done = before + 1 - head.id;
    // What was served of it in earlier visits.
    const std::size_t begun = std::exchange(peer.batch_at, 0);
    if (done >= count || (done == 0) != (begun == 0) || begun > entries.size() ||
        count > most_in_batch || head.behind >= head.id || head.behind + count > session.window() ||
        !peer.ring().hear_position(head.limit_us)) {
        return false;
    }
    const std::uint64_t last = head.id + count - 1;
    session.acknowledge(head);
    const std::byte* const begin = entries.data();
    Request request = detail::RequestAccess::make(*this, peer, {.behind = head.behind}, {});
    detail::RequestRun run{.at = begin + begun,
                           .end = begin + entries.size(),
                           .taken = before,
                           .until = std::min(last, before + (most - requests)),
                           .is_paused = &peer.is_paused,
                           .most_pending = is_draining ? 0 : options.max_pending};
    const std::uint32_t generation = peer.id.generation;
    const auto note = [&] {
        if (peer.id.generation != generation) return;
        session.take_up_to(run.taken);
        if (run.is_sound && run.taken != last) {
            peer.batch_at = static_cast<std::size_t>(run.at - begin);
        }
    };
    try {
        handler.serve(handler.handler, request, run);
    } catch (...) {
        // There was no memory to keep an answer, say. The next visit goes on after what was served.
        note();
        if (peer.id.generation == generation && peer.line.has_value()) {
            if (run.taken == last) peer.line.pass();
            turns.mailboxes().remind(peer.id.place);
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
    const Answers::Batch laid{answering, peer};
    std::span<const std::byte> message;
    // What its client laid where the ring ended goes on where it begins: it is one batch for it.
    do {
        const bool is_sound = serve_batch(peer, head, entries, handler, most, requests);
        if (!laid.is_there()) [[unlikely]]
            return Taken::none;
        if (!is_sound) [[unlikely]] {
            answering.send_batch();
            clients.misbehaved(peer, "several requests that are not what they say of themselves");
            return Taken::none;
        }
        if (peer.batch_at != 0) break;
        peer.ring().pass_batch();
    } while (requests != most && !peer.is_paused &&
             peer.ring().look_at_front(message) == RingLane::Front::message &&
             parse(message, head, entries) && head.kind == SessionKind::request_batch);
    answering.send_batch();
    return Taken::passed;
}

bool Server::State::drain_by_a_lap(const detail::HandlerRef& handler) {
    // A lap takes a message of each client, which has no more requests under way than its window,
    // and may have taken each of them back: after so many laps, all that was here before is taken.
    // From then on nothing is, so that no client that goes on asking holds it up.
    std::uint64_t window = 0;
    places.each([&](const Peer& peer) {
        if (peer.line.has_value()) window = std::max<std::uint64_t>(window, peer.session.window());
    });
    const bool takes = laps_of_drain <= 2 * window;
    rest.look_at_kernel();  // for clients that are on their way here
    (void)turn(handler, takes ? ~std::size_t{0} : 0);
    if (counts.pending != 0 || announced.has_wanted()) return false;
    if (!answering.has_paused()) ++laps_of_drain;
    return !answering.has_clogged() && !(takes && rest.has_message());
}

}  // namespace millrace::message
