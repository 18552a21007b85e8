// The server's side of typed calls: procedures of a program, over the sessions of message::Server.
//
//     auto server = rpc::Server::listen(connect::Address::parse(":7000"));
//     server.handle<Get>([&](const Key& key) -> rpc::Result<Value> { return find(key); });
//     (void)server.serve(deadline);
//
// A handler gets the request, and answers by what it returns: a Response, a Result<Response> or an
// Error. What it throws goes to the client as an Error, too. One that wants more takes the Call as
// its second argument: which client asks, until when, with which trace; it may answer in place, or
// later from any thread by the Reply that Call::defer() gives.
//
//     server.handle<Search>([&](const Query& query, rpc::Call<Search>& call) {
//         jobs.add([query, reply = call.defer()]() mutable { (void)reply.answer(find(query)); });
//     });
//
// Every call has one answer: sessions see to that (message/session.hpp), and to the rest of what
// connects the two. docs/rpc.md says what to choose.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/server_group.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/result.hpp"
#include "millrace/rpc/stream.hpp"
#include "millrace/rpc/table.hpp"

namespace millrace::rpc {

struct ServerOptions {
    /// Of the sessions beneath: clients, rings, windows, the longest request. `service` is ours to
    /// say; `protocol` is the program's.
    message::ServerOptions messages{};
    /// Those that serve. Where there are several, each has clients of its own
    /// (message::ServerGroup), and handlers are called by all of them.
    message::ServerThreads threads{};
    /// Deferred calls of one client at a time; one more is `overloaded`. 0: as many as its window.
    std::uint32_t max_pending_of_client = 0;
};

struct ProcedureOptions {
    /// Deferred calls of this procedure at a time; one more is `overloaded`, and one of
    /// Priority::low beyond the half. 0: as many as ServerOptions allow.
    std::uint32_t max_pending = 0;
    /// Parts of one stream that wait for its reader. What a sink writes beyond is `full`.
    std::uint32_t max_parts = 64;
};

/// Counted since the server was made, in addition to what message::ServerStats count.
struct ServerStats {
    message::ServerStats messages{};
    std::uint64_t late = 0;        ///< not handed to a handler: the deadline had passed
    std::uint64_t overloaded = 0;  ///< not handed to one: too much was under way
    std::uint64_t unknown = 0;     ///< of procedures that are not here
    std::uint64_t malformed = 0;   ///< that could not be read
    std::uint64_t stale = 0;       ///< of clients that had not asked for the table
};

namespace detail {

struct ProcedureState;
struct ClientState;
struct Pending;

/// A request on its way through a handler. For the time of that call.
class CallCore {
  public:
    CallCore(message::Request& request, ProcedureState& procedure, ClientState& client,
             const Head& head, const base::Deadline& deadline, std::uint64_t began) noexcept
        : request_{&request},
          procedure_{&procedure},
          client_{&client},
          head_{&head},
          deadline_{deadline},
          began_{began} {}
    CallCore(const CallCore&) = delete;
    CallCore& operator=(const CallCore&) = delete;

    enum class End : std::uint8_t { none, answered, failed, deferred };
    [[nodiscard]] End end() const noexcept { return end_; }
    [[nodiscard]] message::ClientId client() const noexcept { return request_->client(); }
    [[nodiscard]] const base::Deadline& deadline() const noexcept { return deadline_; }
    [[nodiscard]] const Head& head() const noexcept { return *head_; }

    template <class Fill>
    base::Status answer(std::size_t size, Fill&& fill) {
        if (end_ != End::none) return base::Status::closed;
        return ended(request_->answer(size, std::forward<Fill>(fill)));
    }
    template <Carried T>
    base::Status answer(const T& value) {
        if constexpr (lies_as_bytes<T>) {
            if (end_ != End::none) return base::Status::closed;
            return ended(request_->answer(bytes_of(value)));
        }
        const Writer<T> writer{value};
        return answer(writer.size(), [&](std::span<std::byte> room) { writer.write(room.data()); });
    }
    base::Status fail(const Error& error);
    /// The request's Reply, and what is known of the call; a Reply that is not due, if it is
    /// answered or deferred already.
    [[nodiscard]] message::Reply defer(std::shared_ptr<Pending>& pending);
    /// It is answered by a stream.
    [[nodiscard]] std::shared_ptr<StreamState> open();

  private:
    base::Status ended(base::Status status) noexcept {
        end_ = status == base::Status::ok ? End::answered : End::failed;
        return status;
    }

    message::Request* request_;
    ProcedureState* procedure_;
    ClientState* client_;
    const Head* head_;
    base::Deadline deadline_;
    std::uint64_t began_;
    End end_ = End::none;
};

/// The deferred half of a call, without its type. See Reply.
class ReplyCore {
  public:
    ReplyCore() noexcept = default;
    explicit ReplyCore(CallCore& call) : reply_{call.defer(pending_)} {}
    ReplyCore(ReplyCore&&) noexcept = default;
    ReplyCore& operator=(ReplyCore&& other) noexcept;
    ReplyCore(const ReplyCore&) = delete;
    ReplyCore& operator=(const ReplyCore&) = delete;
    ~ReplyCore();

    [[nodiscard]] bool is_due() const noexcept { return reply_.is_due(); }
    [[nodiscard]] bool is_wanted() const noexcept;
    [[nodiscard]] message::ClientId client() const noexcept { return reply_.client(); }
    [[nodiscard]] base::Deadline deadline() const noexcept;
    [[nodiscard]] std::optional<Trace> trace() const noexcept;
    base::Status answer(std::span<const std::byte> payload);
    base::Status fail(const Error& error);

  private:
    void settle(bool answered) noexcept;

    std::shared_ptr<Pending> pending_{};  // before reply_, which is made with it
    message::Reply reply_{};
};

/// `give` gets the value as bytes.
template <Carried T, class Give>
auto as_bytes(const T& value, Give&& give) {
    const Writer<T> writer{value};
    std::array<std::byte, 512> small;
    if (writer.size() <= small.size()) {
        writer.write(small.data());
        return give(std::span<const std::byte>{small}.first(writer.size()));
    }
    std::vector<std::byte> large(writer.size());
    writer.write(large.data());
    return give(std::span<const std::byte>{large});
}

}  // namespace detail

/// The right, and the duty, to answer one call later. Move-only; any one thread at a time.
/// Destroyed without an answer, the client gets Code::dropped. May outlive the server.
template <Carried Response>
class Reply {
  public:
    Reply() noexcept = default;
    explicit Reply(detail::CallCore& call) : core_{call} {}

    [[nodiscard]] bool is_due() const noexcept { return core_.is_due(); }
    /// False: the client took the call back, or has left for good; work on it can end. It is due
    /// all the same.
    [[nodiscard]] bool is_wanted() const noexcept { return core_.is_wanted(); }
    [[nodiscard]] message::ClientId client() const noexcept { return core_.client(); }
    /// When the client stops waiting.
    [[nodiscard]] base::Deadline deadline() const noexcept { return core_.deadline(); }
    [[nodiscard]] std::optional<Trace> trace() const noexcept { return core_.trace(); }

    /// Never blocks. `ok`; `closed`: the server is gone, or it is answered already. An answer to a
    /// client that has left is dropped, and that is `ok`.
    base::Status answer(const Response& response) {
        return detail::as_bytes(
            response, [this](std::span<const std::byte> bytes) { return core_.answer(bytes); });
    }
    base::Status fail(const Error& error) { return core_.fail(error); }
    base::Status fail(std::string_view text) { return core_.fail({.text = std::string{text}}); }

  private:
    detail::ReplyCore core_;
};

/// A call in the hands of its handler, for the time of that.
template <UnaryProcedure P>
class Call {
  public:
    using Response = typename P::Response;

    explicit Call(detail::CallCore& core) noexcept : core_{&core} {}
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    [[nodiscard]] message::ClientId client() const noexcept { return core_->client(); }
    /// When the client stops waiting, with what the request lay unread taken off.
    [[nodiscard]] base::Deadline deadline() const noexcept { return core_->deadline(); }
    [[nodiscard]] std::optional<Trace> trace() const noexcept { return core_->head().trace; }
    [[nodiscard]] Priority priority() const noexcept { return core_->head().priority; }

    /// Once for each call: `ok`; `too_large`, the client takes no answer of that length, and is
    /// told that; `closed`: it is answered, or deferred, already, or the client has left.
    base::Status answer(const Response& response) { return core_->answer(response); }
    /// As answer(), of `size` bytes that `fill(std::span<std::byte>)` writes in place, where the
    /// client reads them; see message::Request::answer.
    template <class Fill>
        requires Bytes<Response>
    base::Status answer(std::size_t size, Fill&& fill) {
        return core_->answer(size, std::forward<Fill>(fill));
    }
    base::Status fail(const Error& error) { return core_->fail(error); }
    base::Status fail(std::string_view text) { return core_->fail({.text = std::string{text}}); }
    /// The answer comes later. The request, if it is a view, is the handler's only until it
    /// returns.
    [[nodiscard]] Reply<Response> defer() { return Reply<Response>{*core_}; }

  private:
    detail::CallCore* core_;
};

namespace detail {

/// A handler without its types.
class Handler {
  public:
    virtual ~Handler() = default;
    /// Throws what the handler throws. False: the payload cannot be read as a request.
    [[nodiscard]] virtual bool call(CallCore& call, std::span<const std::byte> payload) = 0;
};

template <class T>
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<Result<T>> = true;

/// False, too, where a codec throws.
template <Carried T>
[[nodiscard]] bool reads(std::span<const std::byte> payload, T& into) noexcept {
    try {
        return read(payload, into);
    } catch (const std::exception&) {
        return false;
    }
}

template <UnaryProcedure P, class Function>
class UnaryHandler final : public Handler {
  public:
    using Request = typename P::Request;
    using Response = typename P::Response;
    static constexpr bool takes_call = std::is_invocable_v<Function&, Request&&, Call<P>&>;
    static_assert(takes_call || std::is_invocable_v<Function&, Request&&>,
                  "a handler takes the request, and rpc::Call<P>& if it wants");

    explicit UnaryHandler(Function function) : function_{std::move(function)} {}
    [[nodiscard]] bool call(CallCore& core, std::span<const std::byte> payload) override {
        if constexpr (Plain<Request>) {
            if (payload.size() >= sizeof(Request)) [[likely]] {
                invoke(core, whole<Request>(payload));
                return true;
            }
        }
        Request request{};
        if (!reads(payload, request)) return false;
        invoke(core, std::move(request));
        return true;
    }

  private:
    void invoke(CallCore& core, Request&& request) {
        if constexpr (takes_call) {
            Call<P> typed{core};
            if constexpr (std::is_void_v<std::invoke_result_t<Function&, Request&&, Call<P>&>>) {
                std::invoke(function_, std::move(request), typed);
            } else {
                give(core, std::invoke(function_, std::move(request), typed));
            }
        } else {
            give(core, std::invoke(function_, std::move(request)));
        }
    }
    template <class Given>
    static void give(CallCore& core, const Given& given) {
        if constexpr (is_result<Given>) {
            if (given.ok()) {
                (void)core.answer<Response>(*given);
            } else {
                (void)core.fail(given.error());
            }
        } else if constexpr (std::is_same_v<Given, Error>) {
            (void)core.fail(given);
        } else {
            (void)core.answer<Response>(given);
        }
    }
    Function function_;
};

template <StreamProcedure P, class Function>
class StreamHandler final : public Handler {
  public:
    using Request = typename P::Request;
    static_assert(std::is_invocable_v<Function&, Request&&, Sink<typename P::Part>>,
                  "a handler of a stream takes the request and an rpc::Sink<Part>");

    explicit StreamHandler(Function function) : function_{std::move(function)} {}
    [[nodiscard]] bool call(CallCore& core, std::span<const std::byte> payload) override {
        Request request{};
        if (!reads(payload, request)) return false;
        std::invoke(function_, std::move(request), Sink<typename P::Part>{core.open()});
        return true;
    }

  private:
    Function function_;
};

}  // namespace detail

/// Belongs to the thread that made it, or to the one that called adopt() since, as message::Server,
/// whose calls these are, or message::ServerGroup if it has several threads.
class Server {
  public:
    /// Throws Error as message::Server::listen.
    [[nodiscard]] static Server listen(const connect::Address& address, ServerOptions options = {});
    Server(Server&&) noexcept;
    Server& operator=(Server&&) noexcept;
    ~Server();

    [[nodiscard]] const connect::Address& address() const noexcept;

    /// Answers calls of P by `function`, from the next turn on. All threads of the server call it,
    /// so that it must be thread-safe where there are several. Clients that connected before find
    /// it by Client::use. Throws Error (invalid_argument): there is one of this name already, or
    /// the name is empty, or of more than 1,024 bytes; or there are 4,096.
    template <UnaryProcedure P, class Function>
    void handle(Function function, const ProcedureOptions& options = {}) {
        add(detail::signature_of<P>(), {handler_of<P>(std::move(function))}, options);
    }

    /// As handle(), of a procedure that answers by a stream: `function(Request, Sink<Part>)`.
    template <StreamProcedure P, class Function>
    void handle(Function function, const ProcedureOptions& options = {}) {
        add(detail::signature_of<P>(), {handler_of<P>(std::move(function))}, options);
    }

    /// The same by a function for each thread, which no other calls: `make(std::size_t thread)`
    /// returns it.
    template <class P, class Make>
    void handle_each(Make&& make, const ProcedureOptions& options = {}) {
        std::vector<std::shared_ptr<detail::Handler>> handlers;
        for (std::size_t thread = 0; thread < threads(); ++thread) {
            handlers.push_back(handler_of<P>(make(thread)));
        }
        add(detail::signature_of<P>(), std::move(handlers), options);
    }

    [[nodiscard]] std::size_t threads() const noexcept;

    /// As those of message::Server. turn(), rest() and descriptor() are for a server of one thread:
    /// they throw Error (invalid_argument) otherwise.
    std::size_t turn(std::size_t budget = 1024);
    base::Status rest(const base::Deadline& deadline);
    base::Status serve(const base::Deadline& deadline);
    void stop() noexcept;
    base::Status drain(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    void adopt() noexcept;
    [[nodiscard]] int descriptor();

    /// Any thread, and procedures().
    [[nodiscard]] ServerStats stats() const noexcept;
    /// The procedures, in the order of their numbers, with what was counted.
    [[nodiscard]] std::vector<ProcedureReport> procedures() const;
    /// What was chosen and why: the sessions, the procedures, their limits.
    [[nodiscard]] std::string explain() const;

    struct State;  ///< private to rpc/

  private:
    template <class P, class Function>
    static std::shared_ptr<detail::Handler> handler_of(Function function) {
        if constexpr (UnaryProcedure<P>) {
            return std::make_shared<detail::UnaryHandler<P, Function>>(std::move(function));
        } else {
            return std::make_shared<detail::StreamHandler<P, Function>>(std::move(function));
        }
    }
    /// `handlers`: one for all threads, or one for each.
    void add(Signature signature, std::vector<std::shared_ptr<detail::Handler>> handlers,
             const ProcedureOptions& options);

    explicit Server(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::rpc
