// The server's side of N-to-one messages: one thread serves requests of any number of clients.
// Clients come and go, each by a channel of its own, and the server finds those that have written
// by a scan of memory.
//
//     auto server = message::Server::listen(connect::Address::parse(":7000"));
//     (void)server.serve([](message::Request& it) { (void)it.answer(it.payload()); }, deadline);
//
// A handler answers at once; or later, from any thread, by the Reply that defer() gives. Every
// request has one answer: where the handler gives none or throws, or too many are pending, the
// Outcome tells the client. docs/messaging.md says what to choose; session.hpp says what travels.
//
// While requests come, the server looks at memory, and at the kernel once in a millisecond for
// clients that join and leave; it makes no other system call. When nothing has come for a while
// (ServerOptions::wait) it sleeps in the kernel. Before it sleeps, it tells the clients that were
// active since it slept last, and no others. An idle client costs memory and its part of a scan.
//
// Clients without RDMA come over sockets (ServerOptions::transports), to the same thread. The
// server finds their requests by an epoll, and each look at it is a system call. Source: work 001,
// section 4.2 (N-to-one communication).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/detail/entries.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/message/tuning.hpp"

namespace millrace::message {

struct ServerOptions {
    /// How the server finds the clients that have written. The server tells each client. `shared`
    /// is never chosen automatically: a client by `rc` has to ask for it, too
    /// (ClientOptions::requests), and is refused otherwise.
    Polling polling = Polling::automatic;
    /// What the program says to its clients, and which version of that. The handshake compares it
    /// with ClientOptions::protocol where both ends name one.
    connect::Protocol protocol{};
    /// Clients at a time, 1 to 65,536. A client whose channel broke, and which may come back, is
    /// one of them. One more is refused with the reason. All servers of a group share this number.
    std::uint32_t max_clients = 1024;
    /// What clients may come by. The server opens a device only for RDMA.
    connect::Transports transports = connect::Transport::rc;
    /// Whether clients are kept out of each other's memory. With `domains` a client can write to
    /// its own ring and mailbox, and to nothing else, whatever keys it knows. All clients share the
    /// memory of Receives::shared, Polling::shared and Transport::ud: a server of `domains` refuses
    /// these, which are for clients that the program trusts. `trusted` saves a domain, and with
    /// Polling::dense a registration, for each client.
    Protection protection = Protection::domains;
    /// Bytes of the ring for the requests of one client: a power of two from 128 B to 1 GiB.
    std::size_t ring_bytes = std::size_t{16} << 10;
    /// Bytes of the longest request. A request that is longer than its client's ring lies in memory
    /// of the server.
    std::size_t max_request_bytes = std::size_t{16} << 20;
    /// Requests of all clients whose answers were deferred. While there are as many, a further
    /// request does not reach the handler: Outcome::overloaded.
    std::uint32_t max_pending = 65'536;
    /// The server drops a client that reads none of the answers that wait for it for this long, or
    /// that does not go on with a request it has begun.
    std::chrono::nanoseconds patience = std::chrono::seconds{10};
    /// Bytes of memory that all clients, of all servers of a group, make the server hold: requests
    /// of which a part has come, answers that wait or are kept. Beyond it a long request gets
    /// Outcome::overloaded, the server takes nothing from a client whose answers wait, and keeps no
    /// answer; and a client whose request has begun is dropped when less than 64 KiB more of it
    /// come in `patience`. At least what one request of max_request_bytes takes.
    std::size_t max_held_bytes = std::size_t{512} << 20;
    /// How long the server keeps the session of a client that asked for that
    /// (ClientOptions::resumes) and whose channel broke.
    std::chrono::nanoseconds session_patience = std::chrono::seconds{30};
    /// How waits escalate.
    base::WaitPolicy wait{};
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    /// Which clients are let in: a secret that both ends must know, a budget. `own_domains` is as
    /// `protection` says; with Protection::trusted it is as it is set here.
    connect::Admission admission{};
    /// A thread of the server's own accepts clients, so that a client that comes does not keep the
    /// server from requests (docs/loops.md). None: the server accepts in its turns. Not with
    /// Receives::shared, as these receives belong to the serving thread.
    std::optional<connect::AcceptorOptions> acceptor{};
    Tuning tuning{};
};

/// Counted since the server was made. Readable from outside as a statistics page, too.
struct ServerStats {
    std::uint64_t clients = 0;  ///< now, those included whose session alone is here
    std::uint64_t away = 0;     ///< of these, those whose session alone is here
    std::uint64_t joined = 0;
    std::uint64_t left = 0;  ///< closed, died, or were dropped
    std::uint64_t resumed = 0;
    std::uint64_t refused = 0;  ///< clients
    std::uint64_t misbehaved =
        0;                       ///< clients that were dropped for what they wrote or did not read
    std::uint64_t requests = 0;  ///< handed to the handler
    std::uint64_t answers = 0;   ///< of any outcome
    std::uint64_t deferred = 0;
    std::uint64_t pending = 0;     ///< deferred, and not answered yet
    std::uint64_t failed = 0;      ///< handlers that threw
    std::uint64_t overloaded = 0;  ///< requests that were not taken
    std::uint64_t repeated = 0;    ///< requests that came again, and were not executed again
    std::uint64_t large = 0;       ///< requests and answers that the receiver has READ
    std::uint64_t kept_back = 0;   ///< answers that did not find room at once
    std::uint64_t vain_looks = 0;  ///< at clients that had nothing: a late or a foreign hint
    std::uint64_t sleeps = 0;
    std::uint64_t put_off = 0;  ///< requests that were handed to the handler once more, or will be
    std::uint64_t over_budget = 0;  ///< what found no room in ServerOptions::max_held_bytes

    /// Of several servers together.
    ServerStats& operator+=(const ServerStats& other) noexcept;
};

/// A client's place, and how many had that place before: no two clients are the same.
struct ClientId {
    std::uint32_t place = 0;
    std::uint32_t generation = 0;
    std::uint32_t server = 0;  ///< in a ServerGroup, whose place it is
    friend bool operator==(const ClientId&, const ClientId&) = default;
};

namespace detail {
struct ReplyQueue;
struct RequestAccess;
struct PuttingOff;

/// The part of a server's state that the loop over several requests uses. The program compiles that
/// loop.
struct Serving {
    BatchWriter batch;  ///< to requests that came in one message
    ServerStats counts;
    /// The head of an answer in that message.
    [[nodiscard]] EntryHead entry_of(std::uint64_t id, Outcome outcome,
                                     std::size_t size) const noexcept {
        return {.length = static_cast<std::uint16_t>(size),
                .what = static_cast<std::uint16_t>(outcome),
                .number = static_cast<std::uint32_t>(id - batch.first())};
    }
};
}  // namespace detail

/// The right, and the duty, to answer one request later. Move-only. Any thread may use it, one at a
/// time. A Reply that is destroyed without an answer answers Outcome::dropped. It may outlive the
/// server.
class Reply {
  public:
    Reply() noexcept;
    Reply(Reply&& other) noexcept;
    Reply& operator=(Reply&& other) noexcept;
    Reply(const Reply&) = delete;
    Reply& operator=(const Reply&) = delete;
    ~Reply();

    [[nodiscard]] bool is_due() const noexcept { return queue_ != nullptr; }
    [[nodiscard]] ClientId client() const noexcept { return client_; }

    /// Takes a copy, and wakes the server if it sleeps. Never blocks. `ok`, also if the client has
    /// left, and nobody gets the answer; `closed`: the server is gone.
    base::Status answer(std::span<const std::byte> payload);
    /// The client gets Outcome::failed and the text, of at most 1,000 bytes.
    base::Status fail(std::string_view why);

  private:
    friend class Request;
    friend struct detail::ReplyQueue;
    struct Given;  ///< the answer, on its way to the server
    Reply(std::shared_ptr<detail::ReplyQueue> queue, ClientId client, std::uint64_t id);
    base::Status give(Outcome outcome, std::span<const std::byte> payload);

    std::shared_ptr<detail::ReplyQueue> queue_;
    std::list<Given> given_;  ///< one, while it is due
    ClientId client_{};
};

class Server;

/// A request, for as long as its handler runs.
class Request {
  public:
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    /// It lies where the client wrote it, until the handler returns.
    [[nodiscard]] std::span<const std::byte> payload() const noexcept { return payload_; }
    [[nodiscard]] ClientId client() const noexcept { return client_; }
    /// Its number in the client's session.
    [[nodiscard]] std::uint64_t id() const noexcept { return header_.id; }
    /// What the client set; 0 otherwise.
    [[nodiscard]] std::uint16_t procedure() const noexcept { return header_.procedure; }
    /// When the client stops waiting: limit() after the server took the request. The handler gets
    /// the same time however late it asks. Never, if the client said nothing.
    [[nodiscard]] base::Deadline deadline() const noexcept {
        return header_.limit_us == 0 ? base::Deadline::never() : deadline_from_taken();
    }
    /// How long the client waits, as it said when it sent the request; 0: for ever.
    [[nodiscard]] std::chrono::microseconds limit() const noexcept {
        return std::chrono::microseconds{header_.limit_us};
    }

    /// Sends a copy of `payload`, once for each request. `ok`; `too_large`: the client takes no
    /// answer of that size, and is told so; `closed`: the request is answered, or deferred,
    /// already, or the client has left. Answers to requests that came in one message
    /// (Client::begin_batch) go in one message, after up to 15 more calls of the handler.
    base::Status answer(std::span<const std::byte> payload) {
        if (stage_ == Stage::open) return answer_alone(payload);
        // A short one calls nobody.
        if (stage_ != Stage::open_in_batch || !server_->batch.takes_quickly(payload.size()))
            [[unlikely]]
            return answer_in_batch(payload);
        stage_ = Stage::answered;
        ++server_->counts.answers;
        server_->batch.lay(server_->entry_of(header_.id, Outcome::ok, payload.size()),
                           payload.data());
        return base::Status::ok;
    }
    /// Sends an answer that `fill(std::span<std::byte>)` writes: in the client's ring, if there is
    /// room. `fill` gets `size` bytes with any content, and returns nothing, or how many bytes it
    /// used. If it throws, nothing is sent, and the handler may give another answer.
    template <class Fill>
    base::Status answer(std::size_t size, Fill&& fill) {
        std::span<std::byte> room;
        const base::Status status = claim(size, room);
        if (status != base::Status::ok) return status;
        std::size_t used = size;
        if constexpr (std::is_void_v<std::invoke_result_t<Fill&, std::span<std::byte>>>) {
            fill(room);
        } else {
            used = std::min<std::size_t>(size, fill(room));
        }
        return commit(used);
    }
    /// The client gets Outcome::failed and the text, of at most 1,000 bytes.
    base::Status fail(std::string_view why);
    /// The answer comes later, from any thread, by the Reply. payload() ends when the handler
    /// returns. If the request is answered, or deferred, already, the Reply is not due.
    [[nodiscard]] Reply defer();

  private:
    friend struct detail::RequestAccess;
    friend struct detail::PuttingOff;
    friend class Server;
    Request(detail::Serving* server, void* peer, ClientId client, const SessionHeader& header,
            std::span<const std::byte> payload) noexcept
        : server_{server},
          peer_{peer},
          client_{client},
          header_{header},
          payload_{payload},
          taken_at_{header.limit_us == 0 ? 0 : base::ticks()} {}
    [[nodiscard]] base::Deadline deadline_from_taken() const noexcept;
    [[gnu::noinline]] base::Status answer_alone(std::span<const std::byte> payload);
    [[gnu::noinline]] base::Status answer_in_batch(std::span<const std::byte> payload);
    base::Status claim(std::size_t size, std::span<std::byte>& room);
    base::Status commit(std::size_t size);
    base::Status note_answered(base::Status status) noexcept {
        stage_ = Stage::answered;
        return status;
    }

    /// Becomes the next request of those that came in one message. False: no request lies there.
    [[nodiscard, gnu::always_inline]] bool become_next_of(detail::RequestRun& run) noexcept {
        EntryHead head;
        if (!run.take(head, payload_)) [[unlikely]]
            return false;
        header_.id = run.taken;
        header_.procedure = head.what;
        header_.limit_us = head.number;
        if (head.number != 0) taken_at_ = base::ticks();
        stage_ = Stage::open_in_batch;
        return true;
    }

    detail::Serving* server_;
    void* peer_;
    ClientId client_;
    SessionHeader header_;
    std::span<const std::byte> payload_;
    std::uint64_t taken_at_;  ///< ticks; only if the client has said how long it waits
    enum class Stage : std::uint8_t {
        open,
        open_in_batch,     ///< its answer may go with others in one message
        claimed_in_batch,  ///< … where its place was claimed
        answered,          ///< or deferred
    };
    Stage stage_ = Stage::open;
    bool is_kept_ = false;   ///< what was claimed lies in memory of the server
    bool is_large_ = false;  ///< … where the client is to READ it
    bool was_put_off_ = false;
};

namespace detail {
/// A handler without its type, called through a pointer. Allocates nothing.
struct HandlerRef {
    void* handler = nullptr;
    void (*call)(void* handler, Request& request) = nullptr;
    /// For several requests, while the run goes on; `request` becomes one after the other.
    void (*serve)(void* handler, Request& request, RequestRun& run) = nullptr;
};
}  // namespace detail

/// Belongs to the thread that made it, or to the one that called adopt() since. Calls that may
/// sleep or look at the kernel throw Error (invalid_argument) in another thread; stop(), stats()
/// and Reply are for any thread. Move-only. If it is destroyed without close(), in any thread, its
/// clients read `peer_lost`.
class Server {
  public:
    /// Throws Error (invalid_argument; permission, system: the address is in use …).
    [[nodiscard]] static Server listen(const connect::Address& address, ServerOptions options = {});
    Server(Server&&) noexcept;
    Server& operator=(Server&&) noexcept;
    ~Server();

    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const connect::Address& address() const noexcept;

    /// Serves each client that has written once: calls `handler(Request&)` for its next request, or
    /// for up to 16 requests that came in one message (Client::begin_batch). Takes at most `budget`
    /// requests, and returns how many. Begins after the client that was served last, so that no
    /// client has a second turn while another one waits. Sends deferred answers that are there.
    /// Never sleeps. What the handler throws goes to the client (Outcome::failed), and no further.
    /// The handler must not use the server. Throws Error as said above.
    template <class Handler>
    std::size_t turn(Handler&& handler, std::size_t budget = 1024) {
        return turn_by(erase(handler), budget);
    }
    /// Waits until there is something for turn(), as ServerOptions::wait says. `ok`; `timed_out`;
    /// `cancelled`; `closed`: the server was stopped.
    base::Status rest(const base::Deadline& deadline);
    /// Turns and rests until stop() (`closed`), the deadline (`timed_out`) or its cancellation.
    template <class Handler>
    base::Status serve(Handler&& handler, const base::Deadline& deadline) {
        return serve_by(erase(handler), deadline);
    }
    /// Ends rest() or serve(), once: the one that runs, or the next that is called. Any thread, and
    /// signal handlers.
    void stop() noexcept;

    /// Takes no more clients, answers new requests with Outcome::draining, and waits until every
    /// earlier request has its answer and every answer is in its client's ring. `timed_out`,
    /// `cancelled`: something is pending still. A client that goes on asking does not hold it up:
    /// drain() takes as many of its requests as its window allows, and leaves later ones to the
    /// next drain() or turn().
    base::Status drain(const base::Deadline& deadline);
    /// Drains, and closes every channel in good order once its client has all answers: clients read
    /// `closed` after the last. `ok`, also where clients have left or died; `timed_out`,
    /// `cancelled`: the others are its clients still, and close() may be called again.
    /// docs/closing.md.
    base::Status close(const base::Deadline& deadline);

    /// turn() calls it for each deferred request whose client takes it back, or has left for good,
    /// so that work on the request can end: with the client and Request::id; and when a client has
    /// left, at last with 0. It must not use the server, nor throw.
    void on_unwanted(std::function<void(ClientId, std::uint64_t id)> call);
    /// Has the server's thread serve connections of another kind as well. turn() and rest() call
    /// `look` as often as they look at clients by sockets, and soon once `descriptor` (an epoll of
    /// those connections, say) is readable. `look` works for a short time, never blocks, and
    /// returns whether there was something; then it is called again before the server sleeps. It
    /// must not use the server, nor throw. The descriptor stays open as long as the server lives.
    /// Throws Error (invalid_argument: nobody can wait for that descriptor).
    void serve_beside(int descriptor, std::function<bool()> look);

    /// From now on the server belongs to the calling thread.
    void adopt() noexcept;
    /// For a program's own loop (poll, epoll, connect::Hub …): when it is readable, call turn(). It
    /// stays readable until a turn() finds nothing, ServerOptions::wait.spin after the last
    /// request. From the first call on, that turn() falls asleep. Not for EPOLLET. docs/loops.md.
    [[nodiscard]] int descriptor();

    /// Any thread. Another thread than the server's may get counts of a millisecond ago.
    [[nodiscard]] ServerStats stats() const noexcept;
    /// What was chosen and why: polling, kernel, places, what a client can do to another one.
    [[nodiscard]] std::string explain() const;

    struct State;  ///< private to message/

  private:
    friend class ServerGroup;
    /// Makes `count` servers at one address, one for each thread. Server `number` is made on the
    /// cores of `where(number)`, if there are any, and belongs to no thread yet.
    [[nodiscard]] static std::vector<Server> listen_together(
        const connect::Address& address, const ServerOptions& options, std::size_t count,
        const std::function<std::vector<int>(std::size_t)>& where);
    void check_thread(const char* attempted) const;
    void begin_to_drain();
    /// Some laps of a drain. True: nothing is pending.
    [[nodiscard]] bool turn_to_drain();

    template <class Handler>
    static detail::HandlerRef erase(Handler& handler) noexcept {
        using Bare = std::remove_reference_t<Handler>;
        // A function is not an object, and has an address all the same; an object may be constant.
        const auto place = reinterpret_cast<std::uintptr_t>(std::addressof(handler));
        return {reinterpret_cast<void*>(place), &hand_to<Bare>, &hand_several_to<Bare>};
    }
    template <class Bare>
    static void hand_to(void* handler, Request& request) {
        try {
            std::invoke(*reinterpret_cast<Bare*>(handler), request);
        } catch (const std::exception& error) {
            threw(request, error.what());
        } catch (...) {
            threw(request, "the handler threw what is no exception");
        }
    }
    template <class Bare>
    static void hand_several_to(void* handler, Request& request, detail::RequestRun& run) {
        // A copy, for registers. The caller sees how far it came, whatever throws.
        struct Kept {
            detail::RequestRun here;
            detail::RequestRun& there;
            ~Kept() { there = here; }
        } kept{run, run};
        detail::RequestRun& here = kept.here;
        ServerStats& counts = request.server_->counts;
        do {
            if (!request.become_next_of(here)) [[unlikely]]
                return;
            if (counts.pending >= here.most_pending) [[unlikely]] {
                decline(request);
                continue;
            }
            ++counts.requests;
            hand_to<Bare>(handler, request);
            if (request.stage_ != Request::Stage::answered) [[unlikely]]
                drop(request);
        } while (here.taken != here.until && !*here.is_paused);
    }
    static void threw(Request& request, std::string_view why) noexcept;
    /// The request is not taken: the server is draining, or too much is pending.
    static void decline(Request& request);
    /// The handler gave no answer.
    static void drop(Request& request);
    std::size_t turn_by(detail::HandlerRef handler, std::size_t budget);
    base::Status serve_by(detail::HandlerRef handler, const base::Deadline& deadline);

    explicit Server(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::message
