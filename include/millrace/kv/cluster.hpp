// Several key-value servers as one: each key lies on one of them, which the client chooses by
// consistent hashing (ketama.hpp). Servers know nothing of each other. One that dies costs its
// keys and nothing else: calls for them end with Code::unanswered until it is back, and all others
// go on. No key goes to another server meanwhile, so that none has two values.
//
//     auto cluster = kv::Cluster::connect({"10.0.0.1:7400", "10.0.0.2:7400"}, {}, deadline);
//     kv::Result result = cluster.set(kv::bytes("name"), kv::bytes("value"), deadline);
//
// Where memcached's clients share the servers, name each as these do:
//
//     kv::ClusterServer server{.address = "10.0.0.1:7400", .name = "10.0.0.1:11211"};
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/ketama.hpp"

namespace millrace::kv {

struct ClusterServer {
    connect::Address address;
    /// What its points come from; empty: the address as text.
    std::string name{};
};

struct ClusterOptions {
    /// Of the client of each server.
    message::ClientOptions client{};
    /// A server that is away is looked for again after so long, by the next call that needs it.
    std::chrono::nanoseconds retry_period = std::chrono::seconds{2};
    /// How long that call, or connect(), waits for it at most.
    std::chrono::nanoseconds connect_patience = std::chrono::milliseconds{100};
};

/// What is known of a server.
struct ClusterHealth {
    bool is_up = false;
    std::string failure{};          ///< why it is away; empty: it is not
    std::uint64_t connected = 0;    ///< times
    std::uint64_t lost = 0;         ///< times
    std::uint64_t calls = 0;        ///< that it was asked for
    std::uint64_t turned_away = 0;  ///< of these, while it was away: it was not asked
};

/// Move-only; one thread at a time, as Client.
class Cluster {
  public:
    /// Servers that cannot be reached are away, but for all of them: then it throws Error as
    /// Client::connect, of the last one. invalid_argument: names as for Ketama, or times below 0.
    /// The order of servers means nothing, their names everything.
    [[nodiscard]] static Cluster connect(std::vector<ClusterServer> servers, ClusterOptions options,
                                         const base::Deadline& deadline);
    [[nodiscard]] static Cluster connect(std::initializer_list<std::string_view> addresses,
                                         ClusterOptions options, const base::Deadline& deadline);
    Cluster(Cluster&&) noexcept;
    Cluster& operator=(Cluster&&) noexcept;
    ~Cluster();

    // --- one key: as of Client. Of a server that is away: Code::unanswered, and Outcome::peer_lost
    // at once.

    template <class Take>
    Result get(std::span<const std::byte> key, Take&& take, const base::Deadline& deadline) {
        return ask(server_of(key), deadline, [&](Client& client) {
            return client.get(key, std::forward<Take>(take), deadline);
        });
    }
    /// Replaces `value` by it.
    Result get(std::span<const std::byte> key, std::vector<std::byte>& value,
               const base::Deadline& deadline);
    Result set(std::span<const std::byte> key, std::span<const std::byte> value,
               const base::Deadline& deadline, const SetOptions& options = {});
    Result erase(std::span<const std::byte> key, const base::Deadline& deadline,
                 std::optional<Version> if_version = {});
    Result exists(std::span<const std::byte> key, const base::Deadline& deadline);

    // --- many keys

    /// As Client::multi_get, from all servers at once: `take(index, const Result&,
    /// std::span<const std::byte> value)` is called once for each key, also for those of servers
    /// that are away. `ok`; otherwise the deadline passed, or it was cancelled, and those that were
    /// not handed out have no answer. Whatever ends it, a `take` that throws too, it leaves
    /// nothing. Answers to requests that were submitted by ask() before are lost.
    base::Status multi_get(std::span<const std::span<const std::byte>> keys, TakeOne take,
                           const base::Deadline& deadline);

    // --- one server, by its place in the list

    [[nodiscard]] std::size_t servers() const noexcept;
    [[nodiscard]] std::size_t server_of(std::span<const std::byte> key) const noexcept;
    [[nodiscard]] const ClusterServer& server(std::size_t which) const;
    [[nodiscard]] ClusterHealth health(std::size_t which) const;
    /// Anything of Client, of one server: `call(Client&)` returns a Result. As the calls above.
    template <std::invocable<Client&> Call>
    Result ask(std::size_t which, const base::Deadline& deadline, Call&& call) {
        Client* const client = reach(which, deadline);
        if (client == nullptr) {
            return {.code = Code::unanswered, .outcome = message::Outcome::peer_lost};
        }
        const Result result = std::forward<Call>(call)(*client);
        if (result.code == Code::unanswered) [[unlikely]]
            note(which, result.outcome);
        return result;
    }
    /// Ends all sessions in good order. The worst status of all.
    base::Status close(const base::Deadline& deadline);

  private:
    struct State;
    class Gathering;
    explicit Cluster(std::unique_ptr<State> state) noexcept;
    /// Its client; null: it is away.
    Client* reach(std::size_t which, const base::Deadline& deadline);
    /// The same without a look whether it is back.
    Client* reach_up(std::size_t which) noexcept;
    /// A call to it ended without an answer.
    void note(std::size_t which, message::Outcome outcome);

    std::unique_ptr<State> state_;
};

}  // namespace millrace::kv
