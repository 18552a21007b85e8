// The state of a server of typed calls. Used by server.cpp, which answers requests, and by
// replies.cpp, whose threads may be any.
//
//   Desk             one of the server's threads, with the clients of its message::Server
//   ProcedureState   its desk's thread, but for its Deferred, which all desks share; what is
//   counted
//                    is counted by that thread, and read by any
//   ClientState      its desk's thread, but for its calls
//   Deferred, Calls  any thread; they outlive the server as long as a Reply has them
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lateness.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/rpc/server.hpp"

namespace millrace::rpc {
namespace detail {

/// What is counted of a procedure's deferred calls.
class Deferred {
  public:
    std::atomic<std::uint32_t> pending{0};
    std::atomic<std::uint64_t> answered{0};
    std::atomic<std::uint64_t> failed{0};
    std::atomic<std::uint64_t> unwanted{0};

    void record(std::uint64_t ticks) {
        const std::lock_guard guard{mutex_};
        latency_.record(ticks);
    }
    void add_to(base::Histogram& all) const {
        const std::lock_guard guard{mutex_};
        all.add(latency_);
    }

  private:
    mutable std::mutex mutex_;  ///< of latency_
    base::Histogram latency_;
};

/// The deferred calls of one client, by the numbers of its requests.
class Calls {
  public:
    [[nodiscard]] std::size_t count() const {
        const std::lock_guard guard{mutex_};
        return pending_.size();
    }
    void insert(std::uint64_t id, Pending* pending) {
        const std::lock_guard guard{mutex_};
        pending_[id] = pending;
    }
    void erase(std::uint64_t id) {
        const std::lock_guard guard{mutex_};
        pending_.erase(id);
    }
    /// The client does not want it any more.
    void give_up(std::uint64_t id);

  private:
    mutable std::mutex mutex_;  ///< of pending_
    std::unordered_map<std::uint64_t, Pending*> pending_;
};

/// A call whose answer was deferred.
struct Pending {
    std::shared_ptr<Deferred> procedure;
    std::shared_ptr<Calls> client;
    std::uint64_t id = 0;
    std::uint64_t began = 0;  ///< base::ticks(); 0: it is not timed
    base::Deadline deadline = base::Deadline::never();
    std::optional<Trace> trace{};
    std::atomic<bool> is_unwanted{false};
};

/// Its answer is given, or never will be.
void settle(std::shared_ptr<Pending> pending, bool answered) noexcept;

/// By the thread whose count it is; any other one may read it.
inline void count(std::uint64_t& of) noexcept { base::Counter{&of}.add(); }
[[nodiscard]] inline std::uint64_t counted(std::uint64_t& of) noexcept {
    return base::Counter{&of}.value();
}

/// A procedure at one desk.
struct ProcedureState {
    Signature signature;
    ProcedureOptions options;
    std::shared_ptr<Handler> handler;            ///< of all desks, or of this one
    std::shared_ptr<message::HeldBytes> held{};  ///< by the server, of which parts of streams are
    std::uint64_t calls = 0;
    std::uint64_t answered = 0;
    std::uint64_t failed = 0;
    std::uint64_t late = 0;
    std::uint64_t overloaded = 0;
    base::Histogram latency;             ///< in ticks, as that of `deferred`
    std::shared_ptr<Deferred> deferred;  ///< of all desks
    bool has_limits = false;             ///< for what is deferred
};

/// A power of two, as its place is found for every call.
struct alignas(128) ClientState {
    std::uint32_t generation = 0;
    bool knows_table = false;
    Lateness lateness;
    std::shared_ptr<Calls> calls;  ///< null: none was deferred yet
    /// By the number that the client gave.
    std::unordered_map<std::uint64_t, std::shared_ptr<StreamState>> streams;
};

/// When the call with this number of a procedure began; 0: it is not timed. The first ones are, and
/// then each eighth, whatever becomes of it: two looks at the clock and what follows from them
/// would be a fifth of a short call.
[[nodiscard]] inline std::uint64_t begin_of(std::uint64_t number) noexcept {
    constexpr std::uint64_t first_ones = 64;
    return number < first_ones || number % 8 == 0 ? base::ticks() : 0;
}
/// The counters of two cores may differ by a little.
[[nodiscard]] inline std::uint64_t ticks_since(std::uint64_t began) noexcept {
    const auto ticks = static_cast<std::int64_t>(base::ticks() - began);
    return ticks > 0 ? static_cast<std::uint64_t>(ticks) : 0;
}
[[nodiscard]] inline std::uint64_t nanoseconds_now() noexcept {
    return static_cast<std::uint64_t>(base::Clock::now().time_since_epoch().count());
}

}  // namespace detail

/// One thread of a server.
class Desk {
  public:
    explicit Desk(Server::State& server) noexcept : server_{&server} {}
    /// Hears of clients that leave.
    void attach(message::Server& messages);

    /// The message server's handler.
    void operator()(message::Request& request);

    std::vector<std::unique_ptr<detail::ProcedureState>> procedures;  ///< by number
    ServerStats counts;                                               ///< but for `messages`

  private:
    [[gnu::always_inline]] void call(message::Request& request, detail::ProcedureState& procedure,
                                     detail::ClientState& client, const Head& head,
                                     std::span<const std::byte> payload, std::uint64_t began);
    void pull(message::Request& request, detail::ClientState& client,
              std::span<const std::byte> payload);
    void answer_own(message::Request& request, detail::ClientState& client, const Head& head,
                    std::span<const std::byte> payload);
    /// Whatever is not a call without a head of a client that has the table.
    [[gnu::noinline]] void take_any(message::Request& request);
    void take(message::Request& request, std::uint16_t number, const Head& head,
              std::span<const std::byte> payload);
    [[gnu::cold]] static void fail_by_exception(detail::CallCore& core);
    [[nodiscard]] detail::ClientState& client_of(message::ClientId id) {
        if (id.place < clients_.size()) [[likely]] {
            detail::ClientState& client = clients_[id.place];
            if (client.generation == id.generation) [[likely]]
                return client;
        }
        return greet(id);
    }
    /// Another client than before in this place.
    [[nodiscard]] detail::ClientState& greet(message::ClientId id);
    [[nodiscard]] bool is_too_much(const detail::ProcedureState& procedure,
                                   const detail::ClientState& client, Priority priority) const;

    Server::State* server_;
    std::vector<detail::ClientState> clients_;  ///< by place
};

struct Server::State {
    State(message::ServerGroup listening, const ServerOptions& chosen);

    /// Any thread.
    [[nodiscard]] std::vector<ProcedureReport> reports() const;
    /// The one server of messages. Throws Error (invalid_argument): there are several.
    [[nodiscard]] message::Server& only(const char* attempted);

    ServerOptions options;
    std::vector<std::unique_ptr<Desk>> desks;  ///< by thread
    message::ServerGroup messages;
};

}  // namespace millrace::rpc
