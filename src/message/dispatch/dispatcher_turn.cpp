// A dispatcher's turn: ports and servers that have come, what ports have laid, what servers have
// answered.
#include <cstdint>
#include <mutex>
#include <utility>

#include "client/client_rest.hpp"
#include "dispatch/dispatcher_state.hpp"
#include "memory.hpp"
#include "millrace/base/detail/yielding.hpp"
#include "millrace/base/error.hpp"

namespace millrace::message {

using base::Status;
using detail::ClientRest;
using detail::PortState;

// --- the queue of a server

void Dispatcher::State::Server::push(Queue& queue) noexcept {
    queue.next = nullptr;
    queue.is_queued = true;
    (last == nullptr ? first : last->next) = &queue;
    last = &queue;
}
Dispatcher::State::Queue* Dispatcher::State::Server::pop() noexcept {
    Queue* const queue = std::exchange(first, first->next);
    if (first == nullptr) last = nullptr;
    queue->is_queued = false;
    return queue;
}
void Dispatcher::State::Server::remove(const Queue& queue) noexcept {
    Queue* left = std::exchange(first, nullptr);
    last = nullptr;
    while (left != nullptr) {
        Queue* const next = left->next;
        left->is_queued = false;
        if (left != &queue) push(*left);
        left = next;
    }
    lacks = 0;  // which may have been this one's
}

// --- a turn

std::size_t Dispatcher::State::turn() {
    if (hub.is_copy()) base::refuse_copy("turn a message dispatcher", "its ports and servers");
    // A dispatcher polls; when to yield is for rest() to say.
    const base::WaitsByPolicy here;
    owes_turn = true;  // until it is through
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
    owes_turn = false;
    return done;
}

void Dispatcher::State::let_in() {
    let_in_servers();
    let_in_ports();
    const std::lock_guard guard{gate->mutex};
    if (joining_servers.empty() && gate->arriving.empty()) {
        gate->has_arriving.store(false, std::memory_order_relaxed);
    }
}

void Dispatcher::State::let_in_servers() {
    while (true) {
        {
            const std::lock_guard guard{gate->mutex};
            if (joining_servers.empty()) return;
            check_thread();
        }
        // What may throw comes before the server is taken from where it waits.
        if (servers.size() == servers.capacity()) servers.reserve(2 * servers.size() + 1);
        for (Served& port : ports) port.have_queues(servers.size() + 1);
        {
            const std::lock_guard guard{gate->mutex};
            servers.push_back(std::move(joining_servers.front()));
            joining_servers.erase(joining_servers.begin());
        }
        Server& server = *servers.back();
        server.number = static_cast<std::uint32_t>(servers.size() - 1);
        try {
            server.member = hub.add(server.descriptor, [] {});
        } catch (const std::exception& error) {
            // The thread that joined it has its number: it is that of a connection that has ended.
            end(server, Status::peer_lost);
            server.why_ended = error.what();
        }
    }
}

void Dispatcher::State::let_in_ports() {
    std::list<Served> coming;
    while (true) {
        coming.emplace_back().have_queues(servers.size());
        const std::lock_guard guard{gate->mutex};
        if (gate->arriving.empty()) return;
        coming.back().state = std::move(gate->arriving.front());
        gate->arriving.erase(gate->arriving.begin());
        ports.splice(ports.end(), coming);
        joined.fetch_add(1, std::memory_order_relaxed);
        present.store(ports.size(), std::memory_order_relaxed);
    }
}

// --- taking from ports

std::size_t Dispatcher::State::take(Served& port) {
    PortState& state = *port.state;
    const std::uint64_t prepared = state.prepared.load(std::memory_order_acquire);
    const std::uint64_t cancels = state.cancels.load(std::memory_order_acquire);
    std::size_t done = 0;
    for (; port.taken != prepared; ++port.taken, ++done) {
        PortState::Place& place = state.places[state.requests[port.taken & state.mask]];
        // It has joined since this turn began.
        if (place.server >= servers.size()) [[unlikely]] {
            if (is_of_port) return done;
            let_in();
        }
        Server& server = *servers[place.server];
        Queue& queue = port.queues[place.server];
        if (server.ended != Status::ok) {
            answer(port, place, outcome_of(server.ended), {});
            continue;
        }
        place.way = PortState::Way::queued;
        place.next = nullptr;
        (queue.first == nullptr ? queue.first : queue.last->next) = &place;
        queue.last = &place;
        if (!queue.is_queued) server.push(queue);
    }
    if (cancels != port.cancels) [[unlikely]] {
        done += cancel(port);
        port.cancels = cancels;
    }
    return done;
}

/// Those of a port that are sent. Those that are not will be passed over.
std::size_t Dispatcher::State::cancel(Served& port) {
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

void Dispatcher::State::part(Served& port) {
    for (PortState::Place& place : port.state->places) {
        if (place.way != PortState::Way::sent) continue;
        (void)servers[place.server]->client.cancel(place.sent_as);
        cancelled.fetch_add(1, std::memory_order_relaxed);
    }
    unqueue(port);
    present.store(ports.size() - 1, std::memory_order_relaxed);
}

void Dispatcher::State::unqueue(Served& port) noexcept {
    for (std::size_t i = 0; i < servers.size(); ++i) {
        if (port.queues[i].is_queued) servers[i]->remove(port.queues[i]);
    }
}

// --- sending

/// What one turn sends to one server, in as few messages as hold it. It goes, and is counted,
/// whatever ends the turn.
class Dispatcher::State::Batch {
  public:
    Batch(State& dispatcher, Server& server) noexcept
        : dispatcher_{&dispatcher}, server_{&server} {}
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    ~Batch() {
        if (has_begun_) server_->client.end_batch();
        if (sent == 0) return;
        dispatcher_->requests.fetch_add(sent, std::memory_order_relaxed);
        dispatcher_->batches.fetch_add(1, std::memory_order_relaxed);
    }
    void begin() noexcept {
        if (!std::exchange(has_begun_, true)) server_->client.begin_batch();
    }

    std::size_t sent = 0;

  private:
    State* dispatcher_;
    Server* server_;
    bool has_begun_ = false;
};

std::size_t Dispatcher::State::send(Server& server) {
    Batch batch{*this, server};
    server.lacks = 0;
    while (server.first != nullptr && server.ended == Status::ok) {
        Queue& queue = *server.first;
        PortState::Place& place = *queue.first;
        Served& port = *queue.port;
        Status status = Status::ok;
        std::uint64_t id = 0;
        const bool is_wanted = !place.is_cancelled.load(std::memory_order_relaxed);
        if (is_wanted) {
            batch.begin();
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
        queue.first = place.next;
        if (queue.first == nullptr) {
            queue.last = nullptr;
        } else {
            server.push(queue);
        }
        if (!is_wanted) {
            answer(port, place, Outcome::cancelled, {});
        } else if (status == Status::too_large) {
            answer(port, place, Outcome::too_large, {});
        } else {
            place.way = PortState::Way::sent;
            place.sent_as = id;
            server.of(id) = {&port, &place};
            ++batch.sent;
        }
    }
    return batch.sent;
}

// --- receiving

std::size_t Dispatcher::State::receive(Server& server) {
    // What was on its way at the end has its answer.
    if (server.ended != Status::ok || has_ended) return 0;
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
        ++taken;
        if (is_of_port) {
            // What told of it may be gone: nothing in the ring is left for the thread to see.
            owes_turn = true;
        } else {
            end(server, status);
        }
    }
    return taken;
}

void Dispatcher::State::answer(Served& port, PortState::Place& place, Outcome outcome,
                               std::span<const std::byte> payload) {
    PortState& state = *port.state;
    place.answer.assign(payload.begin(), payload.end());
    place.way = PortState::Way::none;
    place.outcome = outcome;
    state.answers[port.answered++ & state.mask] = PortState::place_of(place.id);
    owes_answers = true;
    if (outcome == Outcome::cancelled) cancelled.fetch_add(1, std::memory_order_relaxed);
}

void Dispatcher::State::publish() {
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

void Dispatcher::State::end(Server& server, Status why) {
    server.ended = why;
    const std::uint32_t index = server.number;
    gate->ended[index].store(why, std::memory_order_release);
    for (Served& port : ports) {
        Queue& queue = port.queues[index];
        for (PortState::Place& place : port.state->places) {
            if (place.way == PortState::Way::none || place.server != index) continue;
            answer(port, place, outcome_of(why), {});
        }
        queue = Queue{.port = &port};
    }
    server.first = server.last = nullptr;
    unwatch(server);
    // Its rings and queue pair are of no use to anybody.
    server.why_ended = server.client.failure();
    const Client gone{std::move(server.client)};
    give_back(server.asked);
}

void Dispatcher::State::unwatch(Server& server) noexcept {
    if (!server.is_watched()) return;
    (void)hub.remove(server.member);
    server.descriptor = -1;
    ClientRest::unwatch(server.client);
}

}  // namespace millrace::message
