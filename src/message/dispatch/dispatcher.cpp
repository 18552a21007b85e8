// Dispatcher: how ports and servers join it, how it waits, and how it ends. Its turns:
// dispatcher_turn.cpp. What it shares with a port: port_state.hpp.
#include "millrace/message/dispatcher.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "client/client_rest.hpp"
#include "dispatch/dispatcher_state.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;
using detail::ClientRest;
using detail::PortGate;
using detail::PortState;

Dispatcher::State::Server::Server(Client connected, const connect::Address& its_address,
                                  std::chrono::nanoseconds spin)
    : client{std::move(connected)},
      address{its_address},
      asked(std::bit_ceil(std::size_t{client.window()})) {
    descriptor = ClientRest::watch(client, spin);
}

Dispatcher::State::State(std::vector<Client> clients, std::span<const connect::Address> addresses,
                         DispatcherOptions chosen)
    : options{std::move(chosen)},
      gate{std::make_shared<PortGate>(clients.size(),
                                      std::max<std::size_t>(clients.size(), options.max_servers))} {
    gate->dispatcher = this;
    hub.add(gate->bell.descriptor(), [] {});
    for (std::size_t i = 0; i < clients.size(); ++i) {
        joining_servers.push_back(
            std::make_unique<Server>(std::move(clients[i]), addresses[i], options.wait.spin));
    }
    let_in_servers();
    for (const auto& server : servers) {
        if (server->ended == Status::ok) continue;
        throw base::Error{base::ErrorCode::resource_exhausted, "make a message dispatcher",
                          server->address.to_string(), server->why_ended,
                          "raise the limit of open files (ulimit -n)"};
    }
}

Dispatcher::State::~State() {
    hub.adopt();
    end_all();
    for (const auto& server : servers) unwatch(*server);
}

// --- sleeping

class Dispatcher::State::Sleeper final : public base::Parker {
  public:
    explicit Sleeper(State& dispatcher) : dispatcher_{&dispatcher} {}
    void prepare() override {
        dispatcher_->take_turn();
        is_asleep_ = true;
        for (const auto& server : dispatcher_->servers) {
            if (server->is_watched()) ClientRest::begin(server->client, server->lacks);
        }
        dispatcher_->gate->bell.announce();
    }
    void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
        dispatcher_->sleeps.fetch_add(1, std::memory_order_relaxed);
        (void)dispatcher_->hub.rest(Deadline::after(limit).cancelled_by(cancellation));
        (void)dispatcher_->hub.turn();
    }
    void retract() override {
        dispatcher_->gate->bell.retract();
        for (const auto& server : dispatcher_->servers) {
            if (server->is_watched()) ClientRest::end(server->client);
        }
        is_asleep_ = false;
    }
    [[nodiscard]] bool is_asleep() const noexcept { return is_asleep_; }

  private:
    State* dispatcher_;
    bool is_asleep_ = false;
};

bool Dispatcher::State::finds_work(const Sleeper& sleeper) {
    if (!has_turn()) return false;
    if (has_work()) return true;
    // What it has prepared for its sleep is nothing for another thread.
    if (!sleeper.is_asleep()) offer_turn();
    return false;
}

bool Dispatcher::State::has_work() {
    if (owes_turn || stopping.load(std::memory_order_seq_cst) ||
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
    // Places in a window come with answers; room in the ring has to be asked for.
    return std::ranges::any_of(servers, [](const auto& server) {
        return server->ended == Status::ok && ClientRest::has_news(server->client, server->lacks);
    });
}

void Dispatcher::State::check_thread() const {
    if (hub.is_copy()) base::refuse_copy("wait for a message dispatcher", "its ports and servers");
    if (hub.is_current()) return;
    throw base::Error{base::ErrorCode::invalid_argument, "wait for a message dispatcher", "",
                      "it belongs to another thread", "call adopt() in this one first"};
}

Status Dispatcher::State::rest(const Deadline& deadline) {
    check_thread();
    Sleeper sleeper{*this};
    const Status status =
        base::wait_until([&] { return finds_work(sleeper); }, deadline, options.wait, sleeper);
    take_turn();
    if (status == Status::ok && stopping.exchange(false, std::memory_order_acq_rel)) {
        return Status::closed;
    }
    return status;
}

// --- ending

void Dispatcher::State::end_all() noexcept {
    if (std::exchange(has_ended, true)) return;
    gate->is_closed.store(true, std::memory_order_seq_cst);
    std::vector<std::shared_ptr<PortState>> arriving;
    {
        const std::lock_guard guard{gate->mutex};
        arriving.swap(gate->arriving);
        gate->has_arriving.store(false, std::memory_order_relaxed);
        // Who joined them has their numbers.
        for (std::size_t i = 0; i < joining_servers.size(); ++i) {
            gate->ended[servers.size() + i].store(Status::closed, std::memory_order_release);
        }
    }
    for (const auto& server : servers) server->first = server->last = nullptr;
    for (Served& port : ports) end_port(port);
    publish();
    const auto tell_end = [](PortState& port, std::uint64_t taken) {
        port.taken_at_end.store(taken, std::memory_order_seq_cst);
        port.ring();
    };
    for (Served& port : ports) tell_end(*port.state, port.taken);
    for (const auto& port : arriving) tell_end(*port, 0);
}

void Dispatcher::State::end_port(Served& port) noexcept {
    PortState& state = *port.state;
    const std::uint64_t prepared = state.prepared.load(std::memory_order_acquire);
    for (; port.taken != prepared; ++port.taken) {
        state.places[state.requests[port.taken & state.mask]].way = PortState::Way::queued;
    }
    for (PortState::Place& place : state.places) {
        if (place.way != PortState::Way::none) answer(port, place, Outcome::closed, {});
    }
    for (Queue& queue : port.queues) queue = Queue{.port = &port};
}

Status Dispatcher::State::close(const Deadline& deadline) {
    check_thread();
    end_all();
    let_in_servers();
    Status first = Status::ok;
    for (const auto& server : servers) {
        if (server->ended == Status::ok) {
            unwatch(*server);
            const Status status = server->client.close(deadline);
            const bool is_open = status == Status::timed_out || status == Status::cancelled;
            if (!is_open) end(*server, Status::closed);
            server->closed_as = status;
        }
        const Status status = server->closed_as.value_or(server->ended);
        if (first == Status::ok) first = status;
    }
    return first;
}

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
    if (options.transport != connect::Transport::rc || options.fallback.has_value()) {
        refuse(base::ErrorCode::invalid_argument, "make a message dispatcher",
               options.fallback.has_value()
                   ? std::string{"ClientOptions::fallback"}
                   : fmt::format("transport {}", name_of(options.transport)),
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
    auto made = std::make_shared<detail::PortOwn>(state_->gate, options);
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

Status Dispatcher::close(const Deadline& deadline) { return state_->close(deadline); }

std::uint32_t Dispatcher::servers() const noexcept {
    return static_cast<std::uint32_t>(state_->gate->servers.load(std::memory_order_acquire));
}
Status Dispatcher::state_of(std::uint32_t server) const noexcept {
    return state_->gate->ended[server].load(std::memory_order_acquire);
}
std::string Dispatcher::failure(std::uint32_t server) const {
    if (server >= state_->servers.size()) return {};
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
            .turns_of_ports = of(its.turns_of_ports),
            .spared_sleeps = of(its.gate->spared_sleeps),
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
