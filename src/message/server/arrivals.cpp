#include "server/arrivals.hpp"

#include <chrono>

#include "millrace/base/clock.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

namespace {
constexpr std::chrono::microseconds look_at_hosts_every{5};

/// What a server serves besides its clients, looked at as often as a host.
class BesideHost final : public LaneHost {
  public:
    BesideHost(int descriptor, std::function<bool()> look, bool& is_busy)
        : descriptor_{descriptor}, look_{std::move(look)}, is_busy_{&is_busy} {}
    std::unique_ptr<NetworkLane> meet(connect::Link) override {
        return nullptr;
    }  // no link is of it
    void look(std::vector<std::uint32_t>&) override { *is_busy_ |= look_(); }
    [[nodiscard]] int descriptor() const noexcept override { return descriptor_; }
    void rest() noexcept override {}
    [[nodiscard]] std::string explain() const override {
        return "something else is served besides the clients";
    }

  private:
    int descriptor_;
    std::function<bool()> look_;
    bool* is_busy_;
};
}  // namespace

Arrivals::Arrivals(Server::State& server, std::unique_ptr<SharedReceives> shared, LaneHosts hosts,
                   std::size_t places)
    : server_{server},
      shared_{std::move(shared)},
      hosts_{std::move(hosts)},
      hosts_every_{base::ticks_in(look_at_hosts_every)} {
    by_send_.reserve(places);
    // A host of sockets tells of some several times.
    constexpr std::size_t most_told_at_once = 2048;
    if (!hosts_.all.empty()) told_.reserve(2 * places + most_told_at_once);
}

void Arrivals::join_hub() {
    if (shared_ != nullptr) {
        server_.hub.add(shared_->channel().descriptor(), [this] {
            (void)shared_->channel().drain();
            look_for_sends();
        });
    }
    for (const auto& host : hosts_.all) {
        server_.hub.add(host->descriptor(), [this] { look_at_hosts(); });
    }
}

void Arrivals::serve_beside(int descriptor, std::function<bool()> look) {
    auto host = std::make_unique<BesideHost>(descriptor, std::move(look), beside_is_busy_);
    hosts_.all.reserve(hosts_.all.size() + 1);
    server_.hub.add(descriptor, [this] { look_at_hosts(); });
    hosts_.all.push_back(std::move(host));
    ++by_network_;
}

void Arrivals::add(Peer& peer) {
    peer.line->set_place(peer.id.place);
    if (!peer.has_ring()) {
        ++by_network_;
        return;
    }
    ++by_ring_;
    if (peer.ring().comes_by_send() && shared_ == nullptr && server_.turns.is_dense() &&
        !peer.is_by_send) {
        peer.is_by_send = true;
        by_send_.push_back(peer.id.place);
    }
}

void Arrivals::remove(Peer& peer) noexcept {
    peer.line->set_place(Lane::no_place);
    --(peer.has_ring() ? by_ring_ : by_network_);
}

bool Arrivals::hosts_are_due() noexcept {
    if (server_.rest.is_nested()) return false;  // the hub has looked
    const bool has_work = std::exchange(lanes_have_more_, false);
    if (!has_work && (hosts_are_busy_ || by_ring_ == 0)) return true;
    return base::ticks() - hosts_looked_at_ >= hosts_every_;
}

void Arrivals::look_in_wait() {
    look_for_sends();
    if (!hellos_.empty()) [[unlikely]]
        look_for_hellos();
    if (by_network_ != 0 && (by_ring_ == 0 || base::ticks() - hosts_looked_at_ >= hosts_every_)) {
        look_at_hosts();
    }
}

void Arrivals::look_at_hosts() {
    told_.clear();
    beside_is_busy_ = false;
    for (const auto& host : hosts_.all) host->look(told_);
    for (const std::uint32_t place : told_) {
        Peer& peer = server_.places[place];
        if (peer.line.has_value()) server_.turns.tell(peer);
    }
    hosts_are_busy_ = !told_.empty() || beside_is_busy_;
    beside_was_busy_ |= beside_is_busy_;
    hosts_looked_at_ = base::ticks();
}

void Arrivals::look_for_sends() {
    if (shared_ != nullptr) {
        shared_->poll();
        for (const std::uint32_t place : shared_->told()) {
            Peer& peer = server_.places[place];
            if (!peer.has_ring()) continue;
            if (!peer.is_active) {
                server_.rest.became_readable(peer);
            } else if (!peer.is_paused) {
                server_.turns.looked(peer);
            }
        }
    }
    for (std::size_t i = 0; i < by_send_.size();) {
        Peer& peer = server_.places[by_send_[i]];
        if (!peer.has_ring() || !peer.ring().comes_by_send()) [[unlikely]] {
            peer.is_by_send = false;
            by_send_[i] = by_send_.back();
            by_send_.pop_back();
            continue;
        }
        if (!peer.is_paused) server_.turns.looked(peer);
        ++i;
    }
}

void Arrivals::look_for_hellos() noexcept {
    std::erase_if(hellos_, [&](std::uint32_t place) {
        Peer& peer = server_.places[place];
        if (peer.phase != Peer::Phase::joining || !peer.has_ring()) return true;
        server_.turns.looked(peer);
        return false;
    });
}

void Arrivals::looked_at_ring(Peer& peer) noexcept { server_.turns.looked(peer); }

void Arrivals::looked_at_network(Peer& peer) {
    if (peer.line.network()->has_more()) {
        lanes_have_more_ = true;
        return server_.turns.tell(peer);
    }
    server_.turns.mailboxes().leave_out(peer.id.place);
    // What it has to be told goes together, now that there is nothing more to answer.
    switch (peer.line->flush()) {
        case Status::ok: return;
        case Status::full: return server_.answering.clog(peer);
        default: return server_.turns.tell(peer);  // it has ended, which a look finds
    }
}

void Arrivals::rest() noexcept {
    if (shared_ != nullptr) (void)shared_->completions().arm();
    for (const auto& host : hosts_.all) host->rest();
    hosts_looked_at_ = base::ticks() - hosts_every_;
}

std::string Arrivals::explain() const {
    std::string text;
    for (const auto& host : hosts_.all) text += host->explain() + '\n';
    return text;
}

}  // namespace millrace::message
