// Typed calls for coroutines (base/coroutine.hpp): the task waits, and the thread is others'
// meanwhile.
//
//     base::Task<> look_up(rpc::AsyncClient& client) {
//         const rpc::Result<Value> value = co_await client.call<Get>({.key = 7}, deadline);
//     }
//     connect::Hub hub;
//     rpc::AsyncClient client{hub, rpc::Client::connect<Get>(address, {}, deadline)};
//     base::spawn(hub, look_up(client));
//     hub.run();
//
// Tasks are resumed in the executor's thread, from the call that it makes when the client's
// descriptor is readable; or from poll(), where the program looks by itself. What waits for an
// answer lies in the task's frame: a call allocates nothing, and frames of tasks are taken from
// those that have ended (base/coroutine.hpp).
#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"
#include "millrace/base/status.hpp"
#include "millrace/rpc/client.hpp"

namespace millrace::rpc {
namespace detail {

class AsyncCore;

/// A task that waits for the answer of its call. Destroying it takes the call back.
class SuspendedCall {
  public:
    SuspendedCall(const SuspendedCall&) = delete;
    SuspendedCall& operator=(const SuspendedCall&) = delete;

  protected:
    SuspendedCall(AsyncCore& core, const base::Deadline& deadline) noexcept
        : core_{&core}, deadline_{deadline} {}
    virtual ~SuspendedCall();

    /// Sends the request; `full`: not yet.
    virtual base::Status submit(ClientCore& client) = 0;
    virtual void take(const message::Answer& answer) = 0;
    virtual void end(Code code) noexcept = 0;

    /// False: it is over already.
    [[nodiscard]] bool begin(base::detail::Run& run, std::coroutine_handle<> frame);
    void put(Record& record) noexcept;
    [[nodiscard]] const base::Deadline& deadline() const noexcept { return deadline_; }

    std::uint64_t id_ = 0;  ///< submit() sets it

  private:
    friend class AsyncCore;
    enum class State : std::uint8_t { idle, queued, submitted, over };
    [[nodiscard]] static SuspendedCall& of(Record& record) noexcept;
    static const Record::Type type;

    AsyncCore* core_;
    base::Deadline deadline_;
    base::detail::Run* run_ = nullptr;
    std::coroutine_handle<> frame_;
    State state_ = State::idle;
    SuspendedCall* before_ = nullptr;  ///< of those that are queued
    SuspendedCall* behind_ = nullptr;
};

template <UnaryProcedure P>
class CallAwaiter final : SuspendedCall {
  public:
    using A = Owned<typename P::Response>;
    CallAwaiter(AsyncCore& core, typename P::Request request, const base::Deadline& deadline,
                const CallOptions& options)
        : SuspendedCall{core, deadline}, request_{std::move(request)}, options_{options} {}

    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <std::derived_from<base::detail::Promise> Of>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Of> frame) {
        return begin(*frame.promise().run, frame);
    }
    [[nodiscard]] Result<A> await_resume() { return std::move(result_); }

  private:
    base::Status submit(ClientCore& client) override {
        return detail::submit<P>(client, request_, deadline(), options_, false, id_,
                                 [this](Record& record) { put(record); });
    }
    void take(const message::Answer& answer) override { read_result(answer, result_); }
    void end(Code code) noexcept override { result_ = Result<A>{code}; }

    typename P::Request request_;
    CallOptions options_;
    Result<A> result_{Code::dropped};
};

}  // namespace detail

/// A client whose calls are awaited. Move-only; belongs to the executor's thread. Destroyed, what
/// waits for an answer stays suspended until its task is destroyed.
class AsyncClient {
  public:
    /// Takes the client's descriptor into the executor, which must outlive this. Throws Error as
    /// Client::descriptor and Executor::add.
    AsyncClient(base::Executor& executor, Client client);
    AsyncClient(AsyncClient&&) noexcept;
    AsyncClient& operator=(AsyncClient&&) noexcept;
    ~AsyncClient();

    /// co_await: Result<Response>. While the window is full, the call waits for its turn. It is
    /// over by its deadline (Code::timed_out, or Code::late: it was not sent) or cancellation, and
    /// not made again. What a request is a view of must stay until then.
    template <UnaryProcedure P>
    [[nodiscard]] detail::CallAwaiter<P> call(typename P::Request request,
                                              const base::Deadline& deadline,
                                              const CallOptions& options = {}) {
        return {*core_, std::move(request), deadline, options};
    }

    /// Resumes the task of one answer that is there, for a program that looks by itself. `ok`;
    /// `empty`; `closed`, `peer_lost`: nothing more comes.
    base::Status poll();
    /// Connects anew, waiting: as Client::reconnect. By itself it does not.
    base::Status reconnect(const base::Deadline& deadline);
    /// As Client::close: tasks that wait are resumed.
    base::Status close(const base::Deadline& deadline);
    /// Beneath: to use further procedures, for its stats and explanation.
    [[nodiscard]] Client& client() noexcept;

  private:
    std::shared_ptr<detail::AsyncCore> core_;
};

}  // namespace millrace::rpc
