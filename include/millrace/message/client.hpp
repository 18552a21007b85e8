// The client's side of N-to-one messages: requests to a Server over one channel, or one socket,
// several at a time, whose answers come in any order.
//
//     auto client = message::Client::connect(address, {}, deadline);
//     std::vector<std::byte> answer;
//     if (client.call(request, answer, deadline) == message::Outcome::ok) …
//
//     std::uint64_t id;
//     if (client.submit(request, id) == base::Status::ok) …         // as many as the window allows
//     (void)client.wait([&](const message::Answer& answer) { … answer.id … }, deadline);
//
// How a request ended is an Outcome (session.hpp); whether a call could be made at all, or whether
// anything has come, a base::Status.
// Source: work 001, section 4.2 (N-to-one communication) and listing 4.2 (zero copy).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/detail/entries.hpp"
#include "millrace/message/detail/filled.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/message/requester.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/message/tuning.hpp"

namespace millrace::message {

struct ClientOptions {
    /// What the program says to the server, and which version of that. Where the server names a
    /// protocol, too, and that is another one, connect() throws Error: refused; version_mismatch.
    connect::Protocol protocol{};
    /// Bytes of the ring for answers: a power of two from 128 B to 1 GiB, and at most what the
    /// server allows (Tuning::max_client_ring_bytes).
    std::size_t ring_bytes = std::size_t{16} << 10;
    /// What carries requests and answers; the server may refuse it. `tcp`: the socket, over TCP or
    /// a Unix one, without a device; options of rings, receives, carriers and devices mean nothing
    /// then. `uc`, `ud`: packets that may be lost and are sent again; rings are memory to send them
    /// from. A client that asks for SEND or for a carrier by one of these three is refused
    /// (invalid_argument).
    connect::Transport transport = connect::Transport::rc;
    /// What carries both instead where `transport` cannot be had: the server does not take it, the
    /// devices of the two ends do not reach each other, or this end has none. A warning in the log
    /// and explain() say that it is used, and why. For the whole session; options that mean nothing
    /// for it are passed over. None: connect() throws. Nothing falls back on its own.
    std::optional<connect::Transport> fallback{};
    /// Requests wait for each other, until a call that looks for answers (poll, wait, call) finds
    /// none, or until a message is full. By rc, where a device takes them by post, they lie in one
    /// message, as between begin_batch() and end_batch(); by `tcp` up to 64 KiB go by one system
    /// call, by `uc` and `ud` up to 16 by one doorbell. Elsewhere it changes nothing. A program
    /// that waits for their effect by other means must look here first; in one that sleeps by
    /// descriptor(), the descriptor stays readable until it has looked.
    bool gathers_requests = false;
    /// How requests and answers travel; the server may refuse the one or the other. Requests by
    /// `shared` are for a server with Polling::shared, and then `ring_bytes` and `answers` mean
    /// what they do over `uc`: memory to send packets from, and nothing.
    Transfer requests = Transfer::write;
    Transfer answers = Transfer::write;
    /// Requests without an answer, 1 to 4,096; the server may allow fewer.
    std::uint32_t window = 64;
    /// Bytes of the longest answer. One that is longer than the ring lies in memory of the client.
    std::size_t max_answer_bytes = std::size_t{64} << 20;
    /// Keep the session if the channel breaks: the client keeps a copy of each request until it is
    /// answered, and the server of each answer until that is acknowledged.
    bool resumes = false;
    /// How waits escalate. By the default clients of many threads take turns: contention.hpp.
    base::WaitPolicy wait{};
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    /// The secret, if the server asks for one.
    connect::Admission admission{};
    /// What few programs set.
    Tuning tuning{};
};

struct ClientStats {
    std::uint64_t requests = 0;
    std::uint64_t answers = 0;           ///< of any outcome, handed out
    std::uint64_t unwanted = 0;          ///< answers to calls that were given up
    std::uint64_t large = 0;             ///< requests and answers that the receiver has READ
    std::uint64_t full = 0;              ///< requests that found no room, or no place in the window
    std::uint64_t repeated = 0;          ///< requests sent again, for a session that was resumed
    std::uint64_t resumed = 0;           ///< channels after the first that went on with a session
    std::uint64_t batches = 0;           ///< messages in which requests went (begin_batch)
    std::uint64_t batches_received = 0;  ///< messages in which several answers came
    std::uint64_t bytes_sent = 0;        ///< of payload
    std::uint64_t bytes_received = 0;    ///< of payload
};

namespace detail {
struct ClientAccess;
}

/// One session with a server. Move-only; one thread at a time: a second one that waits in it or
/// closes it meanwhile gets an Error (invalid_argument) that says so.
///
/// `try`-like calls (submit, poll) never block, and make no system call while the server is awake,
/// unless each message is one (`tcp`); the others wait as ClientOptions::wait says. A session that
/// resumes is resumed by those that wait, as by reconnect().
class Client : public Requester<Client> {
  public:
    /// Throws Error as connect::connect; refused: the server does not take this client, and the
    /// error says why.
    [[nodiscard]] static Client connect(const connect::Address& address, ClientOptions options,
                                        const base::Deadline& deadline);
    Client(Client&&) noexcept;
    Client& operator=(Client&&) noexcept;
    ~Client();

    // --- requests, several at a time

    /// Sends a copy of `request`, and sets `id` to its number. `full`: as many as the window allows
    /// have no answer, or the server's ring has no room: take answers. `too_large`: the server
    /// takes no such request. `closed`, `peer_lost`: no more can be sent; see reconnect().
    base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                        const RequestOptions& options = {});
    using Requester::submit;
    /// From here to end_batch() requests are laid side by side in one message, where the server
    /// will read it or where it is sent from, and answers to them come several in one message, too:
    /// so what finds, passes and tells of a message is done once for all of them. A message goes
    /// when it is full (a quarter of the server's ring, 64 requests), when a call that looks for
    /// answers (poll, wait, call) finds none, or by end_batch(). Requests are what they are
    /// otherwise: each with a number, a deadline that counts from its submit (for the server: from
    /// its turn), a place in the window and an answer of its own. Changes nothing for requests that
    /// are too long, and over sockets, UC, UD and a shared buffer. A program that sleeps by
    /// descriptor() finds it readable until it has looked.
    ///
    ///     client.begin_batch();
    ///     for (const auto& key : keys) client.submit(key, id);   // one message
    ///     client.end_batch();
    void begin_batch() noexcept;
    /// What was laid goes, and from here on each request by itself.
    void end_batch() noexcept;

    /// Submits `count` requests of up to `size` bytes each, as many as can be sent now, in one
    /// message where begin_batch() would make it one (but each by itself in a session that
    /// resumes), and by fewer instructions: the loop is compiled where it is called.
    /// `fill(std::size_t index, std::span<std::byte>)` writes each in place, index 0 first; it
    /// returns nothing, or how many bytes it used. It must not use this client. Their numbers
    /// follow each other from `first` on. `ok`: all were submitted; otherwise why the next one was
    /// not, as submit(). They go at once, or between begin_batch() and end_batch() with others. If
    /// `fill` throws, those before it were submitted.
    ///
    ///     const auto sent = client.submit_several(
    ///         keys.size(), 64,
    ///         [&](std::size_t i, std::span<std::byte> room) { return write(keys[i], room); },
    ///         first);                                 // keys[i] has the number first + i
    template <class Fill>
    BatchResult submit_several(std::size_t count, std::size_t size, Fill&& fill,
                               std::uint64_t& first, const RequestOptions& options = {});
    /// Hands one answer after the other to `take(const Answer&)`, as long as there are some: as
    /// poll() does, and by fewer instructions where several came in one message. Its status is that
    /// of the last look: `empty`, or why there are no more. If `take` throws, that answer stays the
    /// next. It must not use this client.
    template <class Take>
    BatchResult poll_all(Take&& take);
    /// Has the processor fetch the next answers ahead: at the first call after a poll() what tells
    /// of them, and at the second, if they have come, all of their lines. Changes nothing that a
    /// program could see but time. See prefetch_next().
    void prefetch() noexcept;
    // poll() and wait() answer `closed`, `peer_lost` where nothing more comes; requests without an
    // answer have none then, see outstanding().

    /// The answer to `id` will not be handed out. The server is told at once, or in the next poll()
    /// if there is no room; if the request waits there for a deferred answer, its place in the
    /// window is free again soon. False: there is no such request without an answer.
    bool cancel(std::uint64_t id);
    /// Requests that were submitted, are wanted, and whose answers were not handed out.
    [[nodiscard]] std::size_t outstanding() const noexcept;
    [[nodiscard]] std::uint32_t window() const noexcept;

    // --- the session

    /// Connects anew, if the channel has ended, and waits for the server until the deadline. With
    /// ClientOptions::resumes the session goes on: what has no answer is sent again, and nothing is
    /// executed twice. Where the server knows it no more (it was restarted, or the session was away
    /// for too long), and without that option, what has no answer gets Outcome::session_lost, and a
    /// new session begins. `ok`; `timed_out`; `cancelled`; `closed`: this end was closed. Throws
    /// Error as connect().
    base::Status reconnect(const base::Deadline& deadline);
    /// Sends nothing new, waits until the server has every request that was submitted (not until it
    /// has answered), and ends channel and session in good order: what has no answer then gets
    /// none. As Channel::close: `timed_out`, `cancelled`: nothing was given up; answers still come,
    /// and close() may be called again. docs/closing.md.
    base::Status close(const base::Deadline& deadline);

    /// For a program's own loop: readable means, call poll(). It stays readable until poll() has
    /// answered `empty`. After reconnect() it is another one. Not for EPOLLET (docs/loops.md).
    /// Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor();

    [[nodiscard]] ClientStats stats() const noexcept;
    /// What was chosen and why: the channel, the server's polling, the session.
    [[nodiscard]] std::string explain() const;
    /// Why the channel is broken, or why the server refused. Empty while neither is so.
    [[nodiscard]] std::string failure() const;
    /// The connection beneath, until the next reconnect(): peer's name, its socket. What there is
    /// of it depends on the transport. Throws Error (closed): there is none.
    [[nodiscard]] connect::Link& link();

    struct State;  ///< private to message/

  private:
    friend struct detail::ClientAccess;
    friend Requester;
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
    /// Room for the first of so many requests, up to all of them; or each is to go by itself.
    base::Status claim_several(std::size_t count, std::size_t size, const RequestOptions& options,
                               detail::RequestRoom& room);
    void commit_several(std::byte* end, std::size_t count, std::size_t bytes) noexcept;
    /// Those that were laid go, unless a batch was begun before.
    void send_several() noexcept;
    /// As look(); or `run` is of all that lie in the next message, and `answer` is none yet.
    base::Status look_for_several(Answer& answer, detail::AnswerRun& run);
    void pass_several(const detail::AnswerRun& run) noexcept;

    explicit Client(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// For a thread that drives several clients in turn: before it turns to `clients[here]` it asks for
/// the answers of those that it comes to soon, so that it does not wait for the other processor's
/// lines for each of them anew. Nothing for fewer than eight, whose answers are hardly there yet.
///
///     for (std::size_t i = 0; i != clients.size(); ++i) {
///         message::prefetch_next(clients, i);
///         clients[i].poll_all(take);
///         clients[i].submit_several(…);
///     }
inline void prefetch_next(std::span<Client> clients, std::size_t here) noexcept {
    constexpr std::size_t few = 2 * turns_to_header;
    if (clients.size() < few) return;
    for (const std::size_t turns : {turns_to_header, turns_to_lines}) {
        const std::size_t there = here + turns;
        clients[there < clients.size() ? there : there - clients.size()].prefetch();
    }
}

template <class Fill>
BatchResult Client::submit_several(std::size_t count, std::size_t size, Fill&& fill,
                                   std::uint64_t& first, const RequestOptions& options) {
    /// Sends what was laid, or waits for others (gathers_requests), also if `fill` throws.
    struct Sending {
        Client* client;
        bool has_begun = false;
        ~Sending() {
            if (has_begun) client->send_several();
        }
    };
    struct Laying {
        Client* client;
        std::byte* at;
        std::size_t count = 0;
        std::size_t bytes = 0;
        ~Laying() { client->commit_several(at, count, bytes); }
    };
    BatchResult result;
    Sending sending{this};
    while (result.count != count) {
        detail::RequestRoom room;
        result.status = claim_several(count - result.count, size, options, room);
        if (result.status != base::Status::ok) return result;
        sending.has_begun = true;
        if (result.count == 0) first = room.first;
        if (room.at == nullptr) {
            std::uint64_t id = 0;
            const auto fill_one = [&](std::span<std::byte> place) {
                return fill(result.count, place);
            };
            result.status = submit(size, fill_one, id, options);
            if (result.status != base::Status::ok) return result;
            ++result.count;
            continue;
        }
        // Out of `room`, so that the loop keeps them in registers.
        const std::uint64_t head = room.head;
        const std::size_t most = room.count;
        const std::size_t begun = result.count;
        Laying laying{this, room.at};
        do {
            const auto fill_next = [&](std::span<std::byte> place) {
                return fill(begun + laying.count, place);
            };
            const std::size_t used =
                detail::filled(std::span{laying.at + entry_head_bytes, size}, fill_next);
            lay_entry_head(laying.at, EntryHead::of(head | used));
            laying.at += entry_bytes(used);
            laying.bytes += used;
        } while (++laying.count != most);
        result.count += most;
    }
    return result;
}

template <class Take>
BatchResult Client::poll_all(Take&& take) {
    struct Passing {
        Client* client;
        detail::AnswerRun run;
        ~Passing() {
            // A copy, so that the loop keeps its own in registers.
            if (run.count != 0) client->pass_several(detail::AnswerRun{run});
        }
    };
    BatchResult result;
    while (true) {
        Answer answer;
        detail::AnswerRun found;
        result.status = look_for_several(answer, found);
        if (result.status != base::Status::ok) return result;
        if (found.at == nullptr) {
            take(std::as_const(answer));
            pass();
            ++result.count;
            continue;
        }
        Passing passing{this, found};
        for (Answer next; passing.run.front(next); passing.run.pass(next)) {
            take(std::as_const(next));
        }
        result.count += passing.run.count;
        if (passing.run.count == 0) [[unlikely]] {
            // The next one is not wanted, or none at all.
            result.status = look(answer);
            if (result.status != base::Status::ok) return result;
            take(std::as_const(answer));
            pass();
            ++result.count;
        }
    }
}

}  // namespace millrace::message
