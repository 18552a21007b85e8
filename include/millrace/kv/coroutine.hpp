// A key-value client for coroutines (base/coroutine.hpp): the task waits for its answer, and the
// thread is others' meanwhile.
//
//     base::Task<> look_up(kv::AsyncClient& client, std::vector<std::byte>& value) {
//         const kv::Result result = co_await client.get(kv::bytes("name"), value, deadline);
//     }
//     connect::Hub hub;
//     kv::AsyncClient client{hub, kv::Client::connect(address, {}, deadline)};
//     base::spawn(hub, look_up(client, value));
//     (void)hub.run();
//
// Tasks are resumed in the executor's thread, from the call that it makes when the client's
// descriptor is readable; or from poll(), where the program looks by itself. What waits for an
// answer lies in the task's frame: a request allocates nothing, and frames of tasks are taken from
// those that have ended (base/coroutine.hpp).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"
#include "millrace/base/status.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/protocol.hpp"
#include "millrace/message/detail/awaiting.hpp"

namespace millrace::kv {
namespace detail {

class AsyncCore;

/// A task that waits for the answers of its requests. Destroying it takes them back.
class Suspended : public message::detail::Awaiting {
  protected:
    Suspended(AsyncCore& core, const base::Deadline& deadline) noexcept
        : Awaiting{deadline}, core_{&core} {}
    ~Suspended() override;

    /// Sends its next request, and sets `id`, and `index` to what take() shall be told. `full`: not
    /// now. `empty`: there was none left. Other answers end it.
    virtual base::Status submit(Client& client, std::uint64_t& id, std::size_t& index) = 0;
    virtual void take(const Answer& answer, std::size_t index) noexcept = 0;
    /// Its requests get no answers any more.
    virtual void end(base::Status why) noexcept = 0;
    [[nodiscard]] virtual bool has_more() const noexcept = 0;  ///< to send
    [[nodiscard]] virtual bool is_over() const noexcept = 0;

    [[nodiscard]] static Code check(Command command, const RequestParts& parts) noexcept {
        return Client::check(command, parts);
    }
    [[nodiscard]] std::uint32_t outstanding() const noexcept { return outstanding_; }
    /// Calls what the program gave. What it throws comes out of the co_await.
    template <class Call>
    void guarded(Call&& call) noexcept {
        try {
            call();
        } catch (...) {
            error_ = std::current_exception();
        }
    }
    [[nodiscard]] bool has_thrown() const noexcept { return error_ != nullptr; }
    void rethrow() const {
        if (error_ != nullptr) std::rethrow_exception(error_);
    }

  private:
    friend class AsyncCore;
    [[nodiscard]] bool begin() override;

    AsyncCore* core_;  ///< null: the client has gone
    std::exception_ptr error_;
    std::uint32_t outstanding_ = 0;  ///< requests of it without an answer
    bool is_waiting_ = false;        ///< from its begin to its end
    bool is_queued_ = false;         ///< it has more to send
};

/// One request.
template <class Take>
class RequestAwaiter final : public Suspended {
  public:
    RequestAwaiter(AsyncCore& core, Command command, const RequestParts& parts, Take take,
                   const base::Deadline& deadline)
        : Suspended{core, deadline}, command_{command}, parts_{parts}, take_{std::move(take)} {}

    [[nodiscard]] Result await_resume() const {
        rethrow();
        return result_;
    }

  private:
    base::Status submit(Client& client, std::uint64_t& id, std::size_t& /*index*/) override {
        const base::Status status = client.submit(command_, parts_, id);
        if (status == base::Status::ok) {
            is_sent_ = true;
        } else if (status == base::Status::too_large) {
            const Code code = check(command_, parts_);
            result_ = {
                .code = code == Code::ok ? Code::unanswered : code,
                .outcome = code == Code::ok ? message::Outcome::too_large : message::Outcome::ok};
            is_over_ = true;
        }
        return status;
    }
    void take(const Answer& answer, std::size_t /*index*/) noexcept override {
        result_ = answer.result;
        is_over_ = true;
        if (result_.ok()) guarded([&] { take_(answer.value); });
    }
    void end(base::Status why) noexcept override {
        result_ = {.code = Code::unanswered, .outcome = message::outcome_of(why)};
        is_over_ = true;
    }
    [[nodiscard]] bool has_more() const noexcept override { return !is_sent_; }
    [[nodiscard]] bool is_over() const noexcept override { return is_over_; }

    Command command_;
    RequestParts parts_;
    Take take_;
    Result result_{.code = Code::unanswered};
    bool is_sent_ = false;
    bool is_over_ = false;
};

/// GETs of many keys.
template <class Take>
class MultiGetAwaiter final : public Suspended {
  public:
    MultiGetAwaiter(AsyncCore& core, std::span<const std::span<const std::byte>> keys, Take take,
                    const base::Deadline& deadline)
        : Suspended{core, deadline}, keys_{keys}, take_{std::move(take)} {}

    [[nodiscard]] bool await_ready() const noexcept { return keys_.empty(); }
    [[nodiscard]] base::Status await_resume() const {
        rethrow();
        return status_;
    }

  private:
    base::Status submit(Client& client, std::uint64_t& id, std::size_t& index) override {
        for (; has_more() && !has_thrown(); ++next_) {
            const RequestParts parts{.key = keys_[next_]};
            const Code code = check(Command::get, parts);
            if (code == Code::ok) {
                index = next_;
                const base::Status status = client.submit(Command::get, parts, id);
                if (status == base::Status::ok) ++next_;
                return status;
            }
            guarded([&] { take_(next_, Result{.code = code}, std::span<const std::byte>{}); });
        }
        return base::Status::empty;
    }
    void take(const Answer& answer, std::size_t index) noexcept override {
        guarded([&] { take_(index, answer.result, answer.value); });
    }
    void end(base::Status why) noexcept override { status_ = why; }
    [[nodiscard]] bool has_more() const noexcept override { return next_ < keys_.size(); }
    [[nodiscard]] bool is_over() const noexcept override {
        return has_thrown() || status_ != base::Status::ok || (!has_more() && outstanding() == 0);
    }

    std::span<const std::span<const std::byte>> keys_;
    Take take_;
    std::size_t next_ = 0;
    base::Status status_ = base::Status::ok;
};

}  // namespace detail

/// A client whose requests are awaited. Move-only; belongs to the executor's thread. Destroyed,
/// what waits for an answer stays suspended until its task is destroyed.
///
/// Each of these is for co_await, any number of them at a time. While the window is full, a request
/// waits for its turn. It ends by its deadline or cancellation with Code::unanswered and the
/// outcome `timed_out` or `cancelled` (the server may carry it out nevertheless, if it was sent),
/// with `closed` or `peer_lost` when the connection does, unless message::ClientOptions::resumes is
/// chosen. Keys, values and what results are written to must stay until then.
class AsyncClient {
  public:
    /// Takes the client's descriptor into the executor, which must outlive this. Requires that
    /// nothing is outstanding. Throws Error as message::Client::descriptor and Executor::add.
    AsyncClient(base::Executor& executor, Client client);
    AsyncClient(AsyncClient&&) noexcept;
    AsyncClient& operator=(AsyncClient&&) noexcept;
    ~AsyncClient();

    /// Result of any command. `take(std::span<const std::byte>)` gets what the answer says after
    /// its code, in place, if that is `ok`; it must not use this client, and what it throws comes
    /// out of the co_await.
    template <class Take>
    [[nodiscard]] detail::RequestAwaiter<Take> call(Command command, const RequestParts& parts,
                                                    Take take, const base::Deadline& deadline) {
        return {*core_, command, parts, std::move(take), deadline};
    }
    /// Result. Hands the value to `take(std::span<const std::byte>)`, in place, if there is one.
    template <class Take>
        requires std::invocable<Take&, std::span<const std::byte>>
    [[nodiscard]] detail::RequestAwaiter<Take> get(std::span<const std::byte> key, Take take,
                                                   const base::Deadline& deadline) {
        return call(Command::get, {.key = key}, std::move(take), deadline);
    }
    /// Result. Replaces `value` by the item's.
    [[nodiscard]] auto get(std::span<const std::byte> key, std::vector<std::byte>& value,
                           const base::Deadline& deadline) {
        return get(
            key,
            [&value](std::span<const std::byte> found) {
                value.assign(found.begin(), found.end());
            },
            deadline);
    }
    /// Result.
    [[nodiscard]] auto set(std::span<const std::byte> key, std::span<const std::byte> value,
                           const base::Deadline& deadline, const SetOptions& options = {}) {
        return call(Command::set, {key, value, options}, Nothing{}, deadline);
    }
    [[nodiscard]] auto erase(std::span<const std::byte> key, const base::Deadline& deadline,
                             std::optional<Version> if_version = {}) {
        return call(Command::del, {.key = key, .options = {.if_version = if_version}}, Nothing{},
                    deadline);
    }
    [[nodiscard]] auto exists(std::span<const std::byte> key, const base::Deadline& deadline) {
        return call(Command::exists, {.key = key}, Nothing{}, deadline);
    }
    [[nodiscard]] auto ping(const base::Deadline& deadline) {
        return call(Command::ping, {}, Nothing{}, deadline);
    }
    /// Status, as Client::multi_get, while other requests of this client have their turns between
    /// those of a long list. `take(index, const Result&, std::span<const std::byte>)` gets
    /// values in place, must not use this client, and ends it by throwing.
    template <class Take>
    [[nodiscard]] detail::MultiGetAwaiter<Take> multi_get(
        std::span<const std::span<const std::byte>> keys, Take take,
        const base::Deadline& deadline) {
        return {*core_, keys, std::move(take), deadline};
    }

    /// Takes one answer that is there, and resumes the task that waits for nothing else: for a
    /// program that looks by itself. `ok`; `empty`; `closed`, `peer_lost`: nothing more comes.
    base::Status poll();
    /// Connects anew, waiting: as Client::reconnect. By itself it does not.
    base::Status reconnect(const base::Deadline& deadline);
    /// As Client::close: when that has come to its end, tasks that wait are resumed; those that
    /// have not sent all they were to send at once.
    base::Status close(const base::Deadline& deadline);
    /// Beneath: for its stats and explanation, and for calls one at a time, which wait. Answers to
    /// what is submitted there are dropped.
    [[nodiscard]] Client& client() noexcept;

  private:
    struct Nothing {
        void operator()(std::span<const std::byte>) const noexcept {}
    };
    std::shared_ptr<detail::AsyncCore> core_;
};

}  // namespace millrace::kv
