// Many threads, one connection to each server: work 004's communication dispatcher. Each thread has
// a Port, with the calls of a Client, where it lays its requests; one thread, the dispatcher's,
// brings them to the servers, and the answers back to the ports they belong to.
//
//     const connect::Address servers[] = {first, second};
//     auto dispatcher = message::Dispatcher::connect(servers, {}, deadline);
//     std::jthread thread{[&] { dispatcher.adopt(); (void)dispatcher.run(never); }};
//
//     message::Port port = dispatcher.port();                      // in each worker
//     port.to(1);                                                  // the second server
//     if (port.call(request, answer, deadline) == message::Outcome::ok) …
//
// A server has as many queue pairs, rings and mailboxes as there are processes, and not as many as
// there are threads. The price is the hand-over between two threads, both ways.
//
// A port's requests lie in places of their own, one for each request of its window, whose last word
// says that it may be sent: mailboxes between threads, as between hosts. The dispatcher goes round
// the ports and takes one request of each before it takes the second of any, for each server by
// itself: neither a port that sends much nor a server that is slow holds up the others. What it
// takes in one turn goes to a server in one message of several requests (Client::begin_batch), or
// in a few.
//
// A port that waits on the very processor where the dispatcher rests without sleeping keeps it from
// running. That port takes the turn in its place, and threads that share a processor with
// their dispatcher do not switch to and fro for each request.
// docs/messaging.md, "Many threads of one process".
// Source: work 004, section 4.1, design 2 (communication dispatcher).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/requester.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

struct DispatcherOptions {
    /// Of the connection to each server, which the ports share: its window and its rings are for
    /// the requests of all of them. Without `resumes`, which a dispatcher does not offer.
    ClientOptions client{};
    /// How the dispatcher waits.
    base::WaitPolicy wait{};
    /// Connections over the dispatcher's life, those that have ended and those that it began with
    /// included: 65,536 at most. One more join() is refused.
    std::uint32_t max_servers = 1024;
};

struct PortOptions {
    /// Requests of this port without an answer, at all servers: 1 to 4,096.
    std::uint32_t window = 64;
    /// Bytes of a request for which there is memory from the beginning, `window` times. A longer
    /// one allocates.
    std::size_t request_bytes = 256;
    /// How this port waits.
    base::WaitPolicy wait{};
};

/// Counted since the dispatcher was made.
struct DispatcherStats {
    std::uint64_t ports = 0;     ///< now
    std::uint64_t joined = 0;    ///< ports
    std::uint64_t requests = 0;  ///< given to a connection
    std::uint64_t answers = 0;   ///< brought to a port, of any outcome
    std::uint64_t batches = 0;   ///< turns in which a server was given requests
    std::uint64_t held_back =
        0;  ///< times that a connection had no room, or no place in its window
    std::uint64_t cancelled = 0;       ///< requests that were not wanted any more
    std::uint64_t turns_of_ports = 0;  ///< taken by ports that waited on the dispatcher's processor
    std::uint64_t spared_sleeps = 0;   ///< of ports there: they had offered the processor before
    std::uint64_t sleeps = 0;
};

namespace detail {
struct PortOwn;
}

/// A thread's way to the servers. Move-only; one thread at a time, which need not be the one that
/// made it. Destroyed: what has no answer is cancelled, and what was not sent is not. May outlive
/// the dispatcher.
///
/// submit() and poll() never block, and make no system call unless the dispatcher sleeps; the
/// others wait as PortOptions::wait says, for a dispatcher that somebody must run.
class Port : public Requester<Port> {
  public:
    Port(Port&&) noexcept;
    Port& operator=(Port&&) noexcept;
    ~Port();

    /// From now on requests go to that server; at first to number 0. Precondition: below servers().
    void to(std::uint32_t server) noexcept;
    [[nodiscard]] std::uint32_t servers() const noexcept;

    // --- requests, several at a time

    /// Gives the dispatcher a copy of `request`, and sets `id` to its number in this port. `full`:
    /// as many as the window allows have no answer: take answers. `closed`, `peer_lost`: the
    /// dispatcher, or the connection to that server, has ended. A request that the server does not
    /// take for its length has Outcome::too_large.
    base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                        const RequestOptions& options = {});
    using Requester::submit;
    // Each request that was submitted has an answer: where its server or the dispatcher ended,
    // Outcome::peer_lost or closed. poll() and wait() answer `closed` when the dispatcher has ended
    // and every answer was taken.

    /// The answer to `id` is not wanted any more, and will not be handed out. Its place in the
    /// window is free again once the dispatcher has heard of it. False: there is no such request
    /// without an answer.
    bool cancel(std::uint64_t id);
    /// Requests that were submitted, are wanted, and whose answers were not handed out.
    [[nodiscard]] std::size_t outstanding() const noexcept;
    [[nodiscard]] std::uint32_t window() const noexcept;
    /// For a program's own loop: readable means, call poll(), until it answers `empty`. From then
    /// on the dispatcher makes two system calls when it tells this port of answers after a poll
    /// that was `empty`. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor();

  private:
    friend class Dispatcher;
    friend Requester;
    explicit Port(std::shared_ptr<detail::PortOwn> state) noexcept;
    base::Status claim(std::size_t size, std::span<std::byte>& room);
    base::Status claim(std::size_t size, std::span<std::byte>& room,
                       const base::Deadline& deadline);
    base::Status commit(std::size_t size, std::uint64_t& id, const RequestOptions& options);
    base::Status look(Answer& answer);
    base::Status look(Answer& answer, const base::Deadline& deadline);
    base::Status look_for(std::uint64_t id, Answer& answer, const base::Deadline& deadline);
    void pass();
    /// The same where a callable has thrown, which may have passed it by another call.
    void pass_unless_gone() noexcept;
    void leave() noexcept;

    std::shared_ptr<detail::PortOwn> state_;
};

/// One connection to each of some servers, shared by the ports. Belongs to the thread that made it,
/// or to the one that called adopt() since: calls that may sleep throw Error (invalid_argument) in
/// another one. port() and stop() are for any thread. Move-only. It has no thread by itself:
/// somebody calls run(), or turn() again and again.
class Dispatcher {
  public:
    /// `servers`: none, if they join() later. Throws Error as Client::connect of the first server
    /// that cannot be joined; invalid_argument: more than 65,536; a session that resumes.
    [[nodiscard]] static Dispatcher connect(std::span<const connect::Address> servers,
                                            DispatcherOptions options,
                                            const base::Deadline& deadline);
    Dispatcher(Dispatcher&&) noexcept;
    Dispatcher& operator=(Dispatcher&&) noexcept;
    /// Ends as close() does, without a word to the servers.
    ~Dispatcher();

    /// One more connection, to a server of before or to another one: the number that ports reach it
    /// by. What has ended stays so: a server that came back is joined again, under another number.
    /// Any thread, at any time while the dispatcher lives; the calling thread waits for the server.
    /// What the dispatcher's thread cannot wait for has ended (`peer_lost`) when it gets there.
    /// Throws Error as Client::connect; invalid_argument as connect(); closed; resource_exhausted:
    /// DispatcherOptions::max_servers.
    [[nodiscard]] std::uint32_t join(const connect::Address& server, const ClientOptions& options,
                                     const base::Deadline& deadline);
    /// A new port. Any thread, at any time while the dispatcher lives. Throws Error
    /// (invalid_argument; closed).
    [[nodiscard]] Port port(PortOptions options = {});

    /// Takes what ports have laid, sends it, and brings answers to their ports. Never sleeps. How
    /// many requests and answers that was.
    std::size_t turn();
    /// Waits until there is something for turn(): looks, yields, sleeps, as DispatcherOptions::wait
    /// says. `ok`; `timed_out`; `cancelled`; `closed`: it was stopped.
    base::Status rest(const base::Deadline& deadline);
    /// Turns and rests until it is stopped (`closed`), or `timed_out`, or `cancelled`.
    base::Status run(const base::Deadline& deadline);
    /// Ends rest() and run() at once, now or when they are called next, once. Any thread, and
    /// signal handlers.
    void stop() noexcept;
    /// From now on it belongs to the calling thread.
    void adopt() noexcept;

    /// Every request without an answer gets Outcome::closed, wherever it is, and no port can send
    /// any more; then closes each connection in good order. A server may have executed what it was
    /// sent. Answers as Client::close: `ok`, or what the first was that did not close well;
    /// `timed_out`, `cancelled`: that one is open still, and close() may be called again. In a
    /// wrong thread it throws before anything has ended.
    base::Status close(const base::Deadline& deadline);

    [[nodiscard]] std::uint32_t servers() const noexcept;
    /// `ok`; `closed`, `peer_lost`: that connection has ended, and requests to it end at once. Any
    /// thread.
    [[nodiscard]] base::Status state_of(std::uint32_t server) const noexcept;
    /// Why that connection has ended; empty while it has not. For the dispatcher's thread, after a
    /// turn since the server joined.
    [[nodiscard]] std::string failure(std::uint32_t server) const;
    [[nodiscard]] DispatcherStats stats() const noexcept;
    /// What was chosen and why: the ports, and each connection. Its thread.
    [[nodiscard]] std::string explain() const;

    struct State;  ///< private to message/

  private:
    explicit Dispatcher(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::message
