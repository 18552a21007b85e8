// Requests that a server READs (rendezvous.hpp): taken in their order when they are announced, so
// that small ones behind them are served at once, and executed when they are whole.
#include <algorithm>
#include <optional>

#include "server_state.hpp"

namespace millrace::message {

bool Server::State::take_announced(Peer& peer, const SessionHeader& header,
                                   std::span<const std::byte> payload) {
    const std::optional<Announcement> from = peer.line->announced(payload);
    if (!from.has_value() || header.outcome != Outcome::ok || header.behind >= peer.window ||
        header.behind >= header.id) {
        misbehaved(peer, "an announcement that is not allowed");
        return false;
    }
    const bool is_next = header.id == peer.taken + 1;
    const bool is_again = !is_next && peer.resumes && header.id <= peer.taken;
    if ((!is_next && !is_again) || peer.line->is_fetching(header.id)) {
        misbehaved(peer, "an announcement out of its order");
        return false;
    }
    // A client whose channel broke before the request was whole sends it again.
    const bool is_unread = is_again && std::find(peer.unread.begin(), peer.unread.end(),
                                                 header.id) != peer.unread.end();
    if (is_next) {
        peer.taken = header.id;
        if (peer.resumes) forget_acknowledged(peer, header.id - header.behind);
    }
    if (!peer.is_fetching) {
        peer.is_fetching = true;
        peer.fetching_since = base::Clock::now();
        peer.fetching_at = peer.line->fetch_progress();
        fetching.push_back(peer.id.place);
    }
    const bool is_due = is_next || is_unread;
    const bool is_too_large = from->length > options.max_request_bytes;
    const bool is_declined = is_draining || counts.pending >= options.max_pending;
    const bool is_wanted = is_due && !is_too_large && !is_declined;
    if (!(is_wanted ? peer.line.ring()->fetch(header, *from) : peer.line.ring()->decline())) {
        misbehaved(peer, "more announcements than are allowed at a time");
        return false;
    }
    if (is_wanted) {
        ++counts.large;
        if (peer.resumes && is_next) peer.unread.push_back(header.id);
        return true;
    }
    if (!is_due) {
        repeat(peer, header.id);
        return true;
    }
    std::erase(peer.unread, header.id);
    if (is_too_large) {
        (void)answer(peer, header.id, Outcome::too_large, {});
    } else {
        decline(peer, header.id);
    }
    return true;
}

bool Server::State::look_for_fetched() {
    bool is_due = false;
    for (std::size_t i = 0; i < fetching.size();) {
        Peer& peer = *peers[fetching[i]];
        if (!peer.line.has_value() || !peer.line->is_fetching()) {
            peer.is_fetching = false;
            fetching[i] = fetching.back();
            fetching.pop_back();
            continue;
        }
        if (!peer.is_paused && peer.line->fetch_is_due()) {
            is_due = true;
            tell(peer);
        }
        ++i;
    }
    return is_due;
}

void Server::State::look_after_fetching(Peer& peer, base::Clock::time_point now) {
    const std::uint64_t progress = peer.line->fetch_progress();
    if (peer.is_paused || progress != peer.fetching_at) {
        peer.fetching_at = progress;
        peer.fetching_since = now;
    } else if (now - peer.fetching_since > options.patience) {
        misbehaved(peer, "what it has announced cannot be READ");
    }
}

}  // namespace millrace::message
