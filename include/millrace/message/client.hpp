// The client's side of N-to-one messages: requests to a Server over one channel, or one socket,
// several at a time, whose answers come in any order.
//
//     auto client = message::Client::connect(address, {}, deadline);
//     std::vector<std::byte> answer;
//     if (client.call(request, answer, deadline) == message::Outcome::ok) …
//
//     std::uint64_t id;
//     client.submit(request, id);                                   // as many as the window allows
//     client.wait([&](const message::Answer& answer) { … answer.id … }, deadline);
//
// How a request ended is an Outcome (session.hpp); whether a call could be made at all, or whether
// anything has come, a base::Status.
// Source: work 001, section 4.2 (N-to-one communication) and listing 4.2 (zero copy).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/ring/carrier.hpp"

namespace millrace::message {

struct ClientOptions {
    /// Bytes of the ring for answers: a power of two from 128 B to 1 GiB, and at most what the
    /// server allows (ServerOptions::max_client_ring_bytes).
    std::size_t ring_bytes = std::size_t{16} << 10;
    /// The largest ring for requests that the server may have.
    std::size_t max_server_ring_bytes = std::size_t{64} << 20;
    /// What carries both; the server may refuse it. `tcp`: the socket, over TCP or a Unix one, and
    /// no device; options of rings, receives, carriers and devices mean nothing then. `uc`, `ud`:
    /// packets that may be lost and are sent again; rings are memory to send them from. Asking for
    /// SEND or for a carrier is refused (invalid_argument) by all three.
    connect::Transport transport = connect::Transport::rc;
    /// `tcp`: requests wait for each other, until a call that looks for answers (poll, wait, call)
    /// finds none, or until they are 64 KiB: so they go by one system call, and not by one each. A
    /// program that waits for their effect by other means must look here first.
    bool gathers_requests = false;
    /// How requests and answers travel; the server may refuse the one or the other.
    Transfer requests = Transfer::write;
    Transfer answers = Transfer::write;
    /// Bytes of a receive, if answers come by SEND: a power of two from 128 B to 64 KiB, the ring
    /// at most, and `ring_bytes / slot_bytes` of them (1,024 at most) are what the server may have
    /// under way. A longer answer comes in pieces, and is put together.
    std::size_t slot_bytes = 512;
    /// Requests without an answer, 1 to 4,096; the server may allow fewer.
    std::uint32_t window = 64;
    /// Bytes of the longest answer. One that is longer than the ring is put together in memory of
    /// the client.
    std::size_t max_answer_bytes = std::size_t{64} << 20;
    /// Keep the session if the channel breaks: the client keeps a copy of each request until it is
    /// answered, and the server of each answer until that is acknowledged.
    bool resumes = false;
    /// How waits escalate.
    base::WaitPolicy wait{};
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    ring::Carrier carrier = ring::Carrier::automatic;
    /// The secret, if the server asks for one.
    connect::Admission admission{};
};

/// What may be said of a request.
struct RequestOptions {
    std::uint16_t procedure = 0;  ///< means something to the program
    /// Told to the server, which may leave undone what comes too late. Nothing else keeps to it.
    base::Deadline deadline = base::Deadline::never();
};

struct Answer {
    std::uint64_t id = 0;  ///< what submit() gave
    Outcome outcome = Outcome::ok;
    /// Of `ok`: the answer, in place; of `failed`: a text. Valid until the call that got it
    /// returns.
    std::span<const std::byte> payload{};
};

struct ClientStats {
    std::uint64_t requests = 0;
    std::uint64_t answers = 0;         ///< of any outcome, handed out
    std::uint64_t unwanted = 0;        ///< answers to calls that were given up
    std::uint64_t full = 0;            ///< requests that found no room, or no place in the window
    std::uint64_t repeated = 0;        ///< requests sent again, for a session that was resumed
    std::uint64_t resumed = 0;         ///< channels after the first that went on with a session
    std::uint64_t bytes_sent = 0;      ///< of payload
    std::uint64_t bytes_received = 0;  ///< of payload
};

namespace detail {
struct ClientAccess;

/// How many bytes of `room` are used behind `fill(room)`, which says it, or fills all.
template <class Fill>
std::size_t filled(std::span<std::byte> room, Fill& fill) {
    if constexpr (std::is_void_v<std::invoke_result_t<Fill&, std::span<std::byte>>>) {
        fill(room);
        return room.size();
    } else {
        return std::min<std::size_t>(room.size(), fill(room));
    }
}
}  // namespace detail

/// One session with a server. Move-only; one thread at a time.
///
/// `try`-like calls (submit, poll) never block, and make no system call while the server is awake,
/// unless each message is one (`tcp`); the others wait as ClientOptions::wait says.
class Client {
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
    /// The same of a request of `size` bytes that `fill(std::span<std::byte>)` writes in place,
    /// where the server reads it or the device sends it from. `fill` returns nothing, or how many
    /// bytes it used. If it throws, nothing is sent. It must not use this client.
    template <class Fill>
    base::Status submit(std::size_t size, Fill&& fill, std::uint64_t& id,
                        const RequestOptions& options = {}) {
        std::span<std::byte> room;
        const base::Status status = claim(size, room);
        return status == base::Status::ok ? fill_and_commit(room, fill, id, options) : status;
    }

    /// The same, waiting until the request can be sent: for an answer that frees a place in the
    /// window, which is kept for poll() and wait(), or for room in the server's ring. `timed_out`,
    /// `cancelled`: it was not sent.
    base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                        const base::Deadline& deadline, const RequestOptions& options = {}) {
        return submit(
            request.size(),
            [request](std::span<std::byte> room) {
                std::copy(request.begin(), request.end(), room.begin());
            },
            id, deadline, options);
    }
    template <class Fill>
    base::Status submit(std::size_t size, Fill&& fill, std::uint64_t& id,
                        const base::Deadline& deadline, const RequestOptions& options = {}) {
        std::span<std::byte> room;
        const base::Status status = claim(size, room, deadline);
        return status == base::Status::ok ? fill_and_commit(room, fill, id, options) : status;
    }

    /// Hands the next answer to `take(const Answer&)`, whichever it is. `empty`; `closed`,
    /// `peer_lost`: nothing more comes; requests without an answer have none, see outstanding().
    /// If `take` throws, the answer stays the next. It must not use this client.
    template <class Take>
    base::Status poll(Take&& take) {
        Answer answer;
        const base::Status status = look(answer);
        if (status != base::Status::ok) return status;
        take(std::as_const(answer));
        pass();
        return status;
    }
    /// The same, waiting for one. `timed_out`, `cancelled`. With nothing outstanding it answers
    /// `empty` at once. A session that resumes is resumed here, as by reconnect().
    template <class Take>
    base::Status wait(Take&& take, const base::Deadline& deadline) {
        Answer answer;
        const base::Status status = look(answer, deadline);
        if (status != base::Status::ok) return status;
        take(std::as_const(answer));
        pass();
        return status;
    }
    /// The answer to `id` is not wanted any more, and will not be handed out. The server is told;
    /// if the request is waiting there for a deferred answer, its place in the window is free again
    /// soon. False: there is no such request without an answer.
    bool cancel(std::uint64_t id);
    /// Requests that were submitted, are wanted, and whose answers were not handed out.
    [[nodiscard]] std::size_t outstanding() const noexcept;
    [[nodiscard]] std::uint32_t window() const noexcept;

    // --- one request, and its answer

    /// Replaces `answer` by the answer, or the text of Outcome::failed. Answers to other requests
    /// that come meanwhile are kept for poll() and wait(). A deadline that has passed: `timed_out`,
    /// and nothing is sent. An answer that comes too late is dropped. A session that resumes is
    /// resumed here, as by reconnect().
    Outcome call(std::span<const std::byte> request, std::vector<std::byte>& answer,
                 const base::Deadline& deadline, std::uint16_t procedure = 0);
    /// Without copies: `fill` as submit(), `take(std::span<const std::byte>)`, or
    /// `take(const Answer&)`, gets the answer, or the text, in place, and only if there is one.
    template <class Fill, class Take>
    Outcome call(std::size_t size, Fill&& fill, Take&& take, const base::Deadline& deadline,
                 std::uint16_t procedure = 0) {
        if (deadline.expired()) return Outcome::timed_out;
        std::span<std::byte> room;
        base::Status status = claim(size, room, deadline);
        if (status != base::Status::ok) return outcome_of(status);
        std::uint64_t id = 0;
        status = fill_and_commit(room, fill, id, {procedure, deadline});
        if (status != base::Status::ok) return outcome_of(status);
        Answer answer;
        status = look_for(id, answer, deadline);
        if (status != base::Status::ok) return outcome_of(status);
        if (answer.outcome <= Outcome::failed) {
            if constexpr (std::is_invocable_v<Take&, const Answer&>) {
                take(std::as_const(answer));
            } else {
                take(answer.payload);
            }
        }
        const Outcome outcome = answer.outcome;
        pass();
        return outcome;
    }

    // --- the session

    /// Connects anew, if the channel has ended, and waits for the server until the deadline. With
    /// ClientOptions::resumes the session goes on: what has no answer is sent again, and nothing is
    /// executed twice. Where the server knows it no more (it was restarted, or the session was away
    /// for too long), and without that option, what has no answer gets Outcome::session_lost, and a
    /// new session begins. `ok`; `timed_out`; `cancelled`; `closed`: this end was closed. Throws
    /// Error as connect().
    base::Status reconnect(const base::Deadline& deadline);
    /// Ends the channel and the session in good order. What has no answer gets none. As
    /// Channel::close.
    base::Status close(const base::Deadline& deadline);

    /// For a program's own loop: readable means, call poll(). It stays readable until poll() has
    /// answered `empty`. Another one behind reconnect(). Throws Error (resource_exhausted).
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
    base::Status claim(std::size_t size, std::span<std::byte>& room);
    base::Status claim(std::size_t size, std::span<std::byte>& room,
                       const base::Deadline& deadline);
    base::Status commit(std::size_t size, std::uint64_t& id, const RequestOptions& options);
    base::Status look(Answer& answer);
    base::Status look(Answer& answer, const base::Deadline& deadline);
    base::Status look_for(std::uint64_t id, Answer& answer, const base::Deadline& deadline);
    void pass() noexcept;

    template <class Fill>
    base::Status fill_and_commit(std::span<std::byte> room, Fill& fill, std::uint64_t& id,
                                 const RequestOptions& options) {
        const std::size_t used = detail::filled(room, fill);
        return commit(used, id, options);
    }

    explicit Client(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::message
