// How a server sleeps: who is told that it does, and what wakes it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "server_state.hpp"

namespace millrace::message {

using base::Status;

namespace {
/// Nobody rings for the room that waiting answers find. While none is found, each nap is twice as
/// long as the one before.
constexpr std::chrono::nanoseconds shortest_nap_for_room = std::chrono::microseconds{20};
constexpr std::chrono::nanoseconds longest_nap_for_room = std::chrono::milliseconds{1};
/// Among so many, who was served last is likely to be the next one.
constexpr std::size_t few_active = 4;
/// At hot places, before the next one at all: some 100 to 200 ns.
constexpr int looks_at_hot = 8;
}  // namespace

void Server::State::look_at_kernel() {
    must_look = false;
    looked_at = base::ticks();
    try {
        (void)hub.turn();
    } catch (const base::Error&) {
        throw;  // it is another thread's, say
    } catch (const std::exception& error) {
        // What was asked for in the hub was not done; nobody's channel depends on it.
        base::log(base::LogLevel::warn, "message", "look at the kernel: {}", error.what());
    }
    show();
}

void Server::State::became_readable(Peer& peer) {
    RingLane& ring = *peer.line.ring();
    // It rings no more from here on, so it is looked at.
    ring.wake();
    activate(peer);
    if (!peer.is_paused) mailboxes.looked(peer.id.place, ring.awaited());
    mailboxes.remind(peer.id.place);
    if (ring.link().peer_so_far() == connect::PeerState::alive) return;
    // What it sent before its end is served before it.
    if (peer.line->has_fetched()) return tell(peer);
    const Status status = ring.look_around();
    if (status == Status::closed) return part(peer, true);
    if (status == Status::peer_lost) return part(peer, false);
    if (!peer.is_paused) mailboxes.looked(peer.id.place, ring.awaited());
}

void Server::State::look_aside() noexcept {
    if (active.empty()) return;
    if (++aside >= active.size()) aside = 0;
    Peer& peer = *peers[active[aside]];
    RingLane* const ring = peer.line.ring();
    if (ring == nullptr || peer.is_paused) return;
    if (ring->has_fetched()) return tell(peer);
    switch (ring->look_around()) {
        case Status::closed: return part(peer, true);
        case Status::peer_lost: return part(peer, false);
        default: break;
    }
    // A client that forgot its byte, or found no room in its send queue for it, is served as well.
    mailboxes.looked(peer.id.place, ring->awaited());
}

void Server::State::look_for_sends() {
    if (shared != nullptr) {
        shared->poll();
        for (const std::uint32_t place : shared->told()) {
            Peer& peer = *peers[place];
            if (peer.line.ring() == nullptr) continue;
            if (!peer.is_active) {
                became_readable(peer);
            } else if (!peer.is_paused) {
                mailboxes.looked(place, peer.line.ring()->awaited());
            }
        }
    }
    for (std::size_t i = 0; i < by_send.size();) {
        Peer& peer = *peers[by_send[i]];
        const RingLane* const ring = peer.line.ring();
        if (ring == nullptr || (!ring->comes_by_send() && !peer.came_from.has_value()))
            [[unlikely]] {
            peer.is_by_send = false;
            by_send[i] = by_send.back();
            by_send.pop_back();
            continue;
        }
        if (!peer.is_paused) mailboxes.looked(by_send[i], ring->awaited());
        ++i;
    }
}

void Server::State::note_found(const Peer& peer) noexcept {
    // What comes otherwise is not to be seen in a ring.
    if (shared != nullptr || peer.line.ring() == nullptr) return hot.forget();
    hot.found(peer.id.place);
}

bool Server::State::is_at_hot_place(const Peer& peer) noexcept {
    // Who was there may have left.
    const RingLane* const ring = peer.line.ring();
    return ring != nullptr && !peer.is_paused && ring->seems_to_have_frame();
}

bool Server::State::has_message_of_hot() noexcept {
    if (!all_had_their_turn || !hot.are_likely()) return false;
    for (int looks = looks_at_hot; looks != 0; --looks) {
        for (const std::size_t place : hot.places()) {
            if (place >= in_use || !is_at_hot_place(*peers[place])) continue;
            all_had_their_turn = false;
            is_found = true;
            cursor = place;
            return true;
        }
        base::pause();
    }
    return false;
}

bool Server::State::has_message() {
    if (has_message_of_hot()) return true;
    look_for_sends();
    if (!joining.empty()) [[unlikely]]
        look_for_hellos();
    if (!fetching.empty() && look_for_fetched()) return true;
    if (by_network != 0 && (by_ring == 0 || base::ticks() - hosts_looked_at >= hosts_every)) {
        look_at_hosts();
    }
    // In the order of a lap, which then begins at what is found: nobody before it has written.
    const std::size_t begin = cursor < in_use ? cursor : 0;
    std::size_t found = find_message(begin, in_use);
    all_had_their_turn =
        found == in_use && (begin == 0 || (found = find_message(0, begin)) == begin);
    if (all_had_their_turn) return false;
    if (options.group_clients == 0) {
        is_found = true;
        cursor = found;
        note_found(*peers[found]);
    }
    return true;
}

std::size_t Server::State::find_message(std::size_t from, std::size_t to) {
    std::size_t place = mailboxes.next(from, to);
    if (mailboxes.polling() == Polling::dense) return place;
    // A frame of which a part has landed is none: its client rings, or it is looked at by a nap.
    for (; place != to; place = mailboxes.next(place + 1, to)) {
        RingLane* const ring = peers[place]->line.ring();
        if (ring == nullptr) break;
        if (ring->poll_sends()) mailboxes.looked(place, ring->awaited());
        if (ring->has_frame()) break;
    }
    return place;
}

void Server::State::fall_asleep() {
    std::size_t stay = 0;
    for (const std::uint32_t place : active) {
        Peer& peer = *peers[place];
        RingLane* const ring = peer.line.ring();
        if (ring != nullptr && (peer.is_paused || !ring->is_clear())) {
            // Its room is asked for, and its messages, if any, are not to be told of.
            active[stay++] = place;
            continue;
        }
        peer.is_active = false;
        if (ring == nullptr) continue;
        ring->fall_asleep();
        mailboxes.looked(place, ring->awaited());
    }
    active.resize(stay);
    if (shared != nullptr) (void)shared->completions().arm();
    for (const auto& host : hosts.all) host->rest();
    show();
    // Behind it comes a look.
    hosts_looked_at = base::ticks() - hosts_every;
}

void Server::State::ask_for_frames() const noexcept {
    if (in_use == 0) return;
    const std::size_t last = (cursor == 0 ? in_use : cursor) - 1;
    if (mailboxes.polling() != Polling::dense) return mailboxes.ask_for_second_lines(in_use, last);
    const RingLane* const ring = peers[last]->line.ring();
    if (active.size() > few_active || ring == nullptr) return;
    const FrameReader::Awaited frame = ring->awaited();
    __builtin_prefetch(frame.place);
    frame.ask_for_second_line();
}

void Server::State::check_thread(const char* attempted) const {
    if (hub.is_current()) return;
    throw base::Error{base::ErrorCode::invalid_argument, attempted, listener.address().to_string(),
                      "it belongs to another thread", "call adopt() in the thread that serves"};
}

Status Server::State::rest(const base::Deadline& deadline) {
    check_thread("rest in a message server");
    class Sleeper final : public base::Parker {
      public:
        explicit Sleeper(State& server) : server_{&server} {}
        void prepare() override {
            server_->fall_asleep();
            server_->replies->fall_asleep();
        }
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
            if (!server_->clogged.empty()) limit = std::min(limit, server_->next_nap_for_room());
            ++server_->counts.sleeps;
            (void)server_->hub.rest(base::Deadline::after(limit).cancelled_by(cancellation));
            server_->must_look = true;
        }
        void retract() override { server_->replies->wake(); }

      private:
        State* server_;
    };
    Sleeper sleeper{*this};
    post_gathered();
    const auto has_work = [this] {
        // Behind a sleep, at everything.
        if (must_look || aside_is_due()) [[unlikely]] {
            if (kernel_is_due()) look_at_kernel();
            look_aside();
        }
        // Room is waited for as messages are.
        if (!clogged.empty() && flush_clogged()) [[unlikely]] {
            post_gathered();
            return true;
        }
        ask_for_frames();
        return stopping.load(std::memory_order_seq_cst) || replies->has_some() ||
               !waiting.empty() || has_message() || std::exchange(beside_was_busy, false);
    };
    const Status status = base::wait_until(has_work, deadline, options.wait, sleeper);
    if (status == Status::ok && stopping.load(std::memory_order_acquire)) [[unlikely]] {
        stopping.store(false, std::memory_order_relaxed);
        return Status::closed;
    }
    return status;
}

std::chrono::nanoseconds Server::State::next_nap_for_room() noexcept {
    nap_for_room = std::clamp(2 * nap_for_room, shortest_nap_for_room, longest_nap_for_room);
    return nap_for_room;
}

void Server::State::keep_loop(bool was_busy) {
    try {
        look_whether_loop_goes_on(was_busy);
    } catch (const std::bad_alloc&) {
        // The hub's own timer, for the house, makes the descriptor readable.
    }
}

void Server::State::look_whether_loop_goes_on(bool was_busy) {
    const std::uint64_t now = base::ticks();
    if (was_busy) busy_at = now;
    if (!was_busy && now - busy_at >= spin_ticks) {
        fall_asleep();
        replies->fall_asleep();
        if (!replies->has_some() && !has_message()) {
            if (!clogged.empty()) hub.after(next_nap_for_room(), [] {});
            return;
        }
    }
    // The descriptor stays readable.
    hub.post([] {});
}

namespace {
struct ShownCount {
    base::Figure figure;
    std::uint64_t ServerStats::*count;
};
constexpr auto counter = base::FigureKind::counter;
constexpr auto gauge = base::FigureKind::gauge;
/// On the page in this order.
constexpr ShownCount shown_counts[] = {{{"clients", gauge}, &ServerStats::clients},
                                       {{"away", gauge}, &ServerStats::away},
                                       {{"joined", counter}, &ServerStats::joined},
                                       {{"left", counter}, &ServerStats::left},
                                       {{"resumed", counter}, &ServerStats::resumed},
                                       {{"refused", counter}, &ServerStats::refused},
                                       {{"misbehaved", counter}, &ServerStats::misbehaved},
                                       {{"requests", counter}, &ServerStats::requests},
                                       {{"answers", counter}, &ServerStats::answers},
                                       {{"deferred", counter}, &ServerStats::deferred},
                                       {{"pending", gauge}, &ServerStats::pending},
                                       {{"failed", counter}, &ServerStats::failed},
                                       {{"overloaded", counter}, &ServerStats::overloaded},
                                       {{"repeated", counter}, &ServerStats::repeated},
                                       {{"large", counter}, &ServerStats::large},
                                       {{"kept back", counter}, &ServerStats::kept_back},
                                       {{"vain looks", counter}, &ServerStats::vain_looks},
                                       {{"sleeps", counter}, &ServerStats::sleeps},
                                       {{"put off", counter}, &ServerStats::put_off},
                                       {{"moved", counter}, &ServerStats::moved},
                                       {{"over budget", counter}, &ServerStats::over_budget}};
static_assert(std::size(shown_counts) * sizeof(std::uint64_t) == sizeof(ServerStats));
}  // namespace

std::vector<base::Figure> Server::State::figures() {
    std::vector<base::Figure> all;
    for (const ShownCount& shown : shown_counts) all.push_back(shown.figure);
    return all;
}

ServerStats& ServerStats::operator+=(const ServerStats& other) noexcept {
    for (const auto& [_, count] : shown_counts) this->*count += other.*count;
    return *this;
}

void Server::State::show() noexcept {
    std::size_t index = 0;
    for (const auto& [_, count] : shown_counts) statistics.counter(index++).set(counts.*count);
}

ServerStats Server::State::shown() const noexcept {
    ServerStats stats;
    std::size_t index = 0;
    for (const auto& [_, count] : shown_counts) stats.*count = statistics.counter(index++).value();
    return stats;
}

}  // namespace millrace::message
