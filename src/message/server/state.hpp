// The state of a server: its parts, and how a request goes through them. Each part has what it
// needs to itself, and asks the others for the rest.
//
//   Places          which client is where, and how often a place was given (peer.hpp: one client)
//   Turns           whose turn it is: the scan, and where it goes on
//   Arrivals        clients that the scan does not find by itself: without rings, by SEND, hellos
//   Announced       requests that the server READs
//   Answers         answers: at once, later, several in one message; kept; waiting for room
//   PutOffRequests  requests that others are served before
//   Clients         joining, coming back, leaving
//   Rest            sleeping
//
// serving.cpp takes requests, request.cpp is what a handler may do with one, server.cpp has the
// public calls of Server, set_up.cpp makes servers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "channel/setup.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/server.hpp"
#include "server/announced.hpp"
#include "server/answers.hpp"
#include "server/arrivals.hpp"
#include "server/clients.hpp"
#include "server/places.hpp"
#include "server/put_off_requests.hpp"
#include "server/rest.hpp"
#include "server/turns.hpp"

namespace millrace::message {

/// What a server has before it listens.
struct Foundation {
    std::unique_ptr<SharedReceives> receives;
    LaneHosts hosts;
};

/// What is on a server's statistics page, as show() sets it.
[[nodiscard]] std::vector<base::Figure> figures_of_servers();

struct Server::State : detail::Serving {
    State(Foundation foundation, connect::Listener listener, ServerOptions chosen, Polling polling,
          std::string why, std::shared_ptr<Crowd> its_crowd, std::uint32_t number);
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();

    void become_copy() noexcept { is_copy = true; }
    /// Throws Error in a child made by fork: the clients are its parent's.
    void check_process(const char* attempted) const {
        if (is_copy) [[unlikely]]
            base::refuse_copy(attempted, clients.address().to_string());
    }
    /// Throws Error (invalid_argument): it is another thread's.
    void check_thread(const char* attempted) const;

    // --- serving

    std::size_t turn(const detail::HandlerRef& handler, std::size_t budget);
    [[nodiscard]] bool has_too_many_pending() const noexcept {
        return counts.pending >= options.max_pending;
    }
    /// One lap of a drain. True: what was here before has its answer.
    [[nodiscard]] bool drain_by_a_lap(const detail::HandlerRef& handler);
    /// True, once: it is to stop.
    [[nodiscard]] bool take_stop() noexcept;

    /// Where the answer of so many bytes goes in the message of answers to this client, whose
    /// requests of one message are served now. Null: it goes by itself.
    [[gnu::always_inline]] std::byte* place_in_batch(Peer& peer, std::uint64_t id,
                                                     std::size_t size) {
        std::byte* const place = batch.place_for(size);
        if (place != nullptr) [[likely]]
            return place;
        return answering.place_in_next_batch(peer, id, size);
    }
    /// It lies there.
    [[gnu::always_inline]] void add_to_batch(std::uint64_t id, Outcome outcome,
                                             std::size_t size) noexcept {
        batch.add(entry_of(id, outcome, size));
    }

    // --- statistics

    /// Tells the statistics page, and with it other threads.
    void show() noexcept;
    [[nodiscard]] ServerStats shown() const noexcept;

    ServerOptions options;
    ChannelOptions channel_options;
    std::shared_ptr<Crowd> crowd;
    std::string why_polling;
    bool is_draining = false;
    bool is_copy = false;             ///< this is a child made by fork
    std::uint64_t laps_of_drain = 0;  ///< in which any client's messages could be taken
    std::atomic<bool> stopping{false};
    Arrivals arrivals;  ///< its hosts and receives outlive all connections
    connect::Hub hub;
    Places places;
    Turns turns;
    Announced announced;
    Answers answering;
    PutOffRequests put_off;
    Rest rest;
    Clients clients;
    mutable base::StatisticsPage statistics;
    base::ForkWatch fork_watch{*this};

  private:
    enum class Taken : std::uint8_t {
        message,  ///< it is to be passed
        passed,   ///< what was to be passed is
        none,     ///< it does not keep to the protocol
    };
    /// The next message of a client that the scan has found. How many requests it took. Of several
    /// requests in one message as many as it may, at most `budget`.
    [[gnu::always_inline]] std::size_t visit(Peer& peer, const detail::HandlerRef& handler,
                                             std::size_t budget);
    /// A visit for anything but the next request, whole, of a client that is_plain.
    [[gnu::noinline]] std::size_t visit_any(Peer& peer, const detail::HandlerRef& handler,
                                            std::size_t budget);
    Taken take(Peer& peer, std::span<const std::byte> message, const detail::HandlerRef& handler,
               std::size_t budget, std::size_t& requests);
    Taken take_request(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
                       const detail::HandlerRef& handler, std::size_t& requests);
    /// A message that is too large to be whole here. False: its client is dropped.
    bool take_too_large(Peer& peer, std::span<const std::byte> message,
                        const detail::HandlerRef& handler);
    /// Messages of several requests, from that one on, until so many are served, or `budget`.
    Taken take_batches(Peer& peer, SessionHeader head, std::span<const std::byte> entries,
                       const detail::HandlerRef& handler, std::size_t budget,
                       std::size_t& requests);
    /// Requests of one such message, until all are served, or `requests` are `most`. False: it does
    /// not keep to the protocol.
    bool serve_batch(Peer& peer, const SessionHeader& head, std::span<const std::byte> entries,
                     const detail::HandlerRef& handler, std::size_t most, std::size_t& requests);
    /// A request that was taken.
    [[gnu::always_inline]] void execute(Peer& peer, const SessionHeader& header,
                                        std::span<const std::byte> payload,
                                        const detail::HandlerRef& handler);
    /// One that was READ, or was to be.
    void take_fetched(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
                      const detail::HandlerRef& handler);
};

namespace detail {
/// What the server does with a Request that its handler may not.
struct RequestAccess {
    [[nodiscard]] static Request make(Server::State& server, Peer& peer,
                                      const SessionHeader& header,
                                      std::span<const std::byte> payload) noexcept {
        return {&server, &peer, peer.id, header, payload};
    }
    [[nodiscard]] static Server::State& server_of(const Request& request) noexcept {
        return *static_cast<Server::State*>(request.server_);
    }
    [[nodiscard]] static Peer& peer_of(const Request& request) noexcept {
        return *static_cast<Peer*>(request.peer_);
    }
    [[nodiscard]] static bool is_answered(const Request& request) noexcept {
        return request.stage_ == Request::Stage::answered;
    }
    static void mark_as_put_off(Request& request, std::uint64_t taken_at) noexcept {
        request.was_put_off_ = true;
        request.taken_at_ = taken_at;
    }
};

/// Has the handler have it.
[[gnu::always_inline]] inline void hand_over(Server::State& server, Peer& peer, Request& request,
                                             const HandlerRef& handler) {
    handler.call(handler.handler, request);
    if (!RequestAccess::is_answered(request)) [[unlikely]]
        (void)server.answering.answer(peer, request.id(), Outcome::dropped, {});
}

}  // namespace detail

}  // namespace millrace::message
