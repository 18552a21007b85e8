// Typed calls for coroutines (base/coroutine.hpp): the task waits, and the thread is others'
// meanwhile.
//
//     base::Task<> look_up(rpc::AsyncClient& client) {
//         const rpc::Result<Value> value = co_await client.call<Get>({.key = 7}, deadline);
//     }
//     connect::Hub hub;
//     rpc::AsyncClient client{hub, rpc::Client::connect<Get>(address, {}, deadline)};
//     base::spawn(hub, look_up(client));
//     (void)hub.run();
//
// Tasks are resumed in the executor's thread, from the call that it makes when the client's
// descriptor is readable; or from poll(), where the program looks by itself. What waits for an
// answer lies in the task's frame: a call allocates nothing, and frames of tasks are taken from
// those that have ended (base/coroutine.hpp).
//
// Streams (stream.hpp):
//
//     base::Task<> watch(rpc::AsyncClient& client) {
//         auto events = co_await client.open<Watch>({.key = 7}, deadline);
//         while (auto event = co_await events.next(deadline)) {
//             if (!event->has_value()) break;                       // it has ended well
//             use(**event);
//         }
//     }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/detail/awaiting.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/detail/client_core.hpp"
#include "millrace/rpc/detail/record.hpp"
#include "millrace/rpc/stream.hpp"

namespace millrace::rpc {
namespace detail {

class AsyncCore;

/// A task that waits for the answer of its call. Destroying it takes the call back.
class SuspendedCall : public message::detail::Awaiting {
  protected:
    SuspendedCall(AsyncCore& core, const base::Deadline& deadline,
                  const ClientCore::Attempt& attempt, Priority priority) noexcept
        : Awaiting{deadline}, core_{&core}, priority_{priority}, attempt_{attempt} {}
    ~SuspendedCall() override;

    /// Sends the request; `full`: not yet.
    virtual base::Status submit(ClientCore& client) = 0;
    virtual void take(const message::Answer& answer) = 0;
    virtual void end(Code code) noexcept = 0;
    [[nodiscard]] virtual Code code() const noexcept = 0;

    void put(Record& record) noexcept;
    /// What waits has been sent, and has no answer of its own to wait for.
    void sent() noexcept { state_ = State::over; }

    std::uint64_t id_ = 0;  ///< submit() sets it

  private:
    friend class AsyncCore;
    enum class State : std::uint8_t { idle, queued, submitted, put_off, over };
    [[nodiscard]] bool begin() override;
    [[nodiscard]] static SuspendedCall& of(Record& record) noexcept;
    static const Record::Type type;

    AsyncCore* core_;
    State state_ = State::idle;
    Priority priority_;
    ClientCore::Attempt attempt_;
    Code ended_ = Code::not_sent;      ///< the last time
    base::Clock::time_point due_{};    ///< of one that is put off
    std::uint32_t vain_attempts_ = 0;  ///< to connect anew, while it was queued
};

template <UnaryProcedure P>
class CallAwaiter final : public SuspendedCall {
  public:
    using A = Owned<typename P::Response>;
    CallAwaiter(AsyncCore& core, typename P::Request request, const base::Deadline& deadline,
                const CallOptions& options)
        : SuspendedCall{core,
                        deadline,
                        {.place = place_of<P>, .is_idempotent = is_idempotent<P>()},
                        options.priority},
          request_{std::move(request)},
          options_{options} {}

    [[nodiscard]] Result<A> await_resume() { return std::move(result_); }

  private:
    base::Status submit(ClientCore& client) override {
        return detail::submit<P>(client, request_, deadline(), options_, false, id_,
                                 [this](Record& record) { put(record); });
    }
    void take(const message::Answer& answer) override { read_result(answer, result_); }
    void end(Code code) noexcept override { result_ = Result<A>{code}; }
    [[nodiscard]] Code code() const noexcept override { return result_.code(); }

    typename P::Request request_;
    CallOptions options_;
    Result<A> result_{Code::dropped};
};

/// A task that waits for a part of a stream.
class SuspendedPart : public message::detail::Awaiting, PartWaiter {
  protected:
    SuspendedPart(std::shared_ptr<AsyncCore> core, ReaderCore& reader,
                  const base::Deadline& deadline) noexcept
        : Awaiting{deadline}, core_{std::move(core)}, reader_{&reader} {}
    ~SuspendedPart() override;

    /// What came of the wait; `empty`: nobody has looked yet.
    base::Status status_ = base::Status::empty;
    std::span<const std::byte> part_;

  private:
    friend class AsyncCore;
    [[nodiscard]] bool begin() override;
    void came() override;
    /// True: it is over.
    bool look();
    void resume();

    std::shared_ptr<AsyncCore> core_;
    ReaderCore* reader_;
    bool is_waiting_ = false;
};

template <StreamProcedure P>
class PartAwaiter final : public SuspendedPart {
  public:
    using Part = Owned<typename P::Part>;
    PartAwaiter(std::shared_ptr<AsyncCore> core, ReaderCore& reader,
                const base::Deadline& deadline) noexcept
        : SuspendedPart{std::move(core), reader, deadline}, its_reader_{&reader} {}

    [[nodiscard]] Result<std::optional<Part>> await_resume() {
        std::optional<Part> part;
        switch (status_) {
            case base::Status::ok:
                if (read_part(part_, part.emplace())) return part;
                its_reader_->fail(Code::bad_answer);
                return its_reader_->error();
            case base::Status::closed: return part;
            case base::Status::timed_out: return Code::timed_out;
            case base::Status::cancelled: return Code::cancelled;
            default: return its_reader_->error();
        }
    }

  private:
    ReaderCore* its_reader_;
};

}  // namespace detail

/// The reading end of a stream, for coroutines. Move-only; belongs to the executor's thread.
/// Destroyed before the end, the server is told that it is not wanted.
template <StreamProcedure P>
class AsyncStreamReader {
  public:
    using Part = Owned<typename P::Part>;
    AsyncStreamReader(std::shared_ptr<detail::AsyncCore> client,
                      std::unique_ptr<detail::ReaderCore> core) noexcept
        : client_{std::move(client)}, core_{std::move(core)} {}
    AsyncStreamReader(AsyncStreamReader&&) noexcept = default;
    /// What this one read goes with `other`.
    AsyncStreamReader& operator=(AsyncStreamReader&& other) noexcept {
        // Moved one by one, the client would go before the core that asks it.
        std::swap(client_, other.client_);
        std::swap(core_, other.core_);
        return *this;
    }

    /// co_await: Result<std::optional<Part>>: the next part, in the order in which they were
    /// written; nothing: the stream has ended well; an error: it has ended otherwise. But for
    /// Code::timed_out and Code::cancelled, which are of this wait: the stream goes on. One task at
    /// a time.
    [[nodiscard]] detail::PartAwaiter<P> next(const base::Deadline& deadline) {
        return {client_, *core_, deadline};
    }
    /// Why the stream has ended; Code::ok while it has not, or where it ended well.
    [[nodiscard]] const Error& error() const noexcept { return core_->error(); }

  private:
    std::shared_ptr<detail::AsyncCore> client_;  // before core_, which asks it
    std::unique_ptr<detail::ReaderCore> core_;
};

namespace detail {

template <StreamProcedure P>
class OpenAwaiter final : public SuspendedCall {
  public:
    OpenAwaiter(std::shared_ptr<AsyncCore> core, ClientCore& client, typename P::Request request,
                const base::Deadline& deadline, std::uint32_t ahead, const CallOptions& options)
        : SuspendedCall{*core, deadline, {.place = place_of<P>}, options.priority},
          client_{std::move(core)},
          request_{std::move(request)},
          options_{options},
          reader_{std::make_unique<ReaderCore>(client, deadline, ahead)} {}

    [[nodiscard]] AsyncStreamReader<P> await_resume() {
        return {std::move(client_), std::move(reader_)};
    }

  private:
    base::Status submit(ClientCore& client) override {
        std::uint64_t id = 0;
        const base::Status status =
            detail::send<P>(client, request_, deadline(), options_, false, id, reader_->number());
        if (status == base::Status::ok) {
            reader_->opened(id);
            sent();
        }
        return status;
    }
    void take(const message::Answer&) override {}
    void end(Code code) noexcept override { reader_->fail(code); }
    [[nodiscard]] Code code() const noexcept override { return reader_->error().code; }

    std::shared_ptr<AsyncCore> client_;
    typename P::Request request_;
    CallOptions options_;
    std::unique_ptr<ReaderCore> reader_;
};

}  // namespace detail

/// A client whose calls are awaited. Move-only; belongs to the executor's thread. Destroyed, what
/// waits for an answer stays suspended until its task is destroyed.
///
/// Where the connection has ended, and calls wait that may be made again (RetryPolicy), or that
/// were not sent yet, another one is made in a thread of its own, which lasts as long as that
/// (ClientOptions::reconnects). The executor goes on meanwhile; streams that were open have ended,
/// unless the session resumes.
class AsyncClient {
  public:
    /// Takes the client's descriptor into the executor, which must outlive this. Throws Error as
    /// Client::descriptor and Executor::add.
    AsyncClient(base::Executor& executor, Client client);
    AsyncClient(AsyncClient&&) noexcept;
    AsyncClient& operator=(AsyncClient&&) noexcept;
    ~AsyncClient();

    /// co_await: Result<Response>. While the window is full, the call waits for its turn: after
    /// those of its priority that wait, and one of Priority::low after all others, of which each
    /// 16 are followed by one of low priority. It is
    /// over by its deadline (Code::timed_out, or Code::late: it was not sent) or cancellation, and
    /// made again until then as RetryPolicy says, by another connection if need be. What a request
    /// is a view of must stay so long.
    template <UnaryProcedure P>
    [[nodiscard]] detail::CallAwaiter<P> call(typename P::Request request,
                                              const base::Deadline& deadline,
                                              const CallOptions& options = {}) {
        return {*core_, std::move(request), deadline, options};
    }

    /// co_await: AsyncStreamReader<P>. Calls a procedure that answers by a stream, as Client::open,
    /// but that it waits for its turn where the window is full. A call that could not be sent gives
    /// a reader that says so.
    template <StreamProcedure P>
    [[nodiscard]] detail::OpenAwaiter<P> open(typename P::Request request,
                                              const base::Deadline& deadline,
                                              std::uint32_t ahead = 8,
                                              const CallOptions& options = {}) {
        return {core_, core_of_client(), std::move(request), deadline, ahead, options};
    }

    /// Resumes the task of one answer that is there, for a program that looks by itself. `ok`;
    /// `empty`; `closed`, `peer_lost`: nothing more comes by this connection.
    base::Status poll();
    /// Connects anew at once, waiting: as Client::reconnect.
    base::Status reconnect(const base::Deadline& deadline);
    /// As Client::close: when that has come to its end, tasks that wait are resumed; those whose
    /// calls were not sent at once.
    base::Status close(const base::Deadline& deadline);
    /// Beneath: to use further procedures, for its stats and explanation. While another connection
    /// is made it does nothing else: other calls throw Error (invalid_argument).
    [[nodiscard]] Client& client() noexcept;

  private:
    [[nodiscard]] detail::ClientCore& core_of_client() noexcept;
    std::shared_ptr<detail::AsyncCore> core_;
};

}  // namespace millrace::rpc
