// What the tests of typed calls share: procedures, and a server of them in a thread of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/message/session.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/server.hpp"
#include "support/served.hpp"

namespace millrace::rpc {

/// Generous: it only ends what has failed.
inline base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{40}); }

/// Looks again and again; false after a time that is only for what has failed.
inline bool comes_true(const std::function<bool()>& condition) {
    const auto deadline = patience();
    while (!condition()) {
        if (deadline.expired()) return false;
        std::this_thread::sleep_for(std::chrono::microseconds{100});
    }
    return true;
}

inline connect::Address unique_address() {
    static std::atomic<int> number{0};
    return connect::Address::parse("unix:@millrace-rpc-test-" + std::to_string(getpid()) + "-" +
                                   std::to_string(++number));
}

struct Pair {
    std::uint64_t one = 0;
    std::uint64_t other = 0;
};
struct Sum {
    std::uint64_t sum = 0;
    std::uint64_t who = 0;  ///< of the pair, to tell answers apart
};
struct Add {
    static constexpr std::string_view name = "add";
    using Request = Pair;
    using Response = Sum;
    static constexpr bool is_idempotent = true;
};
/// The same bytes.
struct Echo {
    static constexpr std::string_view name = "echo";
    using Request = std::span<const std::byte>;
    using Response = std::span<const std::byte>;
};
/// Throws, or says an error, as it is asked to.
struct Break {
    static constexpr std::string_view name = "break";
    using Request = std::string_view;
    using Response = std::string;
};
struct Nothing {};
struct Ping {
    static constexpr std::string_view name = "ping";
    using Request = Nothing;
    using Response = Nothing;
};

inline Sum sum_of(const Pair& pair) { return {pair.one + pair.other, pair.one}; }

inline std::string break_it(std::string_view how) {
    if (how == "throw") throw std::runtime_error{"it was asked to throw"};
    if (how == "throw a number") throw 7;
    if (how == "fail") {
        throw Failure{{.number = 42, .text = "no such thing", .detail = {std::byte{1}}}};
    }
    return std::string{how};
}

inline void add_procedures(Server& server) {
    server.handle<Add>(sum_of);
    server.handle<Echo>([](std::span<const std::byte> bytes) { return bytes; });
    server.handle<Break>(break_it);
    server.handle<Ping>([](Nothing) { return Nothing{}; });
}

/// A server that a thread serves until it is stopped.
class Running {
  public:
    explicit Running(ServerOptions options = {},
                     const std::function<void(Server&)>& prepare = add_procedures,
                     const connect::Address& address = unique_address())
        : server{Server::listen(address, std::move(options))},
          thread_{prepared(prepare),
                  [](Server& its) { return its.serve(base::Deadline::never()); }} {}
    /// From here on the server is the calling thread's.
    void stop() { thread_.stop(); }
    template <Procedure... P>
    [[nodiscard]] Client connect(ClientOptions options = {}) {
        return Client::connect<P...>(server.address(), std::move(options), patience());
    }

    Server server;

  private:
    [[nodiscard]] Server& prepared(const std::function<void(Server&)>& prepare) {
        prepare(server);
        return server;
    }

    test::ServingThread<Server> thread_;
};

/// Breaks the connections that a listener of this process has accepted at `address`, as a network
/// would. How many.
inline int break_connections(std::string_view address) {
    int broken = 0;
    for (int descriptor = 3; descriptor < 256; ++descriptor) {
        int listens = 0;
        socklen_t length = sizeof listens;
        if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) continue;
        sockaddr_un name{};
        length = sizeof name;
        if (listens != 0 ||
            getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &length) != 0 ||
            name.sun_family != AF_UNIX || length <= sizeof(sa_family_t) + 1) {
            continue;
        }
        const std::string_view path{name.sun_path + 1, length - sizeof(sa_family_t) - 1};
        if (!address.ends_with(path)) continue;
        if (shutdown(descriptor, SHUT_RDWR) == 0) ++broken;
    }
    return broken;
}

/// A dispatcher that a thread runs until it is stopped.
class Dispatching {
  public:
    explicit Dispatching(const DispatcherOptions& options = {})
        : dispatcher{std::make_shared<Dispatcher>(options)},
          thread_{*dispatcher, [](Dispatcher& its) { return its.run(base::Deadline::never()); }} {}
    /// From here on the dispatcher is the calling thread's.
    void stop() { thread_.stop(); }

    std::shared_ptr<Dispatcher> dispatcher;

  private:
    test::ServingThread<Dispatcher> thread_;
};

/// What becomes of a session when its server ends, or whose it is.
class OfEachSession : public testing::TestWithParam<const char*> {
  protected:
    [[nodiscard]] ClientOptions options() {
        ClientOptions options;
        const std::string name = GetParam();
        options.messages.resumes = name == "resumes";
        if (name == "shared") {
            dispatching_.emplace();
            options.design = Design{.connection = Connection::dispatcher};
            options.dispatcher = dispatching_->dispatcher;
        }
        return options;
    }

  private:
    std::optional<Dispatching> dispatching_;
};
inline const auto every_session = testing::Values("ends", "resumes", "shared");

/// How requests are found, what carries them, and how both directions travel.
struct Way {
    message::Polling polling = message::Polling::automatic;
    ring::Carrier carrier = ring::Carrier::automatic;
    Design design{};
    connect::Transport transport = connect::Transport::rc;
    std::uint32_t threads = 1;  ///< of the server
    message::Receives receives = message::Receives::own;
};
inline ServerOptions server_options_of(const Way& way) {
    ServerOptions options;
    options.messages.polling = way.polling;
    options.messages.tuning.carrier = way.carrier;
    options.messages.transports = way.transport;
    options.messages.tuning.receives = way.receives;
    if (way.receives == message::Receives::shared || way.transport == connect::Transport::ud) {
        options.messages.protection = message::Protection::trusted;  // all clients share them
    }
    options.threads.count = way.threads;
    return options;
}
/// `dispatching`: made for a way that needs one.
inline ClientOptions client_options_of(const Way& way, std::optional<Dispatching>& dispatching) {
    ClientOptions options;
    if (way.design.connection == Connection::dispatcher) {
        if (!dispatching.has_value()) dispatching.emplace();
        options.dispatcher = dispatching->dispatcher;
    }
    options.messages.tuning.carrier = way.carrier;
    options.design = way.design;
    options.messages.transport = way.transport;
    return options;
}

class Calls : public testing::TestWithParam<Way> {
  protected:
    static ServerOptions server_options() { return server_options_of(GetParam()); }
    ClientOptions client_options() { return client_options_of(GetParam(), dispatching_); }

  private:
    std::optional<Dispatching> dispatching_;
};
inline std::string name_of_way(const testing::TestParamInfo<Way>& each) {
    const Way& way = each.param;
    const std::string by = way.threads == 1 ? "" : fmt::format("_{}_threads", way.threads);
    if (way.transport != connect::Transport::rc) return std::string{name_of(way.transport)} + by;
    std::string design = way.design == Design{} ? "" : "_" + to_string(way.design);
    std::replace(design.begin(), design.end(), '/', '_');
    const std::string receives = way.receives == message::Receives::shared ? "_shared" : "";
    return std::string{name_of(way.polling)} + "_" + std::string{ring::name_of(way.carrier)} +
           design + receives + by;
}
/// Every design, and what else changes how calls travel. By store where the device has that;
/// MILLRACE_CARRIER=post, under which CTest runs them once more, makes requests of all.
inline auto all_ways() {
    using message::Polling, message::Receives, ring::Carrier;
    const auto by = [](Transfer request, Transfer response, Connection connection) {
        return Design{request, response, connection};
    };
    constexpr auto write = Transfer::write;
    constexpr auto send = Transfer::send;
    constexpr auto own = Connection::own;
    constexpr auto shared = Connection::dispatcher;
    return testing::Values(
        Way{Polling::flag}, Way{Polling::dense, Carrier::post},
        Way{.polling = Polling::dense, .design = by(write, send, own)},
        Way{.polling = Polling::flag, .design = by(send, write, own)},
        Way{.polling = Polling::flag, .design = by(send, send, own)},
        Way{.polling = Polling::flag, .design = by(write, write, shared)},
        Way{.polling = Polling::flag, .design = by(write, send, shared)},
        Way{.polling = Polling::dense, .design = by(send, write, shared)},
        Way{.polling = Polling::dense, .design = by(send, send, shared)},
        // The receives of all clients in one queue.
        Way{.polling = Polling::dense, .design = by(send, send, own), .receives = Receives::shared},
        Way{.polling = Polling::flag,
            .design = by(send, write, shared),
            .receives = Receives::shared},
        Way{.transport = connect::Transport::uc}, Way{.transport = connect::Transport::ud},
        Way{.transport = connect::Transport::tcp}, Way{.threads = 3},
        Way{.transport = connect::Transport::tcp, .threads = 2});
}

}  // namespace millrace::rpc
