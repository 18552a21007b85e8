// How a client goes from one server of a group to another: its connection and its session, as they
// are, and nothing that somebody else holds on to.
//
//   the server that it leaves    takes none of its requests until every one that it took is
//                                answered, and every answer is in the client's ring; then
//                                gives line and session away, and keeps the place
//   the one where it arrives     gives it a place and a byte, says so by a second welcome, and
//                                looks at its ring whatever its byte says
//   the client                   sets its new byte from then on, and says that it has moved
//   the one where it arrived     looks at the byte alone, and tells the other one
//   the server that it left      gives the place to others
//
// What the client wrote meanwhile lies in its ring, which nobody read in between, so it is taken
// once and in its order. The former place is kept until then for two reasons. A byte that the
// client writes there belongs to it still: by RDMA it is registered in its domain, and a write to
// what is not would cost it its connection. And if the connection breaks before it has read the
// second welcome, it comes back to the former server, which sends it on.
//
// All that one server does to another is a call that it asks it for (Crowd::ask). Two calls of one
// are made in their order: so a client that comes back is never there before its session.
//
// Want of memory: who cannot be sent off, or taken in, stays with the server that it was to leave;
// who cannot even go back there loses its connection, and its place and its share of the budget are
// free again.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "server_state.hpp"

namespace millrace::message {

namespace {
/// How often it is looked whether a client that is to leave has its answers.
constexpr std::chrono::milliseconds look_at_leaving_every{1};
/// How long its requests may wait for that at most.
constexpr std::chrono::milliseconds most_before_leaving{100};
}  // namespace

bool Crowd::ask(std::uint32_t server, std::function<void(Server::State&)> what) {
    const std::lock_guard guard{mutex_};
    Server::State* const its = server < servers_.size() ? servers_[server] : nullptr;
    if (its == nullptr) return false;
    its->hub.post([its, what = std::move(what)] { what(*its); });
    return true;
}

void Crowd::join(Server::State& server) {
    const std::lock_guard guard{mutex_};
    servers_.resize(std::max<std::size_t>(servers_.size(), server.number + 1));
    loads_.resize(servers_.size());
    servers_[server.number] = &server;
}

void Crowd::part(std::uint32_t server) noexcept {
    const std::lock_guard guard{mutex_};
    if (server < servers_.size()) servers_[server] = nullptr;
}

Crowd::Gap Crowd::gap_below(std::uint32_t server, std::uint64_t load) {
    const std::lock_guard guard{mutex_};
    loads_[server] = load;
    Gap gap{server, 0};
    for (std::uint32_t other = 0; other < loads_.size(); ++other) {
        if (servers_[other] == nullptr || loads_[other] + gap.requests >= load) continue;
        gap = {other, load - loads_[other]};
    }
    return gap;
}

void Crowd::shift(std::uint32_t from, std::uint32_t to, std::uint64_t load) {
    const std::lock_guard guard{mutex_};
    loads_[from] -= std::min(load, loads_[from]);
    loads_[to] += load;
}

namespace {
[[nodiscard]] bool may_move(Server::State& server, Server::State::Peer& peer) noexcept {
    return peer.phase == Server::State::Phase::joined && peer.line.ring() != nullptr &&
           peer.moves && server.shared == nullptr;
}
/// Nobody owes it anything, nor it anybody.
[[nodiscard]] bool is_settled(const Server::State::Peer& peer) noexcept {
    return peer.pending == 0 && !peer.is_clogged && !peer.is_fetching && peer.line->is_clear() &&
           !peer.line->has_announced() && !peer.line->is_fetching() && !peer.came_from.has_value();
}
}  // namespace

void Server::State::move(ClientId client, std::uint32_t to) {
    Peer* const peer = find(client);
    if (peer == nullptr || to == number || !may_move(*this, *peer)) return;
    if (!peer->leaving_for.has_value()) {
        leaving.push_back(client);
        peer->leaving_since = base::Clock::now();
    }
    peer->leaving_for = to;
    look_at_leaving();
}

void Server::State::look_at_leaving() {
    post_gathered();
    const auto is_late = [&, now = base::Clock::now()](const Peer& peer) {
        return now - peer.leaving_since >
               std::min<std::chrono::nanoseconds>(options.patience, most_before_leaving);
    };
    std::erase_if(leaving, [&](ClientId client) {
        Peer* const peer = find(client);
        if (peer == nullptr || !peer->leaving_for.has_value()) return true;
        if (is_settled(*peer) && !is_draining) {
            try {
                send_off(*peer);
            } catch (const std::exception& error) {
                base::log(base::LogLevel::warn, "message", "{} is not moved: {}",
                          peer->line->link().peer_name(), error.what());
                stay(*peer);
            }
            return true;
        }
        if (is_draining || is_late(*peer) ||
            peer->line->link().peer_now() != connect::PeerState::alive) {
            stay(*peer);
            return true;
        }
        // What it says of its last move, and what is READ of it, is found where its requests are.
        if (peer->came_from.has_value() || peer->is_fetching || peer->line->is_fetching()) {
            return false;
        }
        peer->is_paused = true;
        mailboxes.leave_out(peer->id.place);
        return false;
    });
    if (leaving.empty() || is_waiting_for_leaving) return;
    hub.after(look_at_leaving_every, [this] {
        is_waiting_for_leaving = false;
        look_at_leaving();
    });
    is_waiting_for_leaving = true;
}

void Server::State::stay(Peer& peer) noexcept {
    peer.leaving_for.reset();
    if (!peer.is_paused) return;
    peer.is_paused = false;
    mailboxes.looked(peer.id.place, peer.line.ring()->awaited());
    mailboxes.remind(peer.id.place);
}

void Server::State::send_off(Peer& peer) {
    const std::uint32_t to = *peer.leaving_for;
    // First what may throw.
    const auto moving = std::make_shared<Moving>();
    std::function<void(State&)> arrival = [moving](State& server) { server.arrive(moving); };
    if (leaves) {
        moving->known = leaves(peer.id);
    } else if (unwanted) {
        unwanted(peer.id, 0);
    }
    // Awake, as who has just joined is: it rings for nobody.
    peer.line.ring()->wake();
    unwatch(peer);
    peer.id.generation += 1;  // for the handler it has left
    peer.held = peer.line->link().shared_endpoint();
    moving->line = std::move(peer.line);
    moving->session = static_cast<Session&&>(peer);
    moving->from = peer.id;
    peer.session = moving->session.session;
    peer.resumes = moving->session.resumes;
    peer.phase = Phase::moved;
    peer.moved_to = to;
    peer.is_paused = false;
    peer.owed_part.set_anyhow(0);
    peer.is_plain = false;
    peer.leaving_for.reset();
    --counts.clients;
    try {
        if (crowd->ask(to, std::move(arrival))) return;
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "{} is not moved: {}",
                  moving->line->link().peer_name(), error.what());
    }
    take_back(*moving);
}

void Server::State::take_in(Peer& peer, Moving& moving) {
    peer.line = std::move(moving.line);
    try {
        watch(peer);
    } catch (...) {
        moving.line = std::move(peer.line);
        throw;
    }
    static_cast<Session&>(peer) = std::move(moving.session);
    peer.phase = Phase::joined;
    peer.since = base::Clock::now();
    peer.balanced_at = peer.taken;
    peer.is_plain = !peer.resumes;
    peer.begun = {};
    peer.owed_part = HeldPart{crowd->held()};
    peer.owed_part.set_anyhow(peer.line->owed_bytes());
    ++counts.clients;
}

void Server::State::hand_over(Peer& peer, Knowledge known) noexcept {
    try {
        if (comes) comes(peer.id, std::move(known));
    } catch (const std::exception& error) {
        lose(peer, error);
    }
}

void Server::State::arrive(const std::shared_ptr<Moving>& moving) {
    Peer* peer = nullptr;
    try {
        peer = vacant_place();
        if (peer == nullptr) return send_back(moving, "it has no place");
        peer->phase = Phase::joining;
        peer->came_from = moving->from;
        RingLane& ring = *moving->line.ring();
        const bool has_byte = mailboxes.polling() == Polling::dense && !ring.comes_by_send();
        peer->box = has_byte ? mailboxes.grant(peer->id.place, ring.link().protection_domain())
                             : verbs::RemoteAddress{};
        sessions.emplace(moving->session.session.bits[0], peer->id.place);
        take_in(*peer, *moving);
    } catch (const std::exception& error) {
        if (peer != nullptr) {
            sessions.erase(moving->session.session.bits[0]);
            mailboxes.withdraw(peer->id.place);
            peer->came_from.reset();
            vacate(*peer);
        }
        return send_back(moving, error.what());
    }
    peer->line->link().count_for(number);
    ++counts.moved;
    if (mailboxes.polling() == Polling::dense && !peer->is_by_send) {
        peer->is_by_send = true;
        by_send.push_back(peer->id.place);
    }
    hand_over(*peer, std::move(moving->known));
    if (!peer->line.has_value()) return;
    try {
        welcome(*peer, true);
    } catch (const std::exception& error) {
        lose(*peer, error);
    }
}

void Server::State::send_back(const std::shared_ptr<Moving>& moving,
                              std::string_view why) noexcept {
    base::log(base::LogLevel::warn, "message", "server {} does not take {} over: {}", number,
              moving->line->link().peer_name(), why);
    try {
        const auto back = [moving](State& server) { server.take_back(*moving); };
        if (crowd->ask(moving->from.server, back)) return;
    } catch (const std::exception& error) {
        // Its former place is lost to that server, too.
        base::log(base::LogLevel::warn, "message", "dropped {}: {}",
                  moving->line->link().peer_name(), error.what());
    }
    crowd->leave();  // its session ends
}

void Server::State::take_back(Moving& moving) noexcept {
    Peer* const peer = find(moving.from);
    if (peer == nullptr || peer->phase != Phase::moved) {
        crowd->leave();  // it was closed meanwhile
        return;
    }
    // Its byte is its own still, and it was told nothing.
    try {
        take_in(*peer, moving);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "dropped {}: {}",
                  moving.line->link().peer_name(), error.what());
        vacate(*peer);
        crowd->leave();
        return;
    }
    peer->held.reset();
    hand_over(*peer, std::move(moving.known));
}

void Server::State::settle(Peer& peer) noexcept {
    if (!peer.came_from.has_value()) return;
    const ClientId from = *std::exchange(peer.came_from, {});
    try {
        (void)crowd->ask(from.server, [from](State& server) { server.give_up_place(from); });
    } catch (const std::exception& error) {
        // The place is lost to that server, and nothing else.
        base::log(base::LogLevel::warn, "message", "{}", error.what());
    }
}

void Server::State::give_up_place(ClientId former) noexcept {
    Peer* const peer = find(former);
    if (peer != nullptr && peer->phase == Phase::moved) vacate(*peer);
}

void Server::State::send_on(Peer& newcomer, const Peer& former, const Hello& hello) {
    // First what may throw.
    const auto line = std::make_shared<AnyLane>();
    std::function<void(State&)> arrival = [line, hello](State& server) {
        server.take_over(std::move(*line), hello);
    };
    *line = take_line(newcomer);
    vacate(newcomer);
    // If that server is gone, the client finds that its connection has ended, and so is its
    // session.
    try {
        (void)crowd->ask(former.moved_to, std::move(arrival));
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "dropped {}: {}", (*line)->link().peer_name(),
                  error.what());
    }
}

void Server::State::take_over(AnyLane line, const Hello& hello) {
    line->link().count_for(number);
    Peer* const peer = add(std::move(line));
    if (peer == nullptr) return;
    const std::uint32_t generation = peer->id.generation;
    is_taking_over = true;
    try {
        join(*peer, hello);
    } catch (const std::exception& error) {
        is_taking_over = false;
        return lose(*peer, error);
    }
    is_taking_over = false;
    // As behind any look; unless it was the session's, and its hello is passed.
    if (peer->id.generation != generation || !peer->line.has_value()) return;
    peer->line->pass();
    looked(*peer);
}

void Server::State::balance() {
    std::uint64_t load = 0;
    for (const auto& peer : peers) {
        if (peer->phase != Phase::joined) continue;
        peer->rate = peer->taken - std::min(peer->taken, peer->balanced_at);
        peer->balanced_at = peer->taken;
        load += peer->rate;
    }
    const Crowd::Gap gap = crowd->gap_below(number, load);
    // What differs by less comes and goes by itself.
    constexpr std::uint64_t worth = 4;
    if (gap.requests == 0 || gap.requests < load / worth) return;
    Peer* best = nullptr;
    const auto left = [&](const Peer& peer) {
        const std::uint64_t behind = 2 * peer.rate;
        return behind > gap.requests ? behind - gap.requests : gap.requests - behind;
    };
    for (const auto& peer : peers) {
        // One who is nearly all of the difference would make the other server the busier one.
        if (!may_move(*this, *peer) || peer->rate == 0 || peer->rate > gap.requests / worth * 3 ||
            peer->leaving_for.has_value() || peer->came_from.has_value()) {
            continue;
        }
        if (best == nullptr || left(*peer) < left(*best)) best = peer.get();
    }
    if (best == nullptr) return;
    crowd->shift(number, gap.below, best->rate);
    move(best->id, gap.below);
}

}  // namespace millrace::message
