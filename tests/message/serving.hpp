// What the tests of servers and clients share: the ways that messages may go between them, a server
// in a thread of its own, content that can be told from any other, addresses.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "message/patience.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/server_group.hpp"
#include "support/served.hpp"

namespace millrace::message {

using Bytes = std::vector<std::byte>;
using Handler = std::function<void(Request&)>;

/// What a server polls, and how requests and answers travel.
struct Way {
    Polling polling = Polling::flag;
    Transfer requests = Transfer::write;
    Transfer answers = Transfer::write;
    Receives receives = Receives::own;
    connect::Transport transport = connect::Transport::rc;
    connect::Address::Kind meets = connect::Address::Kind::unix_socket;  ///< over such an address
    /// All clients share something.
    [[nodiscard]] bool needs_trust() const noexcept {
        return receives == Receives::shared || transport == connect::Transport::ud || is_shared();
    }
    /// Through a shared buffer.
    [[nodiscard]] bool is_shared() const noexcept { return requests == Transfer::shared; }
    [[nodiscard]] bool has_rings() const noexcept {
        return transport == connect::Transport::rc && !is_shared();
    }
};
/// Those by rings.
inline constexpr Way every_ring_way[] = {
    {Polling::flag},
    {Polling::dense},
    {Polling::flag, Transfer::send, Transfer::write},
    {Polling::flag, Transfer::write, Transfer::send},
    {Polling::flag, Transfer::send, Transfer::send},
    {Polling::dense, Transfer::send, Transfer::send},
    {Polling::flag, Transfer::send, Transfer::write, Receives::shared},
    {Polling::dense, Transfer::send, Transfer::send, Receives::shared},
    {Polling::dense, Transfer::write, Transfer::write, Receives::shared},
};
/// Those without rings.
inline constexpr Way every_wire_way[] = {
    {Polling::shared, Transfer::shared},
    {.polling = Polling::dense, .transport = connect::Transport::tcp},
    {.polling = Polling::flag, .transport = connect::Transport::tcp},
    {.polling = Polling::dense,
     .transport = connect::Transport::tcp,
     .meets = connect::Address::Kind::tcp},
    {.polling = Polling::dense, .transport = connect::Transport::uc},
    {.polling = Polling::flag, .transport = connect::Transport::uc},
    {.polling = Polling::dense, .transport = connect::Transport::ud},
    {.polling = Polling::flag,
     .transport = connect::Transport::ud,
     .meets = connect::Address::Kind::tcp},
};
inline constexpr auto every_way = [] {
    std::array<Way, std::size(every_ring_way) + std::size(every_wire_way)> all{};
    std::copy(std::begin(every_wire_way), std::end(every_wire_way),
              std::copy(std::begin(every_ring_way), std::end(every_ring_way), all.begin()));
    return all;
}();
/// "flag", or "flag_send_write_shared", or "dense_tcp_unix".
inline std::string name_of(const Way& way) {
    std::string name{name_of(way.polling)};
    if (way.is_shared()) return name;
    if (!way.has_rings()) {
        name += '_';
        name += name_of(way.transport);
        if (way.meets == connect::Address::Kind::unix_socket) name += "_unix";
        return name;
    }
    const bool is_plain = way.requests == Transfer::write && way.answers == Transfer::write;
    if (!is_plain || way.receives == Receives::shared) {
        name += '_';
        name += name_of(way.requests);
        name += '_';
        name += name_of(way.answers);
    }
    if (way.receives == Receives::shared) name += "_shared";
    return name;
}
/// The one of that name.
inline Way way_named(const std::string& name) {
    for (const Way& way : every_way) {
        if (name_of(way) == name) return way;
    }
    ADD_FAILURE() << "no way has the name " << name;
    return {};
}
/// The one that clients of this test choose.
inline Way& chosen_way() {
    static Way way;
    return way;
}
inline ServerOptions options_of_server(const Way& way) {
    ServerOptions options;
    options.polling = way.polling;
    options.tuning.receives = way.receives;
    options.transports = way.transport;
    if (way.needs_trust()) options.protection = Protection::trusted;
    // As many as over UC, as much is asked at once in some tests.
    if (way.is_shared()) options.tuning.shared_packets = 64;
    return options;
}
/// `options`, and the chosen way.
inline ClientOptions options_of_client(ClientOptions options = {}) {
    options.requests = chosen_way().requests;
    options.answers = chosen_way().answers;
    options.transport = chosen_way().transport;
    return options;
}

class ByEveryWay : public testing::TestWithParam<Way> {
  protected:
    ByEveryWay() { chosen_way() = GetParam(); }
    ~ByEveryWay() override { chosen_way() = {}; }
    [[nodiscard]] static ServerOptions options() { return options_of_server(GetParam()); }
};

/// For a server of the chosen way.
inline connect::Address unique_address() {
    if (chosen_way().meets == connect::Address::Kind::tcp) {
        return connect::Address::parse("127.0.0.1:0");
    }
    static std::atomic<int> number{0};
    return connect::Address::parse("unix:@millrace-server-test-" + std::to_string(getpid()) + "-" +
                                   std::to_string(++number));
}

/// Bytes that are those of (whose, number) alone: both stand in them, if there is room, and what
/// follows depends on both.
inline Bytes content(std::uint64_t whose, std::uint64_t number, std::size_t size) {
    Bytes bytes(size);
    std::uint64_t state = (whose + 1) * 0x9e3779b97f4a7c15U ^ (number + 1) * 0xbf58476d1ce4e5b9U;
    for (std::byte& byte : bytes) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        byte = static_cast<std::byte>(state >> 56);
    }
    if (size >= 16) {
        std::memcpy(bytes.data(), &whose, 8);
        std::memcpy(bytes.data() + 8, &number, 8);
    }
    return bytes;
}
inline Bytes bytes_of(std::string_view text) {
    Bytes bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}
inline std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void echo(Request& request) { (void)request.answer(request.payload()); }

/// What `as()` connects, while this thread serves it.
template <class Join>
[[nodiscard]] auto join_in_turns(Server& server, Join&& as) {
    std::optional<decltype(as())> joined;
    std::atomic<bool> is_in{false};
    std::thread thread{[&] {
        joined.emplace(as());
        is_in = true;
    }};
    const base::Deadline deadline = patience();
    while (!is_in && !deadline.expired()) (void)server.turn(echo);
    thread.join();
    return std::move(*joined);
}

/// Submits and takes until `count` requests are answered, each right and once.
inline void talk(Client& client, std::uint64_t whose, std::uint64_t count, std::size_t most,
                 unsigned seed) {
    std::minstd_rand random{seed};
    std::map<std::uint64_t, Bytes> open;
    std::uint64_t sent = 0;
    std::uint64_t answered = 0;
    const auto take = [&](const Answer& answer) {
        ASSERT_EQ(answer.outcome, Outcome::ok) << text_of(answer.payload);
        const auto found = open.find(answer.id);
        ASSERT_NE(found, open.end()) << "an answer to nothing, or the second one: " << answer.id;
        ASSERT_TRUE(std::ranges::equal(answer.payload, found->second));
        open.erase(found);
        ++answered;
    };
    while (answered < count) {
        while (sent < count) {
            Bytes request = content(whose, sent, random() % most);
            std::uint64_t id = 0;
            const base::Status status = client.submit(request, id);
            if (status == base::Status::full) break;
            ASSERT_EQ(status, base::Status::ok) << client.failure();
            ASSERT_TRUE(open.emplace(id, std::move(request)).second);
            ++sent;
            if (random() % 8 == 0) break;
        }
        ASSERT_EQ(client.outstanding(), open.size());
        // With nothing outstanding, what lacks is news of room.
        const base::Status status = client.wait(take, patience());
        ASSERT_EQ(status, open.empty() && status != base::Status::ok ? base::Status::empty
                                                                     : base::Status::ok)
            << client.failure();
        while (random() % 4 != 0 && client.poll(take) == base::Status::ok) {
        }
    }
}

/// Waits for what the servers' threads are about to do.
template <class Ready>
[[nodiscard]] bool eventually(Ready&& ready) {
    const base::Deadline deadline = patience();
    while (!ready()) {
        if (deadline.expired()) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return true;
}

/// A client whose channel can be broken as a network breaks it.
struct Breakable {
    Breakable(const connect::Address& address, const ClientOptions& options)
        : client{Client::connect(address, options, patience())} {}
    void cut() {
        ++cuts;
        (void)shutdown(client.link().socket(), SHUT_RDWR);
    }
    Client client;
    std::uint64_t cuts = 0;
};

inline ClientOptions resuming() {
    ClientOptions options = options_of_client();
    options.resumes = true;
    return options;
}

/// Submits and takes until `count` requests are answered, each right and once, and breaks the
/// channel behind each `cut_every` answers.
inline void talk_while_it_breaks(Breakable& breakable, std::uint64_t whose, std::uint64_t count,
                                 std::uint64_t cut_every) {
    Client& client = breakable.client;
    std::map<std::uint64_t, std::uint64_t> open;
    std::uint64_t sent = 0;
    std::uint64_t answered = 0;
    std::uint64_t cuts = 0;
    while (answered < count) {
        while (sent < count) {
            std::uint64_t id = 0;
            const base::Status status = client.submit(content(whose, sent, sent * 37 % 500), id);
            if (status != base::Status::ok) {
                ASSERT_TRUE(status == base::Status::full || status == base::Status::peer_lost);
                break;
            }
            open[id] = sent++;
        }
        const base::Status status = client.wait(
            [&](const Answer& answer) {
                ASSERT_EQ(answer.outcome, Outcome::ok);
                const auto found = open.find(answer.id);
                ASSERT_NE(found, open.end());
                ASSERT_TRUE(std::ranges::equal(
                    answer.payload, content(whose, found->second, found->second * 37 % 500)));
                open.erase(found);
                ++answered;
            },
            patience());
        ASSERT_TRUE(status == base::Status::ok || (status == base::Status::empty && open.empty()))
            << name_of(status) << client.failure();
        if (answered >= (cuts + 1) * cut_every) {
            breakable.cut();
            ++cuts;
        }
    }
}

/// Calls until the session was resumed, and returns how many calls that took: by memory, all
/// answers may come before either end has noticed that the channel is broken.
inline std::uint64_t call_until_resumed(Breakable& breakable, std::uint64_t whose) {
    std::uint64_t calls = 0;
    EXPECT_TRUE(eventually([&] {
        if (breakable.client.stats().resumed != 0) return true;
        Bytes answer;
        const Bytes request = content(whose, ++calls, 20);
        EXPECT_EQ(breakable.client.call(request, answer, patience()), Outcome::ok)
            << breakable.client.failure();
        EXPECT_EQ(answer, request);
        return false;
    }));
    return calls;
}

/// Answers with the number of the server, and who asked.
inline void tell_server(Request& request) {
    const ClientId id = request.client();
    (void)request.answer(std::as_bytes(std::span{&id, 1}));
}
inline ClientId ask(Client& client) {
    Bytes answer;
    EXPECT_EQ(client.call({}, answer, patience()), Outcome::ok) << client.failure();
    ClientId id{.server = ~0U};
    EXPECT_EQ(answer.size(), sizeof id);
    if (answer.size() == sizeof id) std::memcpy(&id, answer.data(), sizeof id);
    return id;
}

/// A server that a thread serves until it is stopped.
class Running {
  public:
    explicit Running(ServerOptions options = {}, Handler handler = echo,
                     std::optional<connect::Address> address = {})
        : server{Server::listen(address.value_or(unique_address()), std::move(options))},
          thread_{server, [handler = std::move(handler)](auto& its) {
                      return its.serve(handler, base::Deadline::never());
                  }} {}
    /// From here on the server is the calling thread's.
    void stop() { thread_.stop(); }
    [[nodiscard]] Client connect(ClientOptions options = {}) {
        return Client::connect(server.address(), options_of_client(std::move(options)), patience());
    }

    Server server;

  private:
    test::ServingThread<Server> thread_;
};

/// A server and its client, each with the smallest ring there is.
struct InSmallestRings {
    static constexpr std::size_t ring_bytes = 128;
    explicit InSmallestRings(ServerOptions options)
        : running{[&] {
              options.ring_bytes = ring_bytes;
              return options;
          }()},
          client{running.connect([] {
              ClientOptions chosen;
              chosen.ring_bytes = ring_bytes;
              return chosen;
          }())} {}
    void expect_echo(const Bytes& request) {
        ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok) << client.failure();
        ASSERT_EQ(answer, request) << request.size();
    }
    Running running;
    Client client;
    Bytes answer;
};

/// A group of servers that its threads serve until it is stopped.
class RunningGroup {
  public:
    explicit RunningGroup(std::uint32_t threads, const ServerOptions& options = {},
                          Handler handler = echo, std::optional<connect::Address> address = {})
        : group{ServerGroup::listen(address.value_or(unique_address()), options,
                                    {.count = threads})},
          thread_{group, [handler = std::move(handler)](auto& its) {
                      return its.serve(handler, base::Deadline::never());
                  }} {}
    /// From here on the group is the calling thread's.
    void stop() { thread_.stop(); }
    [[nodiscard]] Client connect(ClientOptions options = {}) {
        return Client::connect(group.address(), options_of_client(std::move(options)), patience());
    }

    ServerGroup group;

  private:
    test::ServingThread<ServerGroup> thread_;
};

}  // namespace millrace::message
