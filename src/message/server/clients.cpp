#include "server/clients.hpp"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "channel/setup.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/connect/accepting.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;
using Phase = Peer::Phase;

namespace {

/// How long a peer may stay without a hello.
constexpr std::chrono::seconds hello_patience{5};
/// How often the server looks for clients that have been away, or silent, for too long; more often
/// where its patience is short.
constexpr std::chrono::milliseconds house_period{500};
constexpr std::chrono::milliseconds least_house_period{20};

[[nodiscard]] std::uint64_t longest_answer(const Peer& peer, const Hello& hello) {
    if (peer.has_ring()) return hello.max_answer;
    return std::min<std::uint64_t>(hello.max_answer,
                                   NetworkLane::largest_message - session_head_bytes);
}

}  // namespace

Clients::Clients(Server::State& server, connect::Listener listener)
    : server_{server}, listener_{std::move(listener)} {}

Clients::~Clients() = default;

void Clients::begin() {
    const auto& options = server_.options;
    server_.hub.every(std::clamp<std::chrono::nanoseconds>(options.session_patience,
                                                           least_house_period, house_period),
                      [this] { keep_house(); });
    if (!options.acceptor.has_value()) {
        server_.hub.add(listener_.descriptor(), [this] {
            while (auto newcomer = try_accept()) take(std::move(*newcomer));
        });
        return;
    }
    acceptor_.emplace(
        listener_.descriptor(), [this] { return try_accept(); }, server_.hub,
        [this](Newcomer newcomer) { take(std::move(newcomer)); }, *options.acceptor);
}

void Clients::end() noexcept {
    acceptor_.reset();
    server_.hub.adopt();  // nobody else uses it any more
    server_.answering.end();
    server_.places.each([this](Peer& peer) {
        if (peer.line.has_value()) end_line(peer);
    });
}

std::optional<Clients::Newcomer> Clients::try_accept() {
    const ServerOptions& options = server_.options;
    try {
        return connect::try_accept_set_up(listener_, [&](connect::Link link) -> Newcomer {
            if (has_no_rings(options, link.transport())) return Newcomer{std::move(link)};
            // The peer's word is here already, so nothing is waited for.
            auto ring = std::make_unique<RingLane>(
                set_up_accepted(std::move(link), server_.channel_options, base::Deadline::now(),
                                {.receives_by_send = options.tuning.requests_by_send,
                                 .sends_by_send = options.tuning.answers_by_send,
                                 .slot_bytes = options.tuning.slot_bytes,
                                 .shared = server_.arrivals.shared()}),
                options.max_request_bytes + session_head_bytes, server_.crowd->held());
            (void)ring->watch(options.wait.spin);
            return AnyLane{std::move(ring)};
        });
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "{}", error.what());
        return std::nullopt;
    }
}

void Clients::take(Newcomer newcomer) {
    try {
        if (auto* const link = std::get_if<connect::Link>(&newcomer)) {
            add(AnyLane{server_.arrivals.meet(std::move(*link))});
        } else {
            add(std::move(std::get<AnyLane>(newcomer)));
        }
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "message", "{}", error.what());
    }
}

void Clients::add(AnyLane line) {
    Peer* const vacant = server_.places.take_vacant();
    if (vacant == nullptr) {
        base::log(base::LogLevel::warn, "message", "dismissed {}: too many are joining",
                  line->link().peer_name());
        return;
    }
    Peer& peer = *vacant;
    peer.phase = Phase::joining;
    peer.since = base::Clock::now();
    peer.max_answer = 0;
    peer.begun = {};
    peer.owed_part = HeldPart{server_.crowd->held()};
    peer.line = std::move(line);
    try {
        if (peer.has_ring()) server_.arrivals.await_hello(peer);
        watch(peer);
    } catch (...) {
        peer.line.reset();
        vacate(peer);
        throw;
    }
}

void Clients::watch(Peer& peer) {
    if (peer.has_ring()) {
        peer.member = server_.hub.add(peer.ring().watch(server_.options.wait.spin),
                                      [this, &peer] { server_.rest.became_readable(peer); });
    }
    server_.arrivals.add(peer);
    if (!peer.has_ring()) return server_.turns.tell(peer);
    server_.turns.look_again(peer);
    server_.rest.activate(peer);
}

void Clients::unwatch(Peer& peer) noexcept {
    server_.turns.mailboxes().leave_out(peer.id.place);
    server_.arrivals.remove(peer);
    if (!peer.has_ring()) return;
    server_.hub.remove(peer.member);
    peer.ring().unwatch();
}

void Clients::join(Peer& peer, const Hello& hello) {
    if (server_.is_draining) return refuse(peer, "the server is about to stop");
    const auto known =
        hello.session.is_none() ? sessions_.end() : sessions_.find(hello.session.bits[0]);
    if (known != sessions_.end()) {
        Peer& former = server_.places[known->second];
        if (former.session.name() == hello.session && former.session.resumes()) {
            return join_again(peer, former, hello);
        }
    }
    if (!grant(peer, peer)) return;
    const ServerOptions& options = server_.options;
    peer.session.begin(hello, std::min(hello.window, options.tuning.max_window),
                       server_.crowd->held());
    try {
        sessions_.emplace(peer.session.name().bits[0], peer.id.place);
    } catch (...) {
        peer.session.end();
        throw;
    }
    if (!server_.crowd->enter()) {
        sessions_.erase(peer.session.name().bits[0]);
        peer.session.end();
        return refuse(peer, fmt::format("the server has its {} clients already (max_clients)",
                                        options.max_clients));
    }
    peer.phase = Phase::joined;
    peer.since = base::Clock::now();
    peer.is_plain = !peer.session.resumes() && peer.has_ring();
    agree(peer, hello);
    ++server_.counts.clients;
    ++server_.counts.joined;
    welcome(peer, false);
}

void Clients::join_again(Peer& peer, Peer& former, const Hello& hello) {
    // Its former channel may be here still: it has ended, or its client is done with it.
    if (former.line.has_value()) part(former, false);
    if (!grant(former, peer)) return;
    peer.line->pass();
    unwatch(peer);
    former.line = std::move(peer.line);
    vacate(peer);
    try {
        watch(former);
    } catch (...) {
        former.line.reset();
        throw;
    }
    former.phase = Phase::joined;
    former.since = base::Clock::now();
    --server_.counts.away;
    agree(former, hello);
    ++server_.counts.resumed;
    welcome(former, true);
}

void Clients::agree(Peer& peer, const Hello& hello) const noexcept {
    peer.max_answer = longest_answer(peer, hello);
    peer.batches = hello.batches && peer.has_ring();
    const ServerOptions& options = server_.options;
    const bool is_limited = options.admission.budget.registered_bytes != connect::Budget::unlimited;
    if (hello.reads_large && options.tuning.large.allowed && !is_limited && peer.has_ring()) {
        LargeMessages setting = options.tuning.large;
        setting.keeps_order = false;  // answers have none
        peer.ring().agree(setting, RingLane::Excess::waits);
    }
}

bool Clients::grant(Peer& peer, Peer& newcomer) {
    peer.box = {};
    // Completions stand in for the byte of requests by SEND.
    if (!server_.turns.is_dense() || !newcomer.has_ring() || newcomer.ring().comes_by_send()) {
        return true;
    }
    try {
        peer.box = server_.turns.mailboxes().grant(peer.id.place,
                                                   newcomer.line->link().protection_domain());
        return true;
    } catch (const base::Error& error) {
        refuse(newcomer, error.what());
        return false;
    }
}

void Clients::welcome(Peer& peer, bool resumed) {
    const Welcome word{
        .session = peer.session.name(),
        .resumed = resumed,
        .client = peer.id.place,
        .generation = peer.id.generation,
        .window = peer.session.window(),
        .polling = !peer.has_ring() ? Polling::flag : server_.turns.mailboxes().polling(),
        .mailbox = peer.box.address,
        .mailbox_rkey = peer.box.rkey,
        .server = peer.id.server,
        .max_request = server_.options.max_request_bytes,
        .reads_large = peer.line->has_agreed(),
        .batches = peer.batches};
    (void)peer.line->send(pack(SessionHeader{.kind = SessionKind::welcome}), pack(word));
    server_.answering.sent(peer);
}

void Clients::refuse(Peer& peer, std::string why) {
    ++server_.counts.refused;
    base::log(base::LogLevel::info, "message", "refused {}: {}", peer.line->link().peer_name(),
              why);
    peer.phase = Phase::refused;
    (void)peer.line->send(pack(SessionHeader{.kind = SessionKind::refused}),
                          std::as_bytes(std::span{why}));
    server_.answering.sent(peer);
}

void Clients::end_line(Peer& peer) noexcept {
    unwatch(peer);
    server_.turns.mailboxes().withdraw(peer.id.place);
    peer.line.reset();
}

void Clients::part(Peer& peer, bool for_good) noexcept {
    if (peer.line.has_value()) {
        peer.line->answer_goodbye();
        end_line(peer);
    }
    peer.is_paused = false;
    peer.begun = {};
    peer.owed_part.set_anyhow(0);
    peer.is_plain = false;
    peer.batch_at = 0;
    if (!for_good && peer.phase == Phase::joined && peer.session.resumes()) {
        peer.phase = Phase::away;
        ++server_.counts.away;
        peer.since = base::Clock::now();
        return;
    }
    vacate(peer);
}

void Clients::misbehaved(Peer& peer, std::string_view how) noexcept {
    ++server_.counts.misbehaved;
    base::log(base::LogLevel::warn, "message", "dropped {}: {}", peer.line->link().peer_name(),
              how);
    part(peer, true);
}

void Clients::lose(Peer& peer, const std::exception& error) noexcept {
    if (!peer.line.has_value()) return;
    base::log(base::LogLevel::warn, "message", "dropped {}: {}", peer.line->link().peer_name(),
              error.what());
    part(peer, false);
}

void Clients::vacate(Peer& peer) noexcept {
    if (peer.phase == Phase::joined || peer.phase == Phase::away) {
        sessions_.erase(peer.session.name().bits[0]);
        if (peer.phase == Phase::away) --server_.counts.away;
        --server_.counts.clients;
        server_.crowd->leave();
        ++server_.counts.left;
    }
    server_.answering.forget(peer);
    peer.session.end();
    peer.batch_at = 0;
    server_.places.give_back(peer);
}

bool Clients::try_close_all() {
    bool is_done = true;
    server_.places.each([&](Peer& peer) {
        if (peer.line.has_value()) {
            if (peer.line->try_close() == Status::full) {
                is_done = false;
                return;
            }
            end_line(peer);
        }
        if (peer.phase != Phase::vacant) part(peer, true);
    });
    return is_done;
}

void Clients::look_after_begun(Peer& peer, base::Clock::time_point now) {
    constexpr std::size_t least = std::size_t{64} << 10;
    const Begun begun = peer.line->begun();
    // What is not taken from a client cannot go on.
    if (begun.bytes == 0 || peer.begun.bytes == 0 || peer.is_paused ||
        begun.number != peer.begun.number || begun.bytes >= peer.begun.bytes + least) {
        peer.begun = begun;
        peer.begun_since = now;
    } else if (now - peer.begun_since > server_.options.patience) {
        misbehaved(peer, "a request of which a part has come does not go on");
    }
}

void Clients::keep_house() {
    const auto now = base::Clock::now();
    server_.places.each([&](Peer& peer) {
        const auto age = now - peer.since;
        if (peer.phase == Phase::joining && age > hello_patience) {
            misbehaved(peer, fmt::format("it has not asked for a session within {} s",
                                         hello_patience.count()));
        } else if (peer.phase == Phase::refused && age > hello_patience) {
            part(peer, true);
        } else if (peer.phase == Phase::away && age > server_.options.session_patience) {
            vacate(peer);
        }
        if (peer.line.has_value()) look_after_begun(peer, now);
        if (peer.line.has_value()) server_.announced.look_after(peer, now);
        if (peer.line.has_value()) peer.line->tidy();
    });
    server_.show();
}

}  // namespace millrace::message
