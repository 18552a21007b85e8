#include "server/rest.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/wait.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

Rest::Rest(Server::State& server, std::size_t places)
    : server_{server},
      look_every_{base::ticks_in(std::chrono::milliseconds{1})},
      spin_ticks_{base::ticks_in(server.options.wait.spin)} {
    awake_.reserve(places);
}

void Rest::begin_turn() {
    if (is_nested_) server_.answering.replies()->wake();
    if (is_nested_ || must_look_) look_at_kernel();
}

void Rest::end_turn(bool was_busy) {
    if (was_busy ? (++turns_ & 63) == 0 : next_awake_is_due()) look_at_next_awake();
    if (kernel_is_due()) look_at_kernel();
    if (!is_nested_) return;
    try {
        look_whether_loop_goes_on(was_busy);
    } catch (const std::bad_alloc&) {
        // The hub's own timer, for the house, makes the descriptor readable.
    }
}

void Rest::look_at_kernel() {
    must_look_ = false;
    looked_at_ = base::ticks();
    try {
        (void)server_.hub.turn();
    } catch (const base::Error&) {
        throw;  // it is another thread's, say
    } catch (const std::exception& error) {
        // What was asked for in the hub was not done; nobody's channel depends on it.
        base::log(base::LogLevel::warn, "message", "look at the kernel: {}", error.what());
    }
    server_.show();
}

void Rest::became_readable(Peer& peer) {
    // It rings no more from here on, so it is looked at.
    peer.ring().wake();
    activate(peer);
    if (!peer.is_paused) server_.turns.looked(peer);
    server_.turns.mailboxes().remind(peer.id.place);
    if (peer.line->link().peer_so_far() == connect::PeerState::alive) return;
    // What it sent before its end is served before it.
    if (peer.line->has_fetched()) return server_.turns.tell(peer);
    const Status status = peer.ring().look_around();
    if (status == Status::closed) return server_.clients.part(peer, true);
    if (status == Status::peer_lost) return server_.clients.part(peer, false);
    if (!peer.is_paused) server_.turns.looked(peer);
}

void Rest::look_at_next_awake() noexcept {
    if (awake_.empty()) return;
    if (++next_awake_ >= awake_.size()) next_awake_ = 0;
    Peer& peer = server_.places[awake_[next_awake_]];
    if (!peer.has_ring() || peer.is_paused) return;
    if (peer.line->has_fetched()) return server_.turns.tell(peer);
    switch (peer.ring().look_around()) {
        case Status::closed: return server_.clients.part(peer, true);
        case Status::peer_lost: return server_.clients.part(peer, false);
        default: break;
    }
    // A client that forgot its byte, or found no room in its send queue for it, is served as well.
    server_.turns.looked(peer);
}

bool Rest::has_message() {
    if (server_.turns.find_hot()) return true;
    server_.arrivals.look_in_wait();
    if (server_.announced.has_some() && server_.announced.look()) return true;
    return server_.turns.find(server_.arrivals.has_own_receives());
}

void Rest::fall_asleep() {
    std::size_t stay = 0;
    for (const std::uint32_t place : awake_) {
        Peer& peer = server_.places[place];
        if (peer.has_ring() && (peer.is_paused || !peer.line->is_clear())) {
            // Its room is asked for, and its messages, if any, are not to be told of.
            awake_[stay++] = place;
            continue;
        }
        peer.is_active = false;
        if (!peer.has_ring()) continue;
        peer.ring().fall_asleep();
        server_.turns.looked(peer);
    }
    awake_.resize(stay);
    server_.arrivals.rest();
    server_.show();
}

class Rest::Sleeper final : public base::Parker {
  public:
    explicit Sleeper(Rest& rest) : rest_{&rest}, server_{&rest.server_} {}
    void prepare() override {
        rest_->fall_asleep();
        server_->answering.replies()->fall_asleep();
    }
    void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
        if (server_->answering.has_clogged()) {
            limit = std::min(limit, server_->answering.next_nap());
        }
        ++server_->counts.sleeps;
        (void)server_->hub.rest(base::Deadline::after(limit).cancelled_by(cancellation));
        rest_->must_look_ = true;
    }
    void retract() override { server_->answering.replies()->wake(); }

  private:
    Rest* rest_;
    Server::State* server_;
};

bool Rest::has_work() {
    // After a sleep, at everything.
    if (must_look_ || next_awake_is_due()) [[unlikely]] {
        if (kernel_is_due()) look_at_kernel();
        look_at_next_awake();
    }
    // Room is waited for as messages are.
    if (server_.answering.has_clogged() && server_.answering.flush()) [[unlikely]]
        return true;
    server_.turns.ask_for_frames(awake_.size());
    return server_.stopping.load(std::memory_order_seq_cst) ||
           server_.answering.replies()->has_some() || !server_.put_off.is_empty() ||
           has_message() || server_.arrivals.was_busy_beside();
}

Status Rest::rest(const base::Deadline& deadline) {
    Sleeper sleeper{*this};
    const Status status =
        base::wait_until([this] { return has_work(); }, deadline, server_.options.wait, sleeper);
    return status == Status::ok && server_.take_stop() ? Status::closed : status;
}

void Rest::nest() {
    if (!std::exchange(is_nested_, true)) server_.hub.post([] {});
}

void Rest::look_whether_loop_goes_on(bool was_busy) {
    const std::uint64_t now = base::ticks();
    if (was_busy) busy_at_ = now;
    if (!was_busy && now - busy_at_ >= spin_ticks_) {
        fall_asleep();
        server_.answering.replies()->fall_asleep();
        if (!server_.answering.replies()->has_some() && !has_message()) {
            if (server_.answering.has_clogged())
                server_.hub.after(server_.answering.next_nap(), [] {});
            return;
        }
    }
    // The descriptor stays readable.
    server_.hub.post([] {});
}

}  // namespace millrace::message
