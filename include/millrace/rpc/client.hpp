// The client's side of typed calls: procedures of an rpc::Server, over one session of
// message::Client.
//
//     auto client = rpc::Client::connect<Get, Put>(address, {}, deadline);
//     const rpc::Result<Value> value = client.call<Get>({.key = 7}, deadline);
//     const auto take = [&](rpc::Result<Value> value) { … };
//     if (client.submit<Get>({.key = 7}, take, deadline) != base::Status::ok) …
//     while (client.wait(deadline) == base::Status::ok) {}      // calls what has its answer
//
// Right after it has connected, a client asks the server for its table of procedures; a
// program that uses one that is not there, or that means something else, learns that then, and not
// by its first call.
// coroutine.hpp has calls for coroutines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"
#include "millrace/rpc/client_options.hpp"
#include "millrace/rpc/detail/client_core.hpp"
#include "millrace/rpc/detail/record.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/result.hpp"
#include "millrace/rpc/stream.hpp"
#include "millrace/rpc/table.hpp"

namespace millrace::rpc {

/// One session with a server. Move-only. Belongs to the thread that made it, or to the one that
/// called adopt() since: another one that calls gets an Error (invalid_argument).
class Client {
  public:
    /// Connects, asks for the table, and finds each of the procedures in it. Throws Error as
    /// message::Client::connect; as use(); protocol: it is another kind of server;
    /// invalid_argument: a design with a dispatcher, and none is named; as Profile::built_in.
    template <Procedure... P>
    [[nodiscard]] static Client connect(const connect::Address& address, ClientOptions options,
                                        const base::Deadline& deadline) {
        Client client =
            connect_to(address, std::move(options), deadline,
                       std::max({std::size_t{0}, detail::plain_response_bytes<P>()...}));
        (client.use<P>(deadline), ...);
        return client;
    }
    Client(Client&&) noexcept;
    Client& operator=(Client&&) noexcept;
    /// What was submitted and has no answer is dropped, and its callbacks are not called.
    ~Client();

    /// Finds the procedure in the server's table, so that it can be called. Throws Error:
    /// not_found, the server has none of that name; invalid_argument, request or response are
    /// others there.
    template <Procedure P>
    void use(const base::Deadline& deadline) {
        core_->check_thread();
        core_->use(detail::place_of<P>, detail::signature_of<P>(), deadline);
    }

    // --- one call

    /// Waits for the answer. Answers to what was submitted stay for poll() and wait() meanwhile.
    /// A deadline that has passed: Code::late, and nothing is sent. Made again as RetryPolicy says.
    /// Throws Error (invalid_argument): the procedure was not asked for; the thread is another one.
    template <UnaryProcedure P>
    [[nodiscard]] Result<Owned<typename P::Response>> call(const typename P::Request& request,
                                                           const base::Deadline& deadline,
                                                           const CallOptions& options = {}) {
        using A = Owned<typename P::Response>;
        detail::ClientCore& core = *core_;
        core.check_thread();
        const detail::Writer<typename P::Request> writer{request};
        detail::ClientCore::Attempt attempt{.place = detail::place_of<P>,
                                            .is_idempotent = detail::is_idempotent<P>()};
        core.earn();
        Result<A> result{Code::dropped};
        const auto take = [&](const message::Answer& answer) {
            detail::read_result(answer, result);
        };
        while (true) {
            const std::uint16_t number = core.number_of(attempt.place);
            bool is_sent = false;
            std::uint64_t id = 0;
            if constexpr (detail::lies_as_bytes<typename P::Request>) {
                // Nothing is said of it, and it lies there as it travels.
                is_sent = detail::says_nothing(deadline, options) &&
                          core.messages().submit(detail::bytes_of(request), id,
                                                 {.procedure = number}) == base::Status::ok;
            }
            message::Outcome outcome = message::Outcome::ok;
            if (is_sent) {
                outcome = core.messages().answer_to(id, take, deadline);
            } else {
                const Head head = core.head_of(deadline, options);
                const std::size_t head_bytes = size_of(head);
                outcome = core.messages().call(
                    head_bytes + writer.size(),
                    [&](std::span<std::byte> room) {
                        is_sent = true;
                        if (head_bytes != 0) write(head, room.data());
                        writer.write(room.data() + head_bytes);
                    },
                    take,
                    {.procedure =
                         head_bytes == 0 ? number : static_cast<std::uint16_t>(number | head_bit),
                     .deadline = deadline,
                     .told_from = detail::told_from(head)});
            }
            if (result.ok()) [[likely]]
                return result;
            if (outcome > message::Outcome::failed) result = ended(outcome, is_sent);
            core.note(result.code(), deadline);
            if (!core.repeats(result.code(), attempt, deadline)) return result;
        }
    }

    // --- several at a time

    /// Sends the request, and calls `callback(Result<Response>)` once, from poll(), wait() or
    /// close(), which may make further calls. `ok`; `full`: as many as the window allows have no
    /// answer, or the server's ring has no room; `timed_out`: the deadline has passed; `too_large`,
    /// `closed`, `peer_lost`: it was not sent, and `callback` is not called. Never blocks. Nothing
    /// is made again: the callback gets the code. Callback and Result<Response> together take at
    /// most 176 bytes, or they are allocated. Throws as call().
    template <UnaryProcedure P, class Callback>
    base::Status submit(const typename P::Request& request, Callback callback,
                        const base::Deadline& deadline, const CallOptions& options = {},
                        std::uint64_t* id = nullptr) {
        return submit_by<P>(request, std::move(callback), deadline, options, false, id);
    }
    /// The same, waiting for room until the deadline. Callbacks are called later, by poll() and
    /// wait(). `full`: answers to as many calls as the window allows lie there already.
    template <UnaryProcedure P, class Callback>
    base::Status submit_or_wait(const typename P::Request& request, Callback callback,
                                const base::Deadline& deadline, const CallOptions& options = {},
                                std::uint64_t* id = nullptr) {
        return submit_by<P>(request, std::move(callback), deadline, options, true, id);
    }
    /// Calls the callback of one answer, or of what is over by its deadline (Code::timed_out,
    /// Code::cancelled). `ok`; `empty`; `closed`, `peer_lost`: nothing more comes, and what had no
    /// answer was told that, unless the session resumes. Never blocks. Throws what a callback
    /// throws.
    base::Status poll();
    /// The same, waiting for one. `timed_out`, `cancelled`. With nothing outstanding, `empty`: at
    /// once, or, where the last submit() was `full`, once there is room for it. Throws Error, too,
    /// where a session that resumes has come to a server that lacks a procedure.
    base::Status wait(const base::Deadline& deadline);
    /// The call is not wanted any more: its callback is destroyed and never called. The server is
    /// told at once or in the next poll() (Reply::is_wanted). False: no such call lacks an answer.
    bool cancel(std::uint64_t id);
    /// What was submitted and has no answer.
    [[nodiscard]] std::size_t outstanding() const noexcept;

    // --- streams

    /// Calls a procedure that answers by a stream, which may last until the deadline. The reader
    /// asks for so many parts `ahead` of what was read, each of which takes a place in the window.
    /// A call that cannot be sent gives a reader that says so. Throws as call().
    template <StreamProcedure P>
    [[nodiscard]] StreamReader<P> open(const typename P::Request& request,
                                       const base::Deadline& deadline, std::uint32_t ahead = 8,
                                       const CallOptions& options = {}) {
        auto reader = std::make_unique<detail::ReaderCore>(*core_, deadline, ahead);
        std::uint64_t id = 0;
        const base::Status status =
            detail::send<P>(*core_, request, deadline, options, true, id, reader->number());
        if (status == base::Status::ok) {
            reader->opened(id);
        } else {
            reader->fail(status == base::Status::timed_out   ? Code::late
                         : status == base::Status::too_large ? Code::too_large
                                                             : Code::not_sent);
        }
        return StreamReader<P>{std::move(reader)};
    }

    // --- the session

    /// Connects anew if the connection has ended, whether or not any call has noticed that yet, and
    /// asks for the table. As message::Client::reconnect; throws Error as connect().
    base::Status reconnect(const base::Deadline& deadline);
    /// Sends nothing new, waits until the server has every call that was submitted, and ends the
    /// session in good order. Then a call without an answer is told so by Code::closed. As
    /// message::Client::close: after `timed_out` answers still come, and close() may be called
    /// again.
    base::Status close(const base::Deadline& deadline);
    /// From now on it belongs to the calling thread.
    void adopt() noexcept;
    /// For a program's own loop: readable means, call poll(), until it is `empty`.
    [[nodiscard]] int descriptor();

    /// The procedures of the server and what it counted. Throws Error.
    [[nodiscard]] std::vector<ProcedureReport> procedures(const base::Deadline& deadline);
    [[nodiscard]] ClientStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    /// Why the connection is broken. Empty while it is not.
    [[nodiscard]] std::string failure() const;

  private:
    friend class detail::AsyncCore;
    [[nodiscard]] static Client connect_to(const connect::Address& address, ClientOptions options,
                                           const base::Deadline& deadline,
                                           std::size_t response_bytes);
    [[nodiscard]] static Code ended(message::Outcome outcome, bool is_sent) noexcept;
    explicit Client(std::unique_ptr<detail::ClientCore> core) noexcept;
    template <UnaryProcedure P, class Callback>
    base::Status submit_by(const typename P::Request& request, Callback callback,
                           const base::Deadline& deadline, const CallOptions& options, bool waits,
                           std::uint64_t* id) {
        using Submitted = detail::Submitted<Owned<typename P::Response>, Callback>;
        std::uint64_t number = 0;
        const base::Status status = detail::submit<P>(
            *core_, request, deadline, options, waits, number,
            [&](detail::Record& record) { Submitted::put(record, std::move(callback)); });
        if (status == base::Status::ok && id != nullptr) *id = number;
        return status;
    }

    std::unique_ptr<detail::ClientCore> core_;
};

}  // namespace millrace::rpc
