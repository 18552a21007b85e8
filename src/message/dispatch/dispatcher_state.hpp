// What a dispatcher consists of, on its own side of the ports (the other one: port_state.hpp).
// Used by dispatcher.cpp (joining, waiting, ending), dispatcher_turn.cpp (requests and answers) and
// turn_of_port.cpp (turns that a port takes).
//
// Each port has a queue to each server: its requests for that server, in their order. Queues with
// requests stand in the server's queue; the first one gives one request, and goes after the
// others. So a server's window and ring are shared by turns, and one without room holds up its own
// queue alone.
//
// All of it belongs to the dispatcher's thread, but while that rests without sleeping: then a port
// that waits on the same processor, and so keeps it from running, may take a turn in its place
// (PortGate::turn_at). It lets nobody in or go, and ends nothing: that is left to the thread, and
// so is an exception, which the thread's next turn meets itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dispatch/port_state.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"

namespace millrace::message {

struct Dispatcher::State {
    using PortState = detail::PortState;

    struct Served;
    /// The requests of one port for one server.
    struct Queue {
        Served* port = nullptr;
        PortState::Place* first = nullptr;
        PortState::Place* last = nullptr;
        Queue* next = nullptr;  ///< after it in the server's queue
        bool is_queued = false;
    };
    /// A port, as the dispatcher sees it.
    struct Served {
        std::shared_ptr<PortState> state;
        std::deque<Queue> queues;  ///< by server; they stay where they are as it grows
        std::uint64_t taken = 0;
        std::uint64_t answered = 0;
        std::uint64_t published = 0;  ///< of answered
        std::uint64_t cancels = 0;    ///< that were looked at

        /// Throws std::bad_alloc, and may be called again then.
        void have_queues(std::size_t servers) {
            while (queues.size() < servers) queues.push_back(Queue{.port = this});
        }
    };
    /// Whose request the server's client knows by a number.
    struct Asked {
        Served* port = nullptr;
        PortState::Place* place = nullptr;
    };
    struct Server {
        /// Throws Error as RingLane::watch.
        Server(Client connected, const connect::Address& its_address,
               std::chrono::nanoseconds spin);

        Client client;
        std::uint32_t number = 0;
        connect::Address address;
        int descriptor = -1;  ///< readable when its client's lane has news; -1: nobody watches it
        [[nodiscard]] bool is_watched() const noexcept { return descriptor >= 0; }
        connect::Hub::Id member{};
        std::vector<Asked> asked;
        Queue* first = nullptr;
        Queue* last = nullptr;
        std::size_t lacks = 0;  ///< bytes of the request that found no room; 0: none lacks
        base::Status ended = base::Status::ok;    ///< other than ok: there is no client any more
        std::optional<base::Status> closed_as{};  ///< what Client::close() has come to
        std::string why_ended{};

        [[nodiscard]] Asked& of(std::uint64_t id) noexcept {
            return asked[id & (asked.size() - 1)];
        }
        void push(Queue& queue) noexcept;
        Queue* pop() noexcept;
        void remove(const Queue& queue) noexcept;
    };

    State(std::vector<Client> clients, std::span<const connect::Address> addresses,
          DispatcherOptions chosen);
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();

    // --- whose turn it is

    /// It is the thread's, and nobody else's.
    [[nodiscard]] bool has_turn() noexcept;
    /// Waits for that: a port's turn is short.
    void take_turn() noexcept;
    /// From now on a port may take it, on this processor.
    void offer_turn() noexcept;

    // --- a turn

    std::size_t turn();
    /// The same by a port's thread. What it cannot do, or bring to its end, `owes_turn` says.
    void turn_of_port() noexcept;
    /// Ports and servers that have come. Throws Error (invalid_argument) in a wrong thread; what
    /// else it throws leaves those that are not in yet where they are.
    void let_in();
    void let_in_servers();
    void let_in_ports();
    std::size_t take(Served& port);
    std::size_t cancel(Served& port);
    void part(Served& port);
    /// What it has not been sent will not be.
    void unqueue(Served& port) noexcept;
    /// The first of its queue can go, or be given up; of that with `lacks`, as far as can be seen.
    [[nodiscard]] static bool may_send(Server& server);
    class Batch;
    std::size_t send(Server& server);
    std::size_t receive(Server& server);
    void answer(Served& port, PortState::Place& place, Outcome outcome,
                std::span<const std::byte> payload);
    /// Those of a turn together: a port is told once.
    void publish();
    /// What has no answer, and what waits for this server, ends with it.
    void end(Server& server, base::Status why);
    void unwatch(Server& server) noexcept;

    // --- sleeping

    class Sleeper;
    /// There is something for a turn, which is this thread's from then on.
    [[nodiscard]] bool finds_work(const Sleeper& sleeper);
    [[nodiscard]] bool has_work();
    /// Throws Error (invalid_argument).
    void check_thread() const;
    base::Status rest(const base::Deadline& deadline);

    // --- ending

    /// Nothing is taken from now on, and all that was has its answer. Allocates nothing.
    void end_all() noexcept;
    void end_port(Served& port) noexcept;
    /// In good order.
    base::Status close(const base::Deadline& deadline);

    DispatcherOptions options;
    std::shared_ptr<detail::PortGate> gate;
    connect::Hub hub{connect::Hub::Options{}};
    std::vector<std::unique_ptr<Server>> servers;
    std::vector<std::unique_ptr<Server>> joining_servers;  ///< guarded by the gate's mutex
    std::list<Served> ports;
    bool is_of_port = false;    ///< this turn is taken by a port's thread
    bool owes_answers = false;  ///< some port was not told of some
    /// A turn broke off, or a port's met what is the thread's to do: the thread is to take one.
    bool owes_turn = false;
    bool has_ended = false;  ///< by end_all()
    std::atomic<bool> stopping{false};

    // Counted by whose turn it is, read by any.
    std::atomic<std::uint64_t> present{0};
    std::atomic<std::uint64_t> joined{0};
    std::atomic<std::uint64_t> requests{0};
    std::atomic<std::uint64_t> answers{0};
    std::atomic<std::uint64_t> batches{0};
    std::atomic<std::uint64_t> held_back{0};
    std::atomic<std::uint64_t> cancelled{0};
    std::atomic<std::uint64_t> turns_of_ports{0};
    std::atomic<std::uint64_t> sleeps{0};
};

}  // namespace millrace::message
