// Dispatcher: one thread between the ports and the connections. What it shares with a port:
// port_state.hpp.
//
// Each port has a lane to each server: its requests for that server, in their order. The lanes with
// requests stand in the server's queue; the first one gives one request, and goes behind the
// others. So a server's window and ring are shared by turns, and one without room holds up its own
// queue alone.
#include "millrace/message/dispatcher.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "client_access.hpp"
#include "millrace/base/yielding.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/readiness.hpp"
#include "port_state.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;
using detail::ClientAccess;
using detail::PortGate;
using detail::PortState;

struct Dispatcher::State {
    struct Served;
    /// The requests of one port for one server.
    struct Lane {
        Served* port = nullptr;
        PortState::Place* first = nullptr;
        PortState::Place* last = nullptr;
        Lane* next = nullptr;  ///< behind it in the server's queue
        bool is_queued = false;
    };
    /// A port, as the dispatcher sees it.
    struct Served {
        std::shared_ptr<PortState> state;
        std::deque<Lane> lanes;  ///< by server; they stay where they are as it grows
        std::uint64_t taken = 0;
        std::uint64_t answered = 0;
        std::uint64_t published = 0;  ///< of answered
        std::uint64_t cancels = 0;    ///< that were looked at
    };
    /// Whose request the server's client knows by a number.
    struct Asked {
        Served* port = nullptr;
        PortState::Place* place = nullptr;
    };
    struct Server {
        /// Throws Error as Readiness.
        Server(Client connected, const connect::Address& its_address, std::chrono::nanoseconds spin)
            : client{std::move(connected)},
              address{its_address},
              readiness{std::make_unique<connect::Readiness>(client.link().news(), spin)},
              asked(std::bit_ceil(std::size_t{client.window()})) {
            readiness->hush();
        }

        Client client;
        std::uint32_t number = 0;
        connect::Address address;
        std::unique_ptr<connect::Readiness> readiness;
        connect::Hub::Id member{};
        std::vector<Asked> asked;
        Lane* first = nullptr;
        Lane* last = nullptr;
        std::size_t lacks = 0;      ///< bytes of the request that found no room; 0: none lacks
        Status ended = Status::ok;  ///< other than ok: there is no client any more
        std::string why_ended{};

        [[nodiscard]] Asked& of(std::uint64_t id) noexcept {
            return asked[id & (asked.size() - 1)];
        }
        void push(Lane& lane) noexcept {
            lane.next = nullptr;
            lane.is_queued = true;
            (last == nullptr ? first : last->next) = &lane;
            last = &lane;
        }
        Lane* pop() noexcept {
            Lane* const lane = std::exchange(first, first->next);
            if (first == nullptr) last = nullptr;
            lane->is_queued = false;
            return lane;
        }
        void remove(const Lane& lane) noexcept {
            Lane* left = std::exchange(first, nullptr);
            last = nullptr;
            while (left != nullptr) {
                Lane* const next = left->next;
                left->is_queued = false;
                if (left != &lane) push(*left);
                left = next;
            }
        }
    };

    State(std::vector<Client> clients, std::span<const connect::Address> addresses,
          DispatcherOptions chosen)
        : options{std::move(chosen)},
          gate{std::make_shared<PortGate>(
              clients.size(), std::max<std::size_t>(clients.size(), options.max_servers))} {
        hub.add(gate->bell.descriptor(), [] {});
        for (std::size_t i = 0; i < clients.size(); ++i) {
            let_in(
                std::make_unique<Server>(std::move(clients[i]), addresses[i], options.wait.spin));
        }
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        hub.adopt();
        end_all();
        for (const auto& server : servers) unwatch(*server);
    }

    // --- taking from ports

    std::size_t turn() {
        // Whoever dispatches polls; when to yield is for rest() to say.
        const base::WaitsByPolicy here;
        if (gate->has_arriving.load(std::memory_order_acquire)) let_in();
        std::size_t done = 0;
        for (auto port = ports.begin(); port != ports.end();) {
            if (port->state->has_left.load(std::memory_order_acquire)) {
                part(*port);
                port = ports.erase(port);
                ++done;
                continue;
            }
            done += take(*port);
            ++port;
        }
        for (const auto& server : servers) {
            if (server->first != nullptr) done += send(*server);
            done += receive(*server);
        }
        if (owes_answers) publish();
        return done;
    }
    void let_in() {
        std::vector<std::shared_ptr<PortState>> arriving;
        std::vector<std::unique_ptr<Server>> joining;
        {
            const std::lock_guard guard{gate->mutex};
            if (!joining_servers.empty()) check_thread();  // before anything is taken from there
            arriving.swap(gate->arriving);
            joining.swap(joining_servers);
            gate->has_arriving.store(false, std::memory_order_relaxed);
        }
        for (auto& server : joining) {
            try {
                let_in(std::move(server));
            } catch (const base::Error& error) {
                // Whoever joined it has its number: it is that of a connection that has ended.
                end(*servers.back(), Status::peer_lost);
                servers.back()->why_ended = error.what();
            }
        }
        for (auto& state : arriving) {
            Served& port = ports.emplace_back();
            port.state = std::move(state);
            port.lanes.resize(servers.size());
            for (Lane& lane : port.lanes) lane.port = &port;
            joined.fetch_add(1, std::memory_order_relaxed);
        }
        present.store(ports.size(), std::memory_order_relaxed);
    }
    /// Whatever it throws, the server has its number.
    void let_in(std::unique_ptr<Server> joining) {
        Server& server = *joining;
        server.number = static_cast<std::uint32_t>(servers.size());
        servers.push_back(std::move(joining));
        for (Served& port : ports) port.lanes.push_back(Lane{.port = &port});
        server.member = hub.add(server.readiness->descriptor(), [] {});
    }
    std::size_t take(Served& port) {
        PortState& state = *port.state;
        const std::uint64_t prepared = state.prepared.load(std::memory_order_acquire);
        const std::uint64_t cancels = state.cancels.load(std::memory_order_acquire);
        std::size_t done = prepared - port.taken;
        for (; port.taken != prepared; ++port.taken) {
            PortState::Place& place = state.places[state.requests[port.taken & state.mask]];
            // It has joined since this turn began.
            if (place.server >= servers.size()) [[unlikely]]
                let_in();
            Server& server = *servers[place.server];
            Lane& lane = port.lanes[place.server];
            if (server.ended != Status::ok) {
                answer(port, place, outcome_of(server.ended), {});
                continue;
            }
            place.way = PortState::Way::queued;
            place.next = nullptr;
            (lane.first == nullptr ? lane.first : lane.last->next) = &place;
            lane.last = &place;
            if (!lane.is_queued) server.push(lane);
        }
        if (cancels != port.cancels) [[unlikely]] {
            port.cancels = cancels;
            done += cancel(port);
        }
        return done;
    }
    /// Those of a port that are sent. Those that are not will be passed over.
    std::size_t cancel(Served& port) {
        std::size_t done = 0;
        for (PortState::Place& place : port.state->places) {
            if (place.way != PortState::Way::sent ||
                !place.is_cancelled.load(std::memory_order_relaxed)) {
                continue;
            }
            (void)servers[place.server]->client.cancel(place.sent_as);
            answer(port, place, Outcome::cancelled, {});
            ++done;
        }
        return done;
    }
    void part(Served& port) {
        for (PortState::Place& place : port.state->places) {
            if (place.way != PortState::Way::sent) continue;
            (void)servers[place.server]->client.cancel(place.sent_as);
            cancelled.fetch_add(1, std::memory_order_relaxed);
        }
        for (std::size_t i = 0; i < servers.size(); ++i) {
            if (port.lanes[i].is_queued) servers[i]->remove(port.lanes[i]);
        }
        present.store(ports.size() - 1, std::memory_order_relaxed);
    }

    // --- sending

    std::size_t send(Server& server) {
        std::size_t sent = 0;
        bool has_begun = false;
        server.lacks = 0;
        while (server.first != nullptr && server.ended == Status::ok) {
            Lane& lane = *server.first;
            PortState::Place& place = *lane.first;
            Served& port = *lane.port;
            Status status = Status::ok;
            std::uint64_t id = 0;
            const bool is_wanted = !place.is_cancelled.load(std::memory_order_relaxed);
            if (is_wanted) {
                if (!std::exchange(has_begun, true)) ClientAccess::begin_batch(server.client);
                status = server.client.submit(place.request(), id,
                                              {place.procedure, place.deadline, place.told_from});
                if (status == Status::full) {
                    server.lacks = session_head_bytes + place.size;
                    held_back.fetch_add(1, std::memory_order_relaxed);
                    break;
                }
                if (status == Status::closed || status == Status::peer_lost) break;
            }
            (void)server.pop();
            lane.first = place.next;
            if (lane.first == nullptr) {
                lane.last = nullptr;
            } else {
                server.push(lane);
            }
            if (!is_wanted) {
                answer(port, place, Outcome::cancelled, {});
            } else if (status == Status::too_large) {
                answer(port, place, Outcome::too_large, {});
            } else {
                place.way = PortState::Way::sent;
                place.sent_as = id;
                server.of(id) = {&port, &place};
                ++sent;
            }
        }
        if (has_begun) ClientAccess::end_batch(server.client);
        if (sent != 0) {
            requests.fetch_add(sent, std::memory_order_relaxed);
            batches.fetch_add(1, std::memory_order_relaxed);
        }
        return sent;
    }

    // --- receiving

    std::size_t receive(Server& server) {
        if (server.ended != Status::ok) return 0;
        // At most a window of answers, so that ports are looked at in between.
        std::size_t taken = 0;
        Status status = Status::ok;
        const std::size_t most = server.asked.size();
        while (taken < most) {
            status = server.client.poll([&](const Answer& given) {
                const Asked& asked = server.of(given.id);
                answer(*asked.port, *asked.place, given.outcome, given.payload);
            });
            if (status != Status::ok) break;
            ++taken;
        }
        if (status == Status::closed || status == Status::peer_lost) {
            end(server, status);
            ++taken;
        }
        return taken;
    }
    void answer(Served& port, PortState::Place& place, Outcome outcome,
                std::span<const std::byte> payload) {
        PortState& state = *port.state;
        place.way = PortState::Way::none;
        place.outcome = outcome;
        place.answer.assign(payload.begin(), payload.end());
        state.answers[port.answered++ & state.mask] = PortState::place_of(place.id);
        owes_answers = true;
        if (outcome == Outcome::cancelled) cancelled.fetch_add(1, std::memory_order_relaxed);
    }
    /// Those of a turn together: a port is told once.
    void publish() {
        owes_answers = false;
        std::uint64_t given = 0;
        for (Served& port : ports) {
            if (port.published == port.answered) continue;
            given += port.answered - port.published;
            port.published = port.answered;
            port.state->answered.store(port.answered, std::memory_order_seq_cst);
            port.state->ring();
        }
        if (given != 0) answers.fetch_add(given, std::memory_order_relaxed);
    }
    /// What has no answer, and what waits for this server, ends with it.
    void end(Server& server, Status why) {
        server.ended = why;
        const std::uint32_t index = server.number;
        gate->ended[index].store(why, std::memory_order_release);
        for (Served& port : ports) {
            Lane& lane = port.lanes[index];
            for (PortState::Place& place : port.state->places) {
                if (place.way == PortState::Way::none || place.server != index) continue;
                answer(port, place, outcome_of(why), {});
            }
            lane = Lane{.port = &port};
        }
        server.first = server.last = nullptr;
        unwatch(server);
        // Its rings and queue pair are of no use to anybody.
        server.why_ended = server.client.failure();
        const Client gone{std::move(server.client)};
        server.asked = {};
    }
    void unwatch(Server& server) noexcept {
        if (server.readiness == nullptr) return;
        (void)hub.remove(server.member);
        server.readiness.reset();
    }

    // --- sleeping

    [[nodiscard]] bool has_work() {
        if (stopping.load(std::memory_order_seq_cst) ||
            gate->has_arriving.load(std::memory_order_seq_cst)) {
            return true;
        }
        for (const Served& port : ports) {
            const PortState& state = *port.state;
            if (state.prepared.load(std::memory_order_seq_cst) != port.taken ||
                state.cancels.load(std::memory_order_seq_cst) != port.cancels ||
                state.has_left.load(std::memory_order_seq_cst)) {
                return true;
            }
        }
        for (const auto& server : servers) {
            if (server->ended != Status::ok) continue;
            Channel::Core& core = ClientAccess::core(server->client);
            Piece piece;
            if (core.find_piece(piece, false) != Status::empty) return true;
            if (lacks_room(*server) && core.find_room(server->lacks) != Status::full) return true;
        }
        return false;
    }
    /// Places in a window come with answers; room in the ring has to be asked for.
    [[nodiscard]] static bool lacks_room(const Server& server) noexcept {
        return ClientAccess::holds_messages(server.client) ||
               (server.lacks != 0 && !ClientAccess::window_is_full(server.client));
    }
    void fall_asleep(Server& server) {
        Channel::Core& core = ClientAccess::core(server.client);
        core.wants_room = lacks_room(server);
        core.wanted_size = server.lacks;
        core.readiness = std::move(server.readiness);
        core.rest();
        server.readiness = std::move(core.readiness);
    }
    void wake(Server& server) {
        if (server.readiness == nullptr) return;
        Channel::Core& core = ClientAccess::core(server.client);
        server.readiness->end(*core.sleeper);
        core.sleeper->retract();  // what came without an announcement is taken, too
        core.falls_asleep = false;
        core.wants_room = false;
        server.readiness->hush();
        // Told once, by the socket: the next look finds it.
        (void)core.link.peer_now();
    }
    void check_thread() const {
        if (hub.is_current()) return;
        throw base::Error{base::ErrorCode::invalid_argument, "wait for a message dispatcher", "",
                          "it belongs to another thread", "call adopt() in this one first"};
    }
    Status rest(const Deadline& deadline) {
        check_thread();
        class Sleeper final : public base::Parker {
          public:
            explicit Sleeper(State& dispatcher) : dispatcher_{&dispatcher} {}
            void prepare() override {
                for (const auto& server : dispatcher_->servers) {
                    if (server->readiness != nullptr) dispatcher_->fall_asleep(*server);
                }
                dispatcher_->gate->bell.announce();
            }
            void park(std::chrono::nanoseconds limit) override {
                dispatcher_->sleeps.fetch_add(1, std::memory_order_relaxed);
                (void)dispatcher_->hub.rest(Deadline::after(limit));
                (void)dispatcher_->hub.turn();
            }
            void retract() override {
                dispatcher_->gate->bell.retract();
                for (const auto& server : dispatcher_->servers) dispatcher_->wake(*server);
            }

          private:
            State* dispatcher_;
        };
        Sleeper sleeper{*this};
        const Status status =
            base::wait_until([this] { return has_work(); }, deadline, options.wait, sleeper);
        if (status == Status::ok && stopping.exchange(false, std::memory_order_acq_rel)) {
            return Status::closed;
        }
        return status;
    }

    // --- ending

    /// Nothing is taken from now on.
    void end_all() {
        if (gate->is_closed.exchange(true, std::memory_order_seq_cst)) return;
        let_in();
        for (Served& port : ports) {
            (void)take(port);
            for (PortState::Place& place : port.state->places) {
                if (place.way == PortState::Way::none) continue;
                answer(port, place, Outcome::closed, {});
            }
            for (Lane& lane : port.lanes) lane = Lane{.port = &port};
        }
        for (const auto& server : servers) server->first = server->last = nullptr;
        publish();
        for (Served& port : ports) {
            port.state->taken_at_end.store(port.taken, std::memory_order_seq_cst);
            port.state->ring();
        }
    }

    DispatcherOptions options;
    std::shared_ptr<PortGate> gate;
    connect::Hub hub{connect::Hub::Options{}};
    std::vector<std::unique_ptr<Server>> servers;
    std::vector<std::unique_ptr<Server>> joining_servers;  ///< guarded by the gate's mutex
    std::list<Served> ports;
    bool owes_answers = false;  ///< some port was not told of some
    std::atomic<bool> stopping{false};

    // Counted by the dispatcher's thread, read by any.
    std::atomic<std::uint64_t> present{0};
    std::atomic<std::uint64_t> joined{0};
    std::atomic<std::uint64_t> requests{0};
    std::atomic<std::uint64_t> answers{0};
    std::atomic<std::uint64_t> batches{0};
    std::atomic<std::uint64_t> held_back{0};
    std::atomic<std::uint64_t> cancelled{0};
    std::atomic<std::uint64_t> sleeps{0};
};

namespace {

[[noreturn]] void refuse(base::ErrorCode code, std::string attempted, std::string on,
                         std::string why, std::string remedy) {
    throw base::Error{code, std::move(attempted), std::move(on), std::move(why), std::move(remedy)};
}

void check_client(const ClientOptions& options) {
    if (options.resumes) {
        refuse(base::ErrorCode::invalid_argument, "make a message dispatcher",
               "ClientOptions::resumes",
               "its thread would have to wait for one server while the others' ports wait for it",
               "use a Client of its own for a session that resumes");
    }
    if (options.transport != connect::Transport::rc) {
        refuse(base::ErrorCode::invalid_argument, "make a message dispatcher",
               fmt::format("transport {}", name_of(options.transport)),
               "its thread sleeps by what rings announce, and lays many requests in one",
               "use rc, or a Client of its own for each thread");
    }
}

}  // namespace

Dispatcher::Dispatcher(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Dispatcher::Dispatcher(Dispatcher&&) noexcept = default;
Dispatcher& Dispatcher::operator=(Dispatcher&&) noexcept = default;
Dispatcher::~Dispatcher() = default;

Dispatcher Dispatcher::connect(std::span<const connect::Address> servers, DispatcherOptions options,
                               const Deadline& deadline) {
    constexpr std::size_t most = 65'536;
    if (servers.size() > most) {
        refuse(base::ErrorCode::invalid_argument, "make a message dispatcher",
               fmt::format("{} servers", servers.size()), fmt::format("it has at most {}", most),
               "name the servers that its ports are to reach");
    }
    if (options.max_servers > most) {
        refuse(base::ErrorCode::invalid_argument, "make a message dispatcher",
               fmt::format("max_servers of {}", options.max_servers),
               fmt::format("it is at most {}", most), "use the default of 1024");
    }
    check_client(options.client);
    std::vector<Client> clients;
    clients.reserve(servers.size());
    for (const connect::Address& each : servers) {
        clients.push_back(Client::connect(each, options.client, deadline));
    }
    return Dispatcher{std::make_unique<State>(std::move(clients), servers, std::move(options))};
}

std::uint32_t Dispatcher::join(const connect::Address& server, const ClientOptions& options,
                               const Deadline& deadline) {
    check_client(options);
    PortGate& gate = *state_->gate;
    auto joining = std::make_unique<State::Server>(Client::connect(server, options, deadline),
                                                   server, state_->options.wait.spin);
    std::uint32_t number = 0;
    {
        const std::lock_guard guard{gate.mutex};
        if (gate.is_closed.load(std::memory_order_relaxed)) {
            refuse(base::ErrorCode::closed, "join a server by a message dispatcher",
                   server.to_string(), "the dispatcher is closed", "make another one");
        }
        const std::size_t servers = gate.servers.load(std::memory_order_relaxed);
        if (servers == gate.ended.size()) {
            refuse(base::ErrorCode::resource_exhausted, "join a server by a message dispatcher",
                   server.to_string(), fmt::format("it had {} connections already", servers),
                   "raise DispatcherOptions::max_servers, or make another one");
        }
        number = static_cast<std::uint32_t>(servers);
        state_->joining_servers.push_back(std::move(joining));
        gate.has_arriving.store(true, std::memory_order_seq_cst);
        gate.servers.store(servers + 1, std::memory_order_release);
    }
    gate.bell.ring();
    return number;
}

Port Dispatcher::port(PortOptions options) {
    if (options.window == 0 || options.window > largest_window) {
        refuse(base::ErrorCode::invalid_argument, "make a port of a message dispatcher",
               fmt::format("a window of {} requests", options.window),
               fmt::format("it is from 1 to {}", largest_window), "use the default of 64");
    }
    options.request_bytes = (options.request_bytes + 63) / 64 * 64;
    PortGate& gate = *state_->gate;
    auto made = std::make_shared<PortState>(state_->gate, options);
    {
        const std::lock_guard guard{gate.mutex};
        if (gate.is_closed.load(std::memory_order_relaxed)) {
            refuse(base::ErrorCode::closed, "make a port of a message dispatcher", "",
                   "it is closed", "make another dispatcher");
        }
        gate.arriving.push_back(made);
        gate.has_arriving.store(true, std::memory_order_seq_cst);
    }
    gate.bell.ring();
    return Port{std::move(made)};
}

std::size_t Dispatcher::turn() { return state_->turn(); }
Status Dispatcher::rest(const Deadline& deadline) { return state_->rest(deadline); }

Status Dispatcher::run(const Deadline& deadline) {
    State& dispatcher = *state_;
    while (true) {
        // A turn that found something is followed by another one; the clock is for the others.
        for (int busy = 0; busy < 64 && dispatcher.turn() != 0; ++busy) {
        }
        const Status status = dispatcher.rest(deadline);
        if (status != Status::ok) return status;
        if (deadline.cancelled()) return Status::cancelled;
        if (deadline.expired()) return Status::timed_out;
    }
}

void Dispatcher::stop() noexcept {
    state_->stopping.store(true, std::memory_order_seq_cst);
    state_->gate->bell.ring();
}

void Dispatcher::adopt() noexcept { state_->hub.adopt(); }

Status Dispatcher::close(const Deadline& deadline) {
    State& dispatcher = *state_;
    dispatcher.end_all();
    Status first = Status::ok;
    for (const auto& server : dispatcher.servers) {
        Status status = server->ended;
        if (status == Status::ok) {
            dispatcher.unwatch(*server);
            status = server->client.close(deadline);
            dispatcher.end(*server, Status::closed);
        }
        if (first == Status::ok) first = status;
    }
    return first;
}

std::uint32_t Dispatcher::servers() const noexcept {
    return static_cast<std::uint32_t>(state_->gate->servers.load(std::memory_order_acquire));
}
Status Dispatcher::state_of(std::uint32_t server) const noexcept {
    return state_->gate->ended[server].load(std::memory_order_acquire);
}
std::string Dispatcher::failure(std::uint32_t server) const {
    const State::Server& its = *state_->servers[server];
    return its.ended == Status::ok ? its.client.failure() : its.why_ended;
}

DispatcherStats Dispatcher::stats() const noexcept {
    const auto of = [](const std::atomic<std::uint64_t>& count) {
        return count.load(std::memory_order_relaxed);
    };
    const State& its = *state_;
    return {.ports = of(its.present),
            .joined = of(its.joined),
            .requests = of(its.requests),
            .answers = of(its.answers),
            .batches = of(its.batches),
            .held_back = of(its.held_back),
            .cancelled = of(its.cancelled),
            .sleeps = of(its.sleeps)};
}

std::string Dispatcher::explain() const {
    std::string text = fmt::format(
        "message dispatcher: {} ports share {} connection(s); a request is laid by its port, and "
        "copied once, to where the server or the device reads it; an answer is copied once, to its "
        "port",
        state_->ports.size(), state_->servers.size());
    for (const auto& server : state_->servers) {
        text +=
            server->ended == Status::ok
                ? fmt::format("\nto {}:\n{}", server->address.to_string(), server->client.explain())
                : fmt::format(
                      "\nto {}, which has ended: {}", server->address.to_string(),
                      server->why_ended.empty() ? name_of(server->ended) : server->why_ended);
    }
    return text;
}

}  // namespace millrace::message
