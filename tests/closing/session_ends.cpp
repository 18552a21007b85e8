// Clients and servers: of messages, of typed calls, of the store. What a client sends are requests,
// and what a server sends are answers. Sessions resume, so that a server tells one whose client has
// closed (it has left) from one whose client was lost (it is away).
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ends.hpp"
#include "millrace/base/coroutine.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/coroutine.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/message/server.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/coroutine.hpp"
#include "millrace/rpc/dispatcher.hpp"
#include "millrace/rpc/server.hpp"

namespace millrace::closing {
namespace {

using connect::Transport;
using namespace std::chrono_literals;

std::span<const std::byte> bytes_of(const Number& number) {
    return std::as_bytes(std::span{&number, 1});
}
Number number_in(std::span<const std::byte> bytes) {
    Number number = 0;
    std::memcpy(&number, bytes.data(), sizeof number);
    return number;
}

/// A ring that a few requests fill.
message::ServerOptions narrow(Carrier carrier, Transport transport) {
    message::ServerOptions options;
    options.ring_bytes = 4096;
    options.transports = transport;
    if (transport == Transport::rc) options.tuning.carrier = carrier;
    return options;
}
/// A window that is wider than that ring.
message::ClientOptions eager(Carrier carrier, Transport transport) {
    message::ClientOptions options;
    options.transport = transport;
    options.window = 1024;
    options.resumes = true;
    if (transport == Transport::rc) options.tuning.carrier = carrier;
    return options;
}

/// What `connect()` makes, which waits for a server that `turn()` serves.
template <class Connect, class Turn>
auto joined(Connect&& connect, Turn&& turn) {
    auto joining = std::async(std::launch::async, connect);
    while (joining.wait_for(0s) != std::future_status::ready) turn();
    return joining.get();
}

Status end_of_session(const message::ServerStats& stats) {
    if (stats.left != 0) return Status::closed;
    return stats.away != 0 ? Status::peer_lost : Status::empty;
}

/// Of a client that closes: `talk` has it as `client`, its `server`, what that has `taken`, turn()
/// and stats().
template <class Talk>
Pair of_client(const std::shared_ptr<Talk>& talk) {
    return {.send = [talk](Number number) { return talk->send(number); },
            .receive =
                [talk](Number& number) {
                    if (talk->taken.empty()) talk->turn();
                    if (talk->taken.empty()) return end_of_session(talk->stats());
                    number = talk->taken.front();
                    talk->taken.pop_front();
                    return Status::ok;
                },
            .close = [talk](const Deadline& deadline) { return talk->client->close(deadline); },
            .drop = [talk] { talk->client.reset(); },
            .close_other = [talk] { EXPECT_EQ(talk->close_server(), Status::ok); },
            .drop_other = [talk] { talk->server.reset(); },
            // A server that closes takes what has come before.
            .if_left = Status::ok};
}

// ---- messages

struct Messages {
    static constexpr Number question = ~Number{0};

    Messages(Carrier carrier, Transport transport)
        : server{message::Server::listen(connect::Address::parse(fresh_address()),
                                         narrow(carrier, transport))},
          client{joined(
              [&] {
                  return message::Client::connect(server->address(), eager(carrier, transport),
                                                  soon());
              },
              [&] { turn(); })} {
        EXPECT_EQ(send(question), Status::ok);
        while (!answer.is_due()) {
            turn();
            (void)client->poll([](const message::Answer&) {});
        }
    }
    Status send(Number number) {
        std::uint64_t id = 0;
        return client->submit(bytes_of(number), id);
    }
    void turn() {
        (void)server->turn([this](message::Request& request) {
            const Number number = number_in(request.payload());
            if (number == question) {
                answer = request.defer();
            } else {
                taken.push_back(number);
                (void)request.answer({});
            }
        });
    }
    [[nodiscard]] message::ServerStats stats() const { return server->stats(); }
    Status close_server() {
        answer = {};  // what waits for it would hold that up
        return server->close(soon());
    }

    message::Reply answer;  ///< to the question, which is asked at first
    std::deque<Number> taken;
    std::optional<message::Server> server;
    std::optional<message::Client> client;
};

template <Transport transport>
Pair client(Carrier carrier) {
    const auto talk = std::make_shared<Messages>(carrier, transport);
    Pair pair = of_client(talk);
    pair.answer = [talk](Number number) {
        const Status status = talk->answer.answer(bytes_of(number));
        talk->turn();
        return status;
    };
    pair.hear = [talk](Number& number) {
        // The others are empty.
        bool has_heard = false;
        Status status = Status::ok;
        while (status == Status::ok && !has_heard) {
            status = talk->client->poll([&](const message::Answer& heard) {
                has_heard = !heard.payload.empty();
                if (has_heard) number = number_in(heard.payload);
            });
        }
        if (status == Status::empty) talk->turn();
        return status;
    };
    // What its socket had no room for waits at the client.
    if (transport == Transport::tcp) pair.if_left = Status::closed;
    // A packet is delivered when it is acknowledged.
    pair.is_fetched = transport == Transport::uc;
    return pair;
}

/// Of a dispatcher: `submit()` lays a request in a port, and a turn gives it to the connection.
/// What finds no room there stays in its port, and is not delivered.
template <class Dispatcher, class Submit>
Status send_by(Dispatcher& dispatcher, Submit&& submit) {
    const std::uint64_t before = dispatcher.stats().requests;
    const Status status = submit();
    if (status != Status::ok) return status;
    (void)dispatcher.turn();
    return dispatcher.stats().requests != before ? Status::ok : Status::full;
}

struct Dispatched {
    explicit Dispatched(Carrier carrier)
        : server{message::Server::listen(connect::Address::parse(fresh_address()),
                                         narrow(carrier, Transport::rc))},
          client{joined(
              [&] {
                  message::DispatcherOptions options;
                  options.client = of_dispatcher(carrier);
                  const std::array servers{server->address()};
                  return message::Dispatcher::connect(servers, options, soon());
              },
              [&] { turn(); })} {
        client->adopt();
        port.emplace(client->port({.window = 1024}));
    }
    static message::ClientOptions of_dispatcher(Carrier carrier) {
        message::ClientOptions options = eager(carrier, Transport::rc);
        options.resumes = false;
        return options;
    }
    Status send(Number number) {
        return send_by(*client, [&] {
            std::uint64_t id = 0;
            return port->submit(bytes_of(number), id);
        });
    }
    void turn() {
        (void)server->turn([this](message::Request& request) {
            taken.push_back(number_in(request.payload()));
            (void)request.answer({});
        });
    }
    [[nodiscard]] message::ServerStats stats() const { return server->stats(); }
    Status close_server() { return server->close(soon()); }

    std::deque<Number> taken;
    std::optional<message::Server> server;
    std::optional<message::Dispatcher> client;
    std::optional<message::Port> port;
};

/// Its session does not resume: a server says of both, the one that closed and the one that was
/// lost, that it has left.
Pair of_dispatcher(Pair pair) {
    pair.if_dropped = Status::closed;
    return pair;
}

Pair dispatcher(Carrier carrier) {
    return of_dispatcher(of_client(std::make_shared<Dispatched>(carrier)));
}

/// A server that closes. One client has asked many times, and another one asks while it closes.
struct Answers {
    /// Its ring has room for all of these if they are dropped, and for a few that are answered.
    static constexpr std::size_t asked = 16;
    using Long = std::array<std::uint64_t, 32>;

    explicit Answers(Carrier carrier) {
        message::ServerOptions options;
        options.ring_bytes = std::size_t{64} << 10;
        options.tuning.carrier = carrier;
        server.emplace(message::Server::listen(connect::Address::parse(fresh_address()), options));
        message::ClientOptions chosen;
        chosen.ring_bytes = 4096;
        chosen.window = asked;
        chosen.tuning.carrier = carrier;
        for (auto* const one : {&client, &other}) {
            one->emplace(
                joined([&] { return message::Client::connect(server->address(), chosen, soon()); },
                       [this] { turn(); }));
        }
        for (Number i = 0; i != asked; ++i) {
            std::uint64_t id = 0;
            EXPECT_EQ(client->submit(bytes_of(i), id), Status::ok);
        }
        while (replies.size() != asked) turn();
    }
    void turn() {
        (void)server->turn(
            [this](message::Request& request) { replies.push_back(request.defer()); });
    }
    Status send(Number number) {
        if (is_closing) return ask_while_it_closes();
        if (server->stats().kept_back != 0) return Status::full;
        const Long words{number};
        const Status status = replies.front().answer(std::as_bytes(std::span{words}));
        replies.pop_front();
        turn();
        return status;
    }
    /// `closed`: the request was declined, or the session has ended.
    Status ask_while_it_closes() {
        std::uint64_t id = 0;
        Status status = other->submit(bytes_of(0), id);
        std::optional<message::Outcome> outcome;
        const Deadline deadline = soon();
        while (!outcome && status != Status::closed && !deadline.expired()) {
            turn();
            status = other->poll([&](const message::Answer& answer) { outcome = answer.outcome; });
        }
        if (status == Status::closed) return status;
        return outcome == message::Outcome::draining ? Status::closed : Status::ok;
    }
    Status receive(Number& number) {
        bool is_answer = false;
        Status status = Status::ok;
        while (status == Status::ok && !is_answer) {
            status = client->poll([&](const message::Answer& answer) {
                is_answer = answer.outcome == message::Outcome::ok;
                if (is_answer) number = number_in(answer.payload);
            });
        }
        return status;
    }
    Status close(const Deadline& deadline) {
        is_closing = true;
        replies.clear();  // which drops what was not answered
        return server->close(deadline);
    }

    bool is_closing = false;
    std::deque<message::Reply> replies;
    std::optional<message::Server> server;
    std::optional<message::Client> client;
    std::optional<message::Client> other;
};

Pair server(Carrier carrier) {
    const auto talk = std::make_shared<Answers>(carrier);
    return {.send = [talk](Number number) { return talk->send(number); },
            .receive = [talk](Number& number) { return talk->receive(number); },
            .close = [talk](const Deadline& deadline) { return talk->close(deadline); },
            .drop = [talk] { talk->server.reset(); },
            .close_other = [talk] { EXPECT_EQ(talk->client->close(soon()), Status::ok); },
            .drop_other = [talk] { talk->client.reset(); },
            // Nothing is owed to a client that has left.
            .if_left = Status::ok,
            .if_lost = Status::ok};
}

// ---- typed calls

struct Put {
    static constexpr std::string_view name = "put";
    using Request = Number;
    using Response = Number;
};

struct Calls {
    explicit Calls(Carrier carrier)
        : server{rpc::Server::listen(connect::Address::parse(fresh_address()),
                                     {.messages = narrow(carrier, Transport::rc)})} {
        server->handle<Put>([this](const Number& number) {
            taken.push_back(number);
            return number;
        });
        rpc::ClientOptions options;
        options.design = rpc::Design{};
        options.messages = eager(carrier, Transport::rc);
        options.retry.attempts = 1;
        client.emplace(
            joined([&] { return rpc::Client::connect<Put>(server->address(), options, soon()); },
                   [&] { turn(); }));
        client->adopt();
    }
    Status send(Number number) {
        return client->submit<Put>(
            number, [](const rpc::Result<Number>&) {}, Deadline::never());
    }
    void turn() { (void)server->turn(); }
    [[nodiscard]] message::ServerStats stats() const { return server->stats().messages; }
    Status close_server() { return server->close(soon()); }

    std::deque<Number> taken;
    std::optional<rpc::Server> server;
    std::optional<rpc::Client> client;
};

Pair typed_client(Carrier carrier) { return of_client(std::make_shared<Calls>(carrier)); }

struct DispatchedCalls {
    explicit DispatchedCalls(Carrier carrier)
        : server{rpc::Server::listen(connect::Address::parse(fresh_address()),
                                     {.messages = narrow(carrier, Transport::rc)})},
          client{std::make_shared<rpc::Dispatcher>()} {
        server->handle<Put>([this](const Number& number) {
            taken.push_back(number);
            return number;
        });
        rpc::ClientOptions options;
        options.design = rpc::Design{.connection = rpc::Connection::dispatcher};
        options.dispatcher = client;
        options.messages = Dispatched::of_dispatcher(carrier);
        options.retry.attempts = 1;
        caller.emplace(
            joined([&] { return rpc::Client::connect<Put>(server->address(), options, soon()); },
                   [&] {
                       turn();
                       (void)client->turn();
                   }));
        caller->adopt();
        (void)client->turn();
    }
    Status send(Number number) {
        return send_by(*client, [&] {
            return caller->submit<Put>(
                number, [](const rpc::Result<Number>&) {}, Deadline::never());
        });
    }
    void turn() { (void)server->turn(); }
    [[nodiscard]] message::ServerStats stats() const { return server->stats().messages; }
    Status close_server() { return server->close(soon()); }

    std::deque<Number> taken;
    std::optional<rpc::Server> server;
    std::shared_ptr<rpc::Dispatcher> client;  ///< which the caller holds, too
    std::optional<rpc::Client> caller;
};

Pair typed_dispatcher(Carrier carrier) {
    const auto talk = std::make_shared<DispatchedCalls>(carrier);
    Pair pair = of_dispatcher(of_client(talk));
    pair.drop = [talk] {
        talk->caller.reset();
        talk->client.reset();
    };
    return pair;
}

/// What is sent is awaited, each by a task.
template <class Client>
struct Awaited {
    /// `task` says by end() how it is over.
    Status begin(base::Task<> task) {
        ended.reset();
        ++started;
        base::spawn(hub, std::move(task));
        (void)hub.turn();
        if (ended.has_value()) return *ended;
        // Else it is queued, as there is no room.
        return client->client().outstanding() == started - over ? Status::ok : Status::full;
    }
    void end(Status status) {
        ended = status;
        ++over;
    }

    connect::Hub hub;
    std::optional<Client> client;
    std::optional<Status> ended;  ///< how the last task was over, if it was at once
    std::size_t started = 0;
    std::size_t over = 0;
};

struct AwaitedCalls : Awaited<rpc::AsyncClient> {
    explicit AwaitedCalls(Carrier carrier) : calls{carrier} {
        client.emplace(hub, std::move(*calls.client));
    }
    base::Task<> call(Number number) {
        const auto result = co_await client->call<Put>(number, Deadline::never());
        end(result.code() == rpc::Code::not_sent ? Status::closed : Status::ok);
    }
    Status send(Number number) { return begin(call(number)); }
    void turn() { calls.turn(); }
    [[nodiscard]] message::ServerStats stats() const { return calls.stats(); }
    Status close_server() { return calls.close_server(); }

    Calls calls;
    std::deque<Number>& taken = calls.taken;
    std::optional<rpc::Server>& server = calls.server;
};

Pair awaited_typed_client(Carrier carrier) {
    return of_client(std::make_shared<AwaitedCalls>(carrier));
}

// ---- the store

struct Commands {
    explicit Commands(Carrier carrier)
        : server{kv::Server::listen(connect::Address::parse(fresh_address()),
                                    {.messages = narrow(carrier, Transport::rc)})},
          client{joined(
              [&] {
                  return kv::Client::connect(server->address(), eager(carrier, Transport::rc),
                                             soon());
              },
              [&] { turn(); })} {}
    Status send(Number number) {
        std::uint64_t id = 0;
        return client->submit(kv::Command::exists, {.key = bytes_of(number)}, id);
    }
    /// They come in their order, and it counts them.
    void turn() {
        (void)server->serve(Deadline::after(1ms));
        const auto count = server->requests()[static_cast<std::size_t>(kv::Command::exists)];
        while (counted != count) taken.push_back(counted++);
    }
    [[nodiscard]] message::ServerStats stats() const { return server->stats(); }
    Status close_server() { return server->close(soon()); }

    Number counted = 0;
    std::deque<Number> taken;
    std::optional<kv::Server> server;
    std::optional<kv::Client> client;
};

Pair store_client(Carrier carrier) {
    Pair pair = of_client(std::make_shared<Commands>(carrier));
    // A request in place, of a session that resumes, waits at the client if the ring is full.
    pair.if_left = Status::closed;
    return pair;
}

struct AwaitedCommands : Awaited<kv::AsyncClient> {
    explicit AwaitedCommands(Carrier carrier) : commands{carrier} {
        client.emplace(hub, std::move(*commands.client));
    }
    base::Task<> call(Number number) {
        const kv::Result result = co_await client->exists(bytes_of(number), Deadline::never());
        end(result.outcome == message::Outcome::closed ? Status::closed : Status::ok);
    }
    Status send(Number number) { return begin(call(number)); }
    void turn() { commands.turn(); }
    [[nodiscard]] message::ServerStats stats() const { return commands.stats(); }
    Status close_server() { return commands.close_server(); }

    Commands commands;
    std::deque<Number>& taken = commands.taken;
    std::optional<kv::Server>& server = commands.server;
};

Pair awaited_store_client(Carrier carrier) {
    Pair pair = of_client(std::make_shared<AwaitedCommands>(carrier));
    pair.if_left = Status::closed;
    return pair;
}

}  // namespace

std::vector<Made> sessions() {
    return {{"client", client<Transport::rc>},
            {"client_tcp", client<Transport::tcp>, false},
            {"client_uc", client<Transport::uc>, false},
            {"dispatcher", dispatcher},
            {"server", server},
            {"typed_client", typed_client},
            {"typed_client_awaited", awaited_typed_client},
            {"typed_dispatcher", typed_dispatcher},
            {"store_client", store_client},
            {"store_client_awaited", awaited_store_client}};
}

}  // namespace millrace::closing
