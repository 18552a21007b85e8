#include "server/announced.hpp"

#include <algorithm>
#include <optional>

#include "server/state.hpp"

namespace millrace::message {

bool Announced::has_wanted() {
    return std::any_of(fetching_.begin(), fetching_.end(), [&](std::uint32_t place) {
        const Peer& peer = server_.places[place];
        return peer.line.has_value() && peer.line->wants_fetched();
    });
}

bool Announced::take(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload) {
    PeerSession& session = peer.session;
    const std::optional<Announcement> from = peer.line->announced(payload);
    if (!from.has_value() || header.outcome != Outcome::ok || !session.allows(header)) {
        server_.clients.misbehaved(peer, "an announcement that is not allowed");
        return false;
    }
    const bool is_next = session.is_next(header.id);
    const bool is_again = !is_next && session.resumes() && header.id <= session.taken();
    if ((!is_next && !is_again) || peer.line->is_fetching(header.id)) {
        server_.clients.misbehaved(peer, "an announcement out of its order");
        return false;
    }
    // A client whose channel broke before the request was whole sends it again.
    const bool is_unread = is_again && session.is_unread(header.id);
    if (is_next) session.take(header);
    if (!peer.is_fetching) {
        peer.is_fetching = true;
        peer.fetched = {peer.line->fetch_progress(), base::Clock::now()};
        fetching_.push_back(peer.id.place);
    }
    const bool is_due = is_next || is_unread;
    const bool is_too_large = from->length > server_.options.max_request_bytes;
    const bool is_declined = server_.is_draining || server_.has_too_many_pending();
    const bool is_wanted = is_due && !is_too_large && !is_declined;
    if (!(is_wanted ? peer.ring().fetch(header, *from) : peer.ring().decline())) {
        server_.clients.misbehaved(peer, "more announcements than are allowed at a time");
        return false;
    }
    if (is_wanted) {
        ++server_.counts.large;
        if (is_next) session.add_unread(header.id);
        return true;
    }
    if (!is_due) {
        server_.answering.repeat(peer, header.id);
        return true;
    }
    (void)session.take_unread(header.id);
    if (is_too_large) {
        (void)server_.answering.answer(peer, header.id, Outcome::too_large, {});
    } else {
        server_.answering.decline(peer, header.id);
    }
    return true;
}

bool Announced::look() {
    bool is_due = false;
    for (std::size_t i = 0; i < fetching_.size();) {
        Peer& peer = server_.places[fetching_[i]];
        if (!peer.line.has_value() || !peer.line->is_fetching()) {
            peer.is_fetching = false;
            fetching_[i] = fetching_.back();
            fetching_.pop_back();
            continue;
        }
        if (!peer.is_paused && peer.line->fetch_is_due()) {
            is_due = true;
            server_.turns.tell(peer);
        }
        ++i;
    }
    return is_due;
}

void Announced::look_after(Peer& peer, base::Clock::time_point now) {
    if (!peer.is_fetching) return;
    const std::uint64_t progress = peer.line->fetch_progress();
    if (peer.is_paused || progress != peer.fetched.at) {
        peer.fetched = {progress, now};
    } else if (now - peer.fetched.since > server_.options.patience) {
        server_.clients.misbehaved(peer, "what it has announced cannot be READ");
    }
}

}  // namespace millrace::message
