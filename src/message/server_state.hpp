// The state of a server: its clients by place, who of them is awake, whose answers wait. Used by
// server.cpp (serving), server_answers.cpp (what is answered otherwise), server_batches.cpp
// (several at once), server_large.cpp (requests that are READ), server_clients.cpp (joining and
// leaving), server_moves.cpp (from one server of a group to another) and server_rest.cpp
// (sleeping).
//
// A client is at its place in one of five phases:
//
//   joining   its channel stands, and it has not said hello yet
//   joined    it is served
//   away      its channel broke, and its session is kept for it (only if it asked for that)
//   refused   it has been told why, and is to close
//   moved     another server of the group has it, and it may write to its former byte still
//
// and its channel is awake or asleep (connect/readiness.hpp):
//
//   asleep    the client was told that nobody looks: it rings, and that makes the hub readable
//   awake     it does not ring; it is in `active`, and falls asleep when the server does
//
// So every channel is looked at, or rings: who is not in `active` sleeps.
//
// A client by packets or a socket (network_lane.hpp) has no ring to look at, nor anybody who rings.
// The hosts of all such lanes tell who may have written, and such a place is found by the same scan
// as the others, until a look has found nothing more. It is never in `active`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "batch.hpp"
#include "hot_places.hpp"
#include "lane/lanes.hpp"
#include "mailboxes.hpp"
#include "memory.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/forks.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/message/held_bytes.hpp"
#include "millrace/message/server.hpp"
#include "reply_queue.hpp"
#include "setup.hpp"
#include "shared_receives.hpp"

namespace millrace::message {

/// An error's text, as much of it as is told.
[[nodiscard]] inline std::span<const std::byte> bytes_of_text(std::string_view text) noexcept {
    constexpr std::size_t longest_text = 1000;
    return std::as_bytes(std::span{text.substr(0, longest_text)});
}

/// What the servers of a group share, or one has that is alone: how many clients they may have, how
/// busy each is, and the way from one to another.
class Crowd {
  public:
    Crowd(std::uint32_t most, std::shared_ptr<HeldBytes> held) noexcept
        : most_{most}, held_{std::move(held)} {}
    /// What their clients make them hold.
    [[nodiscard]] const std::shared_ptr<HeldBytes>& held() const noexcept { return held_; }
    /// Any thread. False: there are `most` already.
    [[nodiscard]] bool enter() noexcept {
        std::uint32_t now = clients_.load(std::memory_order_relaxed);
        do {
            if (now >= most_) return false;
        } while (!clients_.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
        return true;
    }
    void leave() noexcept { clients_.fetch_sub(1, std::memory_order_relaxed); }

    /// Any thread: has that server do it, in its own thread. False: it is gone.
    bool ask(std::uint32_t server, std::function<void(Server::State&)> what);
    void join(Server::State& server);
    void part(std::uint32_t server) noexcept;

    /// The least busy of the other servers, and by how many requests it is less busy than this one,
    /// which took `load` since it asked last. None: 0.
    struct Gap {
        std::uint32_t below = 0;
        std::uint64_t requests = 0;
    };
    [[nodiscard]] Gap gap_below(std::uint32_t server, std::uint64_t load);
    /// Clients that make so many requests are about to go there.
    void shift(std::uint32_t from, std::uint32_t to, std::uint64_t load);

  private:
    const std::uint32_t most_;
    const std::shared_ptr<HeldBytes> held_;
    std::atomic<std::uint32_t> clients_{0};
    std::mutex mutex_;  ///< of these, by number
    std::vector<Server::State*> servers_;
    std::vector<std::uint64_t> loads_;
};

struct Server::State : detail::Serving {
    /// What is known of an answer that its client has not acknowledged.
    struct KeptAnswer {
        std::uint64_t id = 0;
        Outcome outcome = Outcome::ok;
        std::vector<std::byte> payload;
    };

    /// A request that others are served before.
    struct PutOff {
        ClientId client;
        SessionHeader header;
        std::vector<std::byte> payload;
        std::uint64_t taken_at = 0;  ///< ticks, as Request's
        std::uint64_t at = 0;        ///< ticks
    };

    /// What is kept of a client's session; it moves as it is.
    struct Session {
        SessionName session{};
        bool resumes = false;
        bool moves = false;    ///< the client knows what a second welcome means
        bool batches = false;  ///< both ends send several requests, or answers, in one message
        /// Of the entries of the message in front, those of so many bytes are served.
        std::size_t batch_at = 0;
        std::uint32_t window = 0;
        std::uint64_t mask = 0;          ///< of a request's number, for its place in these:
        std::uint64_t taken = 0;         ///< the highest number that was taken
        std::uint64_t acknowledged = 0;  ///< every number below is; only if it resumes
        std::uint64_t max_answer = 0;
        std::vector<std::uint64_t> deferred{};  ///< numbers; 0: none
        std::vector<KeptAnswer> kept{};         ///< only if it resumes
        std::size_t kept_bytes = 0;
        HeldPart kept_part{};  ///< of these
        /// Numbers that were taken by announcements and have no answer yet; only if it resumes.
        std::vector<std::uint64_t> unread{};
    };

    /// A client on its way from one server to another, to whom nothing is owed.
    struct Moving {
        AnyLane line;
        Session session;
        ClientId from{};  ///< the place that is kept for it
        Knowledge known;  ///< of the handler
    };

    struct Peer : Session {
        enum class Phase : std::uint8_t { vacant, joining, joined, away, refused, moved };

        Peer(std::uint32_t its_place, std::uint32_t its_server) noexcept
            : id{its_place, 0, its_server} {}

        ClientId id;
        Phase phase = Phase::vacant;
        bool is_plain = false;      ///< joined, by rings, and its session does not resume
        bool is_active = false;     ///< stands in `active`
        bool is_clogged = false;    ///< stands in `clogged`
        bool is_by_send = false;    ///< stands in `by_send`
        bool is_paused = false;     ///< too many answers wait: its requests are not taken
        bool is_gathering = false;  ///< stands in `gathering`
        bool is_fetching = false;   ///< stands in `fetching`
        AnyLane line;
        verbs::RemoteAddress box{};  ///< its byte, if it sets one
        connect::Hub::Id member{};
        base::Clock::time_point since{};  ///< of its phase
        base::Clock::time_point clogged_since{};
        std::uint64_t clogged_at = 0;           ///< Lane::flushed_bytes then
        HeldPart owed_part{};                   ///< of Line::owed_bytes
        Begun begun{};                          ///< the message of which a part had come …
        base::Clock::time_point begun_since{};  ///< … then
        base::Clock::time_point fetching_since{};
        std::uint64_t fetching_at = 0;  ///< Lane::fetch_progress then
        std::uint32_t pending = 0;      ///< of Session::deferred

        // Between two servers.
        std::optional<std::uint32_t> leaving_for;  ///< stands in `leaving`
        base::Clock::time_point leaving_since{};
        std::optional<ClientId> came_from;        ///< until its client knows that it is here
        std::uint32_t moved_to = 0;               ///< if it has moved
        std::shared_ptr<connect::Endpoint> held;  ///< … the domain of its byte
        std::uint64_t balanced_at = 0;            ///< `taken` then
        std::uint64_t rate = 0;                   ///< requests in the time before
    };
    using Phase = Peer::Phase;

    State(std::unique_ptr<SharedReceives> its_receives, LaneHosts its_hosts,
          connect::Listener its_listener, ServerOptions chosen, Polling polling,
          std::shared_ptr<Crowd> its_crowd, std::uint32_t its_number);
    State(const State&) = delete;
    void become_copy() noexcept { is_copy = true; }
    /// Throws Error in a child made by fork: the clients are its parent's.
    void check_process(const char* attempted) const {
        if (is_copy) [[unlikely]]
            base::refuse_copy(attempted, listener.address().to_string());
    }
    State& operator=(const State&) = delete;
    ~State();

    // --- serving

    std::size_t turn(const detail::HandlerRef& handler, std::size_t budget);
    /// Once through the places in [from, to), from behind who was served last. How many requests.
    std::size_t lap(const detail::HandlerRef& handler, std::size_t budget, std::size_t from,
                    std::size_t to);
    /// The same of the group whose turn it is; of another one, if that has nothing.
    std::size_t lap_of_groups(const detail::HandlerRef& handler, std::size_t budget);
    void begin_group(std::size_t place) noexcept;
    /// The next message of a client whom next() has found. How many requests it took. Of several
    /// requests in one message as many as it may, at most `budget`.
    [[gnu::always_inline]] std::size_t visit(Peer& peer, const detail::HandlerRef& handler,
                                             std::size_t budget);
    /// The same of anything but the next request, whole, of a client who is_plain.
    [[gnu::noinline]] std::size_t visit_otherwise(Peer& peer, const detail::HandlerRef& handler,
                                                  std::size_t budget);
    enum class Taken : std::uint8_t {
        message,  ///< it is to be passed
        passed,   ///< what was to be passed is
        none,     ///< it does not keep to the protocol
    };
    Taken take(Peer& peer, std::span<const std::byte> message, const detail::HandlerRef& handler,
               std::size_t budget, std::size_t& requests);
    /// Requests that came several in a message, of one client, that are served before another
    /// client's turn.
    static constexpr std::size_t requests_of_a_visit = 16;
    /// Messages of several requests, from that one on, until so many are served, or `budget`.
    Taken take_batches(Peer& peer, SessionHeader head, std::span<const std::byte> entries,
                       const detail::HandlerRef& handler, std::size_t budget,
                       std::size_t& requests);
    /// Requests of one such message, until all are served, or `requests` are `most`. False: it does
    /// not keep to the protocol.
    bool serve_batch(Peer& peer, const SessionHeader& head, std::span<const std::byte> entries,
                     const detail::HandlerRef& handler, std::size_t most, std::size_t& requests);
    void serve(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
               const detail::HandlerRef& handler);
    /// The second half: of a request that was taken.
    void execute(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
                 const detail::HandlerRef& handler);
    /// A request that is to be READ. False: it does not keep to the protocol.
    bool take_announced(Peer& peer, const SessionHeader& header,
                        std::span<const std::byte> payload);
    /// … or was.
    void take_fetched(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
                      const detail::HandlerRef& handler);
    /// Drops a client whose request does not go on coming.
    void look_after_begun(Peer& peer, base::Clock::time_point now);
    /// Drops a client whose request cannot be READ.
    void look_after_fetching(Peer& peer, base::Clock::time_point now);
    /// Has those visited who have something to do about what is READ. True: there are some.
    bool look_for_fetched();
    /// Answers in place of the handler: the server is draining, or too much is pending.
    [[gnu::noinline]] void decline(Peer& peer, std::uint64_t id);
    /// Has the handler serve it.
    void hand_over(Peer& peer, std::uint64_t id, Request& request,
                   const detail::HandlerRef& handler);
    /// A request that will be answered later.
    void note_deferred(Peer& peer, std::uint64_t id) noexcept;
    /// … and is to be answered now. False: it was already, or taken back.
    bool take_deferred(Peer& peer, std::uint64_t id) noexcept;
    /// Keeps a request for later. False: there is no room.
    bool put_off(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
                 std::uint64_t taken_at);
    /// Behind a turn that took so many requests: those of them whose turn it is, or one. How many.
    [[gnu::noinline]] std::size_t serve_put_off(const detail::HandlerRef& handler,
                                                std::size_t requests);
    void serve_put_off_one(Peer& peer, const PutOff& one, const detail::HandlerRef& handler);
    /// The first one that is wanted still. False: there is none.
    bool serve_next_put_off(const detail::HandlerRef& handler);
    /// One lap of a drain. True: what was here before has its answer.
    [[nodiscard]] bool drain_by_a_lap(const detail::HandlerRef& handler);
    void repeat(Peer& peer, std::uint64_t id);
    void cancel(Peer& peer, std::uint64_t id);
    base::Status answer(Peer& peer, std::uint64_t id, Outcome outcome,
                        std::span<const std::byte> payload);
    /// The same of an answer that may be, and of a client with a line.
    [[gnu::noinline]] base::Status give(Peer& peer, const SessionHead& head,
                                        std::span<const std::byte> payload);
    /// Where the answer of so many bytes goes in the message of answers to this client, whose
    /// requests of one message are served now. Null: it goes by itself.
    [[gnu::always_inline]] std::byte* place_in_batch(Peer& peer, std::uint64_t id,
                                                     std::size_t size) {
        std::byte* const place = answers.place_for(size);
        if (place != nullptr) [[likely]]
            return place;
        return place_in_next_batch(peer, id, size);
    }
    [[gnu::noinline]] std::byte* place_in_next_batch(Peer& peer, std::uint64_t id,
                                                     std::size_t size);
    /// It lies there.
    [[gnu::always_inline]] void add_to_batch(std::uint64_t id, Outcome outcome,
                                             std::size_t size) noexcept {
        answers.add(entry_of(id, outcome, size));
    }
    /// What was laid of these goes.
    void send_answers();
    void commit_answers() noexcept;
    /// From here to its end answers to this client are laid in one message.
    class Answering {
      public:
        Answering(State& server, Peer& peer) noexcept
            : server_{&server}, peer_{&peer}, generation_{peer.id.generation} {
            server.answered = &peer;
        }
        Answering(const Answering&) = delete;
        Answering& operator=(const Answering&) = delete;
        /// What was thrown beside the handler does not hold back what was laid before.
        ~Answering() {
            if (is_there()) server_->commit_answers();
            server_->answers.drop();
            server_->answered = nullptr;
        }
        [[nodiscard]] bool is_there() const noexcept {
            return peer_->id.generation == generation_ && peer_->line.has_value();
        }

      private:
        State* server_;
        Peer* peer_;
        std::uint32_t generation_;
    };
    /// An answer was given to the line.
    void sent(Peer& peer) {
        if (!peer.line.is_clear() || peer.line->has_announced()) [[unlikely]]
            clog(peer);
    }
    void keep(Peer& peer, std::uint64_t id, Outcome outcome, std::span<const std::byte> payload);
    void forget(Peer& peer, KeptAnswer& kept) noexcept;
    void forget_acknowledged(Peer& peer, std::uint64_t lowest) noexcept;
    void take_replies();
    /// Tells the handler what comes of those who have written, from `place` on, as far as
    /// ServerOptions::look_ahead. Of how many: one at least, if `place` is one that next() gave.
    std::size_t expect(std::size_t place, std::size_t end, const detail::HandlerRef& handler);
    /// From here to post_gathered() answers to this client are laid side by side, and not posted.
    void gather(Peer& peer);
    void post_gathered() noexcept;
    /// Finds those without a ring who may have written, for the scan.
    void look_at_hosts();
    [[nodiscard]] bool hosts_are_due() noexcept;
    /// What Server::serve_beside() was given is looked at as a host is.
    void serve_beside(int descriptor, std::function<bool()> look);
    /// The scan shall find it, although nothing has come through a ring.
    void tell(const Peer& peer) noexcept {
        if (!peer.is_paused) mailboxes.tell(peer.id.place);
    }
    /// Behind a look: where the next message of this client is awaited.
    void looked(Peer& peer) {
        const RingLane* const ring = peer.line.ring();
        if (ring == nullptr) [[unlikely]] {
            looked_at_network(peer);
        } else {
            mailboxes.looked(peer.id.place, ring->awaited());
        }
    }
    [[gnu::noinline]] void looked_at_network(Peer& peer);
    void count_vain_look(const Peer& peer) noexcept {
        if (peer.line.ring() != nullptr && !peer.line->is_fetching()) ++counts.vain_looks;
    }
    /// Finds those who have written by SEND, for the scan.
    void look_for_sends();
    void clog(Peer& peer);
    /// Of a client that is paused: so little waits for it that it may ask for more.
    [[nodiscard]] bool may_go_on(const Peer& peer) const noexcept;
    /// True: some of what waits for room has found it.
    bool flush_clogged();
    [[nodiscard]] Peer* find(ClientId id) noexcept {
        Peer* const peer = id.place < peers.size() ? peers[id.place].get() : nullptr;
        return peer != nullptr && peer->id == id ? peer : nullptr;
    }

    // --- joining and leaving

    /// Who was let in: a lane, or what the serving thread is to make one of.
    using Newcomer = std::variant<connect::Link, AnyLane>;
    void accept();
    /// None, also where it failed, which is logged.
    [[nodiscard]] std::optional<Newcomer> try_accept();
    void take(Newcomer newcomer);
    /// Null: too many are joining.
    Peer* add(AnyLane line);
    [[nodiscard]] Peer* vacant_place();
    /// Another place: a list of some of them has room for it, and never throws.
    void make_place();
    void watch(Peer& peer);
    void unwatch(Peer& peer) noexcept;
    /// The connection of a newcomer that goes on elsewhere, in a session that is known.
    [[nodiscard]] AnyLane take_line(Peer& peer);
    /// Behind its hello. Its channel may be another client's then, who came back.
    void join(Peer& peer, const Hello& hello);
    /// `newcomer` may set the byte of the place of `peer`, if it shall. False: it is refused.
    [[nodiscard]] bool grant(Peer& peer, Peer& newcomer);
    /// On how large messages travel.
    void agree(Peer& peer, const Hello& hello) const noexcept;
    void welcome(Peer& peer, bool resumed);
    void refuse(Peer& peer, std::string why);
    /// Its channel ends. `for_good`: and so does its session.
    void part(Peer& peer, bool for_good) noexcept;
    void misbehaved(Peer& peer, std::string_view how) noexcept;
    /// What was to be done for a client failed, for want of memory, say: that costs its channel.
    [[gnu::cold]] void lose(Peer& peer, const std::exception& error) noexcept;
    void vacate(Peer& peer) noexcept;
    void keep_house();
    /// Finds those whose hello has come, for the scan: they know of no byte yet.
    [[gnu::noinline]] void look_for_hellos() noexcept;

    // --- from one server of a group to another

    /// That client, if it is here still, is to go there once nothing is owed to it.
    void move(ClientId client, std::uint32_t to);
    void look_at_leaving();
    /// It does not leave after all.
    void stay(Peer& peer) noexcept;
    void send_off(Peer& peer);
    void take_in(Peer& peer, Moving& moving);
    void arrive(const std::shared_ptr<Moving>& moving);
    void send_back(const std::shared_ptr<Moving>& moving, std::string_view why) noexcept;
    void take_back(Moving& moving) noexcept;
    /// The handler gets what the one that the client has left knew of it.
    void hand_over(Peer& peer, Knowledge known) noexcept;
    /// Its client knows that it is here: the former server may forget it.
    void settle(Peer& peer) noexcept;
    void give_up_place(ClientId former) noexcept;
    /// A client that has come back for a session that has moved.
    void send_on(Peer& newcomer, const Peer& former, const Hello& hello);
    void take_over(AnyLane line, const Hello& hello);
    /// Lets a client go to a less busy server, if that is worth it.
    void balance();

    // --- sleeping

    /// Throws Error (invalid_argument): it is another thread's.
    void check_thread(const char* attempted) const;
    base::Status rest(const base::Deadline& deadline);
    [[gnu::noinline]] void activate(Peer& peer) {
        if (peer.is_active) return;
        peer.is_active = true;
        active.push_back(peer.id.place);
    }
    void became_readable(Peer& peer);
    [[nodiscard]] bool kernel_is_due() noexcept {
        return must_look || base::ticks() - looked_at >= look_every;
    }
    void look_at_kernel();
    /// At one client who is awake, for what its own messages do not tell of.
    void look_aside() noexcept;
    /// Behind a look that found nothing: looks aside are so dear that a request would wait for
    /// them.
    [[nodiscard]] bool aside_is_due() noexcept { return (++empty_looks & 15) == 0; }
    /// True: a lap would find one, and begins there.
    [[nodiscard]] bool has_message();
    /// The same, by some looks at hot places alone, if these are likely and nobody waits.
    [[nodiscard]] bool has_message_of_hot() noexcept;
    [[nodiscard]] static bool is_at_hot_place(const Peer& peer) noexcept;
    /// A look at all has found this one.
    void note_found(const Peer& peer) noexcept;
    /// The first place in [from, to) with one; `to` if there is none.
    [[nodiscard]] std::size_t find_message(std::size_t from, std::size_t to);
    /// For who waits: has lines fetched that a request is likely to lie in. By bytes those of who
    /// was served last, so that they are here when the byte behind them is.
    void ask_for_frames() const noexcept;
    /// Tells the clients that are awake.
    void fall_asleep();
    void keep_loop(bool was_busy);
    void look_whether_loop_goes_on(bool was_busy);
    [[nodiscard]] std::chrono::nanoseconds next_nap_for_room() noexcept;
    /// Tells the statistics page, and with it other threads.
    void show() noexcept;
    /// What is on the page, as show() sets it.
    [[nodiscard]] static std::vector<base::Figure> figures();
    [[nodiscard]] ServerStats shown() const noexcept;

    ServerOptions options;
    ChannelOptions channel_options;
    std::unique_ptr<SharedReceives> shared;  ///< if Receives::shared
    LaneHosts hosts;
    connect::Hub hub;
    connect::Listener listener;
    std::shared_ptr<Crowd> crowd;
    std::uint32_t number;  ///< of those that share the address
    bool is_draining = false;
    std::uint64_t laps_of_drain = 0;  ///< of those in which any client's messages could be taken
    bool is_copy = false;             ///< this is a child made by fork
    bool is_nested = false;           ///< in a program's own loop
    std::atomic<bool> stopping{false};
    std::string why_polling;
    bool has_own_domains;  ///< each client by ring
    Mailboxes mailboxes;
    std::shared_ptr<detail::ReplyQueue> replies;
    std::vector<std::byte> scratch;       ///< of an answer that is not laid in place
    Peer* answered = nullptr;             ///< whose `answers` are
    std::deque<PutOff> waiting;           ///< requests that were put off, in their order
    std::size_t waiting_bytes = 0;        ///< … of their payload
    std::size_t put_off_now = 0;          ///< … of this turn
    std::size_t others_served = 0;        ///< while some waited
    std::uint64_t handed_put_off_at = 0;  ///< of the one that the handler has
    std::function<void(ClientId, std::uint64_t)> unwanted;  ///< whom on_unwanted() named
    std::function<Knowledge(ClientId)> leaves;              ///< … and on_moved()
    std::function<void(ClientId, Knowledge)> comes;

    std::vector<std::unique_ptr<Peer>> peers;  ///< by place
    std::vector<std::uint32_t> free_places;    ///< a heap, the lowest first
    std::size_t in_use = 0;                    ///< places from there on are vacant
    std::size_t cursor = 0;                    ///< behind the place that was served last
    /// Since somebody was served last, everybody was looked at, and what had written had a turn.
    /// Only then may a lap begin out of its order, at a hot place: so between two services of a
    /// client, however it was found, comes a look at everybody else.
    bool all_had_their_turn = false;
    bool is_found = false;  ///< a lap begins with a visit at `cursor`, whatever next() says
    HotPlaces hot;
    std::size_t group_begin = 0;        ///< of the group whose turn it is
    std::uint64_t group_end_ticks = 0;  ///< … until when
    std::vector<std::uint32_t> active;
    std::size_t aside = 0;  ///< in `active`: who is looked at next
    std::vector<std::uint32_t> clogged;
    std::chrono::nanoseconds nap_for_room{0};  ///< the last one, in vain
    std::vector<std::uint32_t> fetching;       ///< of whom something is to be READ
    std::vector<std::uint32_t> gathering;      ///< whose answers are not posted yet
    std::uint32_t gathered_turns = 0;          ///< since post_gathered()
    /// Who has receives of its own and no byte, or sets that of another server; only dense.
    std::vector<std::uint32_t> by_send;
    std::vector<std::uint32_t> joining;  ///< by ring
    std::vector<ClientId> leaving;
    bool is_waiting_for_leaving = false;
    bool is_taking_over = false;
    std::unordered_map<std::uint64_t, std::uint32_t> sessions;  ///< places by their first word
    std::vector<std::uint32_t> told;                            ///< memory of look_at_hosts
    std::size_t by_network = 0;                                 ///< clients
    std::size_t by_ring = 0;
    bool hosts_are_busy = false;   ///< the last look at them has found some
    bool lanes_have_more = false;  ///< … of whom some have more, by now
    bool beside_is_busy = false;   ///< the last look for what is served beside has found some
    bool beside_was_busy = false;  ///< … one since rest() asked for it
    std::uint64_t hosts_looked_at = 0;
    std::uint64_t hosts_every;  ///< beside clients by ring
    std::uint64_t slice_ticks;  ///< of a group

    std::uint64_t laps = 0;
    std::uint32_t empty_looks = 0;
    bool must_look = true;
    std::uint64_t looked_at = 0;
    std::uint64_t look_every;
    std::uint64_t busy_at = 0;  ///< only if nested
    std::uint64_t spin_ticks;

    mutable base::StatisticsPage statistics;
    std::optional<connect::Acceptor> acceptor;  ///< for this object's thread: the first to go
    base::ForkWatch fork_watch{*this};
};

}  // namespace millrace::message
