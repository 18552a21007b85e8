#include "server/turns.hpp"

#include "millrace/base/wait.hpp"

namespace millrace::message {

namespace {
/// Among so many, the client that was served last is likely to be the next one.
constexpr std::size_t few_awake = 4;
/// At hot places, before the next one at all: some 100 to 200 ns.
constexpr int looks_at_hot = 8;

[[nodiscard]] bool has_written(Peer& peer) noexcept {
    // The client that was there may have left.
    return peer.has_ring() && !peer.is_paused && peer.ring().seems_to_have_frame();
}
}  // namespace

bool Turns::find_hot() noexcept {
    if (!all_had_their_turn_ || !hot_.are_likely()) return false;
    for (int looks = looks_at_hot; looks != 0; --looks) {
        for (const std::size_t place : hot_.places()) {
            if (place >= places_->in_use() || !has_written((*places_)[place])) continue;
            all_had_their_turn_ = false;
            return begins_at(place);
        }
        base::pause();
    }
    return false;
}

bool Turns::find(bool rings_alone) noexcept {
    // In the order of a lap, which then begins at what is found: nobody before it has written.
    const std::size_t in_use = places_->in_use();
    const std::size_t begin = cursor_ < in_use ? cursor_ : 0;
    std::size_t found = find(begin, in_use);
    all_had_their_turn_ = found == in_use && (begin == 0 || (found = find(0, begin)) == begin);
    if (all_had_their_turn_) return false;
    if (rings_alone && (*places_)[found].has_ring()) {
        hot_.found(found);
    } else {
        hot_.forget();
    }
    return begins_at(found);
}

std::size_t Turns::find(std::size_t from, std::size_t to) noexcept {
    std::size_t place = mailboxes_.next(from, to);
    if (is_dense()) return place;
    // A frame of which a part has landed is none: its client rings, or it is looked at by a nap.
    for (; place != to; place = mailboxes_.next(place + 1, to)) {
        Peer& peer = (*places_)[place];
        if (!peer.has_ring()) break;
        if (peer.ring().poll_sends()) looked(peer);
        if (peer.ring().has_frame()) break;
    }
    return place;
}

void Turns::ask_for_frames(std::size_t awake) noexcept {
    const std::size_t in_use = places_->in_use();
    if (in_use == 0) return;
    const std::size_t last = (cursor_ == 0 ? in_use : cursor_) - 1;
    if (!is_dense()) return mailboxes_.ask_for_second_lines(in_use, last);
    Peer& peer = (*places_)[last];
    if (awake > few_awake || !peer.has_ring()) return;
    const FrameReader::Awaited frame = peer.ring().awaited();
    __builtin_prefetch(frame.place);
    frame.ask_for_second_line();
}

}  // namespace millrace::message
