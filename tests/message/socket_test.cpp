// Servers and clients over sockets, where that differs from rings: what they refuse, who is let in,
// hostile peers, crowds, and what it costs in system calls. What does not differ is asked of every
// way in server_test.cpp and server_crowd_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/setup.hpp"
#include "lane/any_lane.hpp"
#include "lane/lanes.hpp"
#include "lane/socket_framing.hpp"
#include "lane/socket_lane.hpp"
#include "message/serving.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/message/dispatcher.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::ErrorCode;
using base::Status;
using connect::Transport;
using connect::Transports;
using test::ChildProcess;
using testing::HasSubstr;
using namespace std::chrono_literals;

ServerOptions taking(Transports transports, ServerOptions options = {}) {
    options.transports = transports;
    return options;
}
ClientOptions by(Transport transport, ClientOptions options = {}) {
    options.transport = transport;
    return options;
}
connect::Address loopback() { return connect::Address::parse("127.0.0.1:0"); }

template <class Call>
std::pair<ErrorCode, std::string> error_of(Call&& call) {
    try {
        call();
    } catch (const base::Error& error) {
        return {error.code(), error.what()};
    }
    return {ErrorCode::system, "no error"};
}

void expect_call(Client& client, std::uint64_t number, std::size_t size = 100) {
    Bytes answer;
    ASSERT_EQ(client.call(content(3, number, size), answer, patience()), Outcome::ok)
        << client.failure();
    ASSERT_EQ(answer, content(3, number, size));
}

// --- what is chosen

MILLRACE_CHILD(message_without_a_device) {
    // No such device can be opened.
    ::setenv("MILLRACE_DEVICE", "no_such_device", 1);
    Running running{taking(Transport::tcp), echo, loopback()};
    Client client = Client::connect(running.server.address(), by(Transport::tcp), patience());
    Bytes answer;
    if (client.call(content(1, 1, 1000), answer, patience()) != Outcome::ok) return 2;
    if (answer != content(1, 1, 1000)) return 3;
    try {
        (void)Server::listen(loopback(), taking({Transport::tcp, Transport::rc}));
        return 4;
    } catch (const base::Error&) {
        return client.close(patience()) == Status::ok ? 0 : 5;
    }
}

TEST(MessagesOverSockets, NeedNoDevice) {
    ChildProcess child = ChildProcess::start("message_without_a_device", {});
    EXPECT_TRUE(child.wait().success());
}

TEST(MessagesOverSockets, GoBesideThoseOverRingsAtOneServer) {
    for (const Polling polling : {Polling::flag, Polling::dense}) {
        ServerOptions options = taking({Transport::rc, Transport::tcp});
        options.polling = polling;
        Running running{options, echo, loopback()};
        std::vector<Client> clients;
        for (int i = 0; i < 6; ++i) {
            clients.push_back(Client::connect(running.server.address(),
                                              by(i % 2 == 0 ? Transport::rc : Transport::tcp),
                                              patience()));
        }
        for (std::uint64_t number = 0; number < 100; ++number) {
            for (Client& client : clients) expect_call(client, number, number * 11 % 2000);
            if (number % 25 == 0) std::this_thread::sleep_for(2ms);  // it sleeps meanwhile
        }
        EXPECT_THAT(clients[0].explain(), HasSubstr("requests by write"));
        EXPECT_THAT(clients[1].explain(), HasSubstr("requests and answers by tcp"));
        EXPECT_THAT(running.server.explain(), HasSubstr("by rc, tcp"));
        EXPECT_THAT(running.server.explain(), HasSubstr("clients over sockets"));
    }
}

TEST(MessagesOverSockets, AreRefusedWhereTheServerDoesNotTakeThem) {
    Running by_rings{{}, echo, loopback()};
    Running by_sockets{taking(Transport::tcp), echo, loopback()};
    const auto refused = [](const Running& running, Transport transport) {
        return error_of(
            [&] { (void)Client::connect(running.server.address(), by(transport), patience()); });
    };
    const auto [code, why] = refused(by_rings, Transport::tcp);
    EXPECT_EQ(code, ErrorCode::refused) << why;
    EXPECT_THAT(why, HasSubstr("tcp"));
    const auto [other_code, other_why] = refused(by_sockets, Transport::rc);
    EXPECT_EQ(other_code, ErrorCode::refused) << other_why;
    EXPECT_THAT(other_why, HasSubstr("tcp"));
}

TEST(MessagesOverSockets, StandInForRingsWhereTheProgramAllowsIt) {
    Running by_sockets{taking(Transport::tcp), echo, loopback()};
    ClientOptions options = by(Transport::rc);
    options.fallback = Transport::tcp;
    options.requests = options.answers = Transfer::send;
    Client client = Client::connect(by_sockets.server.address(), options, patience());
    expect_call(client, 1);
    EXPECT_THAT(client.explain(), HasSubstr("tcp in place of rc"));
    EXPECT_THAT(client.explain(), HasSubstr("this end asks for transport rc, it takes tcp"));

    Running by_both{taking({Transport::rc, Transport::tcp}), echo, loopback()};
    Client direct = Client::connect(by_both.server.address(), options, patience());
    expect_call(direct, 2);
    EXPECT_THAT(direct.explain(), testing::Not(HasSubstr("in place of")));
    EXPECT_THAT(direct.explain(), HasSubstr("requests by send"));
}

TEST(MessagesOverSockets, DoNotStandInForWhatNoTransportBrings) {
    ServerOptions taken = taking({Transport::rc, Transport::tcp});
    taken.admission.secret = connect::Secret{"a secret of both ends"};
    Running running{taken, echo, loopback()};
    ClientOptions options = by(Transport::rc);
    options.fallback = Transport::tcp;
    const auto [code, why] =
        error_of([&] { (void)Client::connect(running.server.address(), options, patience()); });
    EXPECT_EQ(code, ErrorCode::refused);
    EXPECT_THAT(why, HasSubstr("secret"));

    DispatcherOptions dispatcher;
    dispatcher.client = options;
    const connect::Address addresses[] = {running.server.address()};
    const auto [other_code, other_why] =
        error_of([&] { (void)Dispatcher::connect(addresses, dispatcher, patience()); });
    EXPECT_EQ(other_code, ErrorCode::invalid_argument);
    EXPECT_THAT(other_why, HasSubstr("fallback"));
}

MILLRACE_CHILD(message_of_a_client_without_a_device) {
    ::setenv("MILLRACE_DEVICE", "no_such_device", 1);
    ClientOptions options = by(Transport::rc);
    options.fallback = Transport::tcp;
    Client client = Client::connect(arguments.at(0), options, patience());
    expect_call(client, 1);
    return client.explain().find("no_such_device") != std::string::npos &&
                   !testing::Test::HasFailure()
               ? 0
               : 2;
}

TEST(MessagesOverSockets, StandInForADeviceThatTheClientDoesNotHave) {
    Running running{taking({Transport::rc, Transport::tcp}), echo, loopback()};
    ChildProcess child = ChildProcess::start("message_of_a_client_without_a_device",
                                             {running.server.address().to_string()});
    EXPECT_TRUE(child.wait().success());
}

TEST(MessagesOverSockets, RefuseWhatOnlyRingsHave) {
    const auto of_client = [](ClientOptions options) {
        return error_of([&] { (void)Client::connect(loopback(), std::move(options), patience()); });
    };
    const auto of_server = [](ServerOptions options) {
        return error_of([&] { (void)Server::listen(loopback(), std::move(options)); });
    };
    ClientOptions client = by(Transport::tcp);
    client.requests = Transfer::send;
    EXPECT_EQ(of_client(client).first, ErrorCode::invalid_argument);
    EXPECT_THAT(of_client(client).second, HasSubstr("requests by SEND over tcp"));
    client = by(Transport::tcp);
    client.answers = Transfer::send;
    EXPECT_THAT(of_client(client).second, HasSubstr("answers by SEND over tcp"));
    client = by(Transport::tcp);
    client.tuning.carrier = ring::Carrier::post;
    EXPECT_EQ(of_client(client).first, ErrorCode::invalid_argument);
    ServerOptions server = taking(Transport::tcp);
    server.tuning.receives = Receives::shared;
    EXPECT_THAT(of_server(server).second, HasSubstr("shared receives of clients by tcp"));
    server = taking(Transport::tcp);
    server.tuning.carrier = ring::Carrier::store;
    EXPECT_EQ(of_server(server).first, ErrorCode::invalid_argument);
    EXPECT_EQ(of_server(taking(Transports{})).first, ErrorCode::invalid_argument);
    const connect::Address addresses[] = {loopback()};
    DispatcherOptions dispatcher;
    dispatcher.client.transport = Transport::tcp;
    const auto [code, why] =
        error_of([&] { (void)Dispatcher::connect(addresses, std::move(dispatcher), patience()); });
    EXPECT_EQ(code, ErrorCode::invalid_argument);
    EXPECT_THAT(why, HasSubstr("transport tcp"));
}

TEST(MessagesOverSockets, TakeWhoKnowsTheSecretAndRefuseOthers) {
    const auto knowing = [](std::string_view text) {
        return connect::Admission{.secret = connect::Secret{text}};
    };
    ServerOptions options = taking(Transport::tcp);
    options.admission = knowing("a secret of both ends");
    Running running{options, echo, loopback()};
    ClientOptions client = by(Transport::tcp);
    const auto join = [&] { return Client::connect(running.server.address(), client, patience()); };
    EXPECT_EQ(error_of([&] { (void)join(); }).first, ErrorCode::refused);
    client.admission = knowing("another end's secret");
    EXPECT_EQ(error_of([&] { (void)join(); }).first, ErrorCode::refused);
    client.admission = knowing("a secret of both ends");
    Client right = join();
    expect_call(right, 1);
    running.stop();
    EXPECT_EQ(running.server.stats().joined, 1U);
}

TEST(MessagesOverSockets, ThatAreGatheredGoWhenALoopComesRound) {
    Running running{taking(Transport::tcp), echo, loopback()};
    ClientOptions options = by(Transport::tcp);
    options.gathers_requests = true;
    Client client = Client::connect(running.server.address(), options, patience());
    const int descriptor = client.descriptor();
    for (std::uint64_t round = 0; round < 20; ++round) {
        ASSERT_TRUE(test::goes_quiet(descriptor, [&] { (void)client.poll([](const Answer&) {}); }));
        std::uint64_t id = 0;
        for (std::uint64_t i = 0; i < 8; ++i) {
            ASSERT_EQ(client.submit(content(1, i, 50), id), Status::ok);
        }
        for (int answered = 0; answered < 8;) {
            ASSERT_TRUE(test::becomes_readable(descriptor, 20'000ms));
            if (client.poll([](const Answer&) {}) == Status::ok) ++answered;
        }
    }
}

// --- order and end

TEST(MessagesOverSockets, BringWhatIsLongerThanAllBuffersOfTheWay) {
    ServerOptions options = taking(Transport::tcp);
    options.max_request_bytes = std::size_t{24} << 20;
    options.tuning.max_waiting_bytes = 1;
    Running running{options, echo, loopback()};
    Client other = Client::connect(running.server.address(), by(Transport::tcp), patience());
    Client client = Client::connect(running.server.address(), by(Transport::tcp), patience());
    const Bytes large = content(1, 1, std::size_t{20} << 20);
    std::uint64_t ids[3];
    for (std::uint64_t& id : ids) {
        ASSERT_EQ(client.submit(large, id, patience()), Status::ok) << client.failure();
        expect_call(other, id);
    }
    for (const std::uint64_t id : ids) {
        ASSERT_EQ(client.wait(
                      [&](const Answer& answer) {
                          EXPECT_EQ(answer.id, id);
                          EXPECT_TRUE(std::ranges::equal(answer.payload, large));
                      },
                      patience()),
                  Status::ok)
            << client.failure();
    }
}

TEST(MessagesOverSockets, ThatFindNoRoomGoOnInALoop) {
    ServerOptions options = taking(Transport::tcp);
    options.max_request_bytes = std::size_t{24} << 20;
    Running running{options, echo, loopback()};
    Client client = Client::connect(running.server.address(), by(Transport::tcp), patience());
    const int descriptor = client.descriptor();
    const Bytes large = content(1, 1, std::size_t{20} << 20);
    for (int round = 0; round < 2; ++round) {
        ASSERT_TRUE(test::goes_quiet(
            descriptor, [&] { ASSERT_EQ(client.poll([](const Answer&) {}), Status::empty); }));
        std::uint64_t id = 0;
        // It is taken, and the kernel has no room for most of it.
        ASSERT_EQ(client.submit(large, id), Status::ok) << client.failure();
        Status status = Status::empty;
        while (status == Status::empty) {
            ASSERT_TRUE(test::becomes_readable(descriptor, 20'000ms));
            status = client.poll([&](const Answer& answer) {
                EXPECT_TRUE(std::ranges::equal(answer.payload, large));
            });
        }
        ASSERT_EQ(status, Status::ok) << client.failure();
    }
}

TEST(MessagesOverSockets, OfWhomBothCloseAreAllRead) {
    Running running{taking(Transport::tcp), echo, loopback()};
    Client client = Client::connect(running.server.address(), by(Transport::tcp), patience());
    std::uint64_t id = 0;
    for (int i = 0; i < 50; ++i) ASSERT_EQ(client.submit(content(1, 1, 1000), id), Status::ok);
    EXPECT_EQ(client.close(patience()), Status::ok);
    const Deadline deadline = patience();
    while (!deadline.expired()) {
        running.stop();
        if (running.server.stats().left == 1) break;
        (void)running.server.serve(echo, Deadline::after(5ms));
    }
    EXPECT_EQ(running.server.stats().requests, 50U);

    Running second{taking(Transport::tcp), echo, loopback()};
    Client stays = Client::connect(second.server.address(), by(Transport::tcp), patience());
    ASSERT_EQ(stays.submit(content(1, 1, 10), id), Status::ok);
    Bytes answer;
    ASSERT_EQ(stays.call(content(1, 2, 10), answer, patience()), Outcome::ok);
    second.stop();
    EXPECT_EQ(second.server.close(patience()), Status::ok);
    // What was answered before is read before the end.
    EXPECT_EQ(stays.poll([](const Answer& its) { EXPECT_EQ(its.id, 1U); }), Status::ok);
    while (!deadline.expired() && stays.poll([](const Answer&) {}) == Status::empty) {
    }
    EXPECT_EQ(stays.poll([](const Answer&) {}), Status::closed);
    EXPECT_EQ(stays.failure(), "");
}

/// Two ends, and nobody above them.
struct LanePair {
    explicit LanePair(bool gathers = false) {
        connect::LinkOptions options = link_options({}, server_service);
        options.accepted = options.transport = Transport::tcp;
        auto listener = connect::Listener::listen(loopback(), options);
        std::thread other{[&] {
            far =
                connect_socket_lane(listener.address(), options,
                                    {.max_message_bytes = 1 << 20, .gathers = gathers}, patience());
        }};
        near = host.meet(listener.accept_speaking(patience()));
        other.join();
    }
    SocketHost host{1 << 20, nullptr};
    std::unique_ptr<NetworkLane> near;
    std::unique_ptr<NetworkLane> far;
};

TEST(SocketLanes, LeaveNothingWhereTheyWereMovedFrom) {
    LanePair pair;
    AnyLane lane{std::move(pair.near)};
    NetworkLane* const network = lane.network();
    ASSERT_NE(network, nullptr);
    EXPECT_EQ(lane.ring(), nullptr) << "it has none";
    AnyLane other = std::move(lane);
    EXPECT_EQ(other.network(), network);
    EXPECT_FALSE(lane.has_value());  // NOLINT(bugprone-use-after-move): what this is about
    EXPECT_EQ(lane.network(), nullptr);
    other.reset();
    EXPECT_FALSE(other.has_value());
    EXPECT_EQ(other.network(), nullptr);
}

TEST(SocketLanes, TellWhoClosesWhetherAllWasRead) {
    for (const bool reads : {false, true}) {
        LanePair pair;
        ASSERT_EQ(pair.far->send(pack(SessionHeader{.id = 1}), content(1, 1, 100)), Status::ok);
        std::span<const std::byte> message;
        const Deadline deadline = patience();
        while (reads && pair.near->look(message) != Status::ok && !deadline.expired()) {
            std::vector<std::uint32_t> places;
            pair.host.look(places);
        }
        if (reads) pair.near->pass();
        EXPECT_EQ(pair.near->try_close(), Status::ok);
        while (pair.far->look(message) == Status::empty && !deadline.expired()) {
        }
        EXPECT_EQ(pair.far->look(message), Status::closed);
        EXPECT_EQ(pair.far->try_close(), reads ? Status::ok : Status::closed);
    }
}

void say(NetworkLane& lane, std::uint64_t id) {
    std::span<std::byte> place;
    ASSERT_EQ(lane.claim(session_head_bytes, place), Status::ok);
    const SessionHead head = pack(SessionHeader{.id = id});
    std::memcpy(place.data(), &head, sizeof head);
    ASSERT_EQ(lane.commit(session_head_bytes), Status::ok);
}

TEST(SocketLanes, GatherOnlyWhatTheyWereAskedTo) {
    for (const bool gathers : {false, true}) {
        LanePair pair{gathers};
        say(*pair.far, 1);
        say(*pair.far, 2);
        EXPECT_EQ(pair.far->flushed_bytes() == 0, gathers);
        EXPECT_EQ(pair.far->holds_back(), gathers);
        EXPECT_EQ(pair.far->waiting_bytes(), 0U) << "nothing of it has to";
        std::span<const std::byte> message;
        EXPECT_EQ(pair.far->look(message), Status::empty);
        EXPECT_EQ(pair.far->flushed_bytes(), 2 * SocketFrame::size_of(session_head_bytes));
        EXPECT_FALSE(pair.far->holds_back());
        std::uint64_t said = 0;
        while (pair.far->holds_back() || said == 0) {
            if (said++ == 10'000) break;
            say(*pair.far, 2 + said);
        }
        EXPECT_LT(said, 10'000U) << "64 KiB are enough";
    }
}

TEST(SocketLanes, ReadAndAnswerWhatCameTogetherByOneSystemCallEach) {
    LanePair pair;
    for (const std::uint64_t together : {1, 16, 40}) {
        const std::uint64_t before = pair.far->flushed_bytes();
        for (std::uint64_t id = 1; id <= together; ++id) {
            ASSERT_EQ(pair.far->send(pack(SessionHeader{.id = id}), content(1, id, 64)),
                      Status::ok);
        }
        const std::uint64_t expected = pair.far->flushed_bytes() - before;
        int here = 0;
        std::vector<std::uint32_t> places;
        const Deadline deadline = patience();
        while (std::cmp_less(here, expected) && !deadline.expired()) {
            ASSERT_EQ(ioctl(pair.near->link().socket(), FIONREAD, &here), 0);
        }
        do {
            pair.host.look(places);
        } while (!pair.near->has_more() && !deadline.expired());

        const std::uint64_t calls = base::system_calls_of_this_thread();
        std::uint64_t answered = 0;
        while (pair.near->has_more()) {
            std::span<const std::byte> message;
            ASSERT_EQ(pair.near->look(message), Status::ok);
            std::span<std::byte> place;
            ASSERT_EQ(pair.near->claim(message.size(), place), Status::ok);
            std::copy(message.begin(), message.end(), place.begin());
            ASSERT_EQ(pair.near->commit(message.size()), Status::ok);
            pair.near->pass();
            ++answered;
        }
        ASSERT_EQ(pair.near->flush(), Status::ok);
        EXPECT_EQ(answered, together);
        EXPECT_EQ(base::system_calls_of_this_thread() - calls, 2U) << "a recv and a send";
        for (std::uint64_t taken = 0; taken < together && !deadline.expired();) {
            std::span<const std::byte> message;
            if (pair.far->look(message) != Status::ok) continue;
            pair.far->pass();
            ++taken;
        }
    }
}

// --- hostile peers

/// Reads until the other end has ended it.
bool ends(int socket) {
    const Deadline deadline = patience();
    std::byte some[4096];
    while (!deadline.expired()) {
        const ssize_t count = recv(socket, some, sizeof some, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN)) return true;
        if (count < 0) std::this_thread::sleep_for(1ms);
    }
    return false;
}

/// Whoever has passed the handshake, and sends what it likes.
struct SocketStranger {
    explicit SocketStranger(const Server& server)
        : link{[&] {
              connect::LinkOptions options = link_options({}, server_service);
              options.transport = Transport::tcp;
              return connect::connect(server.address(), options, patience());
          }()} {
        const std::uint32_t facts[] = {1, 0};
        (void)link.exchange(std::as_bytes(std::span{facts}), patience());
        (void)link.take_over_socket();
    }
    void send(std::span<const std::byte> bytes) const {
        (void)::send(link.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    void send(const SocketFrame& frame) const { send(std::as_bytes(std::span{&frame, 1})); }
    void send_hello() const {
        SocketOutbox outbox;
        outbox.append(pack(SessionHeader{.kind = SessionKind::hello}),
                      pack(Hello{.window = 8, .max_answer = 100}));
        send(outbox.pending());
    }
    [[nodiscard]] bool is_dismissed() const { return ends(link.socket()); }
    connect::Link link;
};

TEST(HostilePeersOverSockets, EndTheirOwnConnectionAndNoOther) {
    Running running{taking(Transport::tcp), echo, loopback()};
    Client other = Client::connect(running.server.address(), by(Transport::tcp), patience());
    using Deed = std::function<void(const SocketStranger&)>;
    const Deed deeds[] = {
        [](const SocketStranger& it) {
            it.send(bytes_of("GET / HTTP/1.1\r\nHost: millrace\r\n\r\n"));
        },
        [](const SocketStranger& it) { it.send(Bytes(5000, std::byte{0xff})); },
        [](const SocketStranger& it) { it.send(SocketFrame{.bytes = 0}); },
        [](const SocketStranger& it) { it.send({.bytes = 9, .kind = SocketFrame::Kind::goodbye}); },
        [](const SocketStranger& it) {  // half a frame, then the end
            it.send(SocketFrame{.bytes = 5000});
            it.send(Bytes(100));
            (void)shutdown(it.link.socket(), SHUT_WR);
        },
        [](const SocketStranger& it) {  // the longest there is, and its session head says nonsense
            it.send(SocketFrame{.bytes = 0xffff'ffff});
            it.send(Bytes(100, std::byte{0xff}));
        },
    };
    for (const bool has_joined : {false, true}) {
        for (const Deed& deed : deeds) {
            const SocketStranger stranger{running.server};
            if (has_joined) stranger.send_hello();
            deed(stranger);
            EXPECT_TRUE(stranger.is_dismissed()) << &deed - deeds << has_joined;
            expect_call(other, 1);
        }
    }
    running.stop();
    EXPECT_EQ(running.server.stats().clients, 1U);
}

std::size_t resident_bytes() {
    std::ifstream file{"/proc/self/statm"};
    std::size_t pages = 0;
    file >> pages >> pages;
    return pages * static_cast<std::size_t>(getpagesize());
}

TEST(HostilePeersOverSockets, GetNoMemoryForWhatTheyOnlyClaim) {
    ServerOptions options = taking(Transport::tcp);
    options.max_request_bytes = std::size_t{1} << 30;
    Running running{options, echo, loopback()};
    Client other = Client::connect(running.server.address(), by(Transport::tcp), patience());
    expect_call(other, 1);
    const std::size_t before = resident_bytes();
    std::vector<SocketStranger> strangers;
    for (int i = 0; i < 30; ++i) {
        strangers.emplace_back(running.server);
        strangers.back().send(SocketFrame{.bytes = 1'000'000'000});
        strangers.back().send(Bytes(5000));
        expect_call(other, 2);
    }
    EXPECT_LT(resident_bytes(), before + (std::size_t{64} << 20));
}

TEST(HostilePeersOverSockets, WhoSayNoHelloAreDismissed) {
    Running running{taking(Transport::tcp), echo, loopback()};
    const SocketStranger silent{running.server};
    const SocketStranger slow{running.server};
    slow.send(SocketFrame{.bytes = 56});
    EXPECT_TRUE(silent.is_dismissed());
    EXPECT_TRUE(slow.is_dismissed());
}

TEST(HostilePeersOverSockets, ThatAreServersEndTheClientsConnection) {
    // A listener that is no message server, but passes the handshake.
    const auto talk_to = [](std::function<void(int socket)> deed,
                            const Deadline& deadline = patience()) {
        connect::LinkOptions options = link_options({}, server_service);
        options.accepted = Transport::tcp;
        auto listener = connect::Listener::listen(loopback(), options);
        std::thread liar{[&] {
            connect::Link link = listener.accept_speaking(patience());
            (void)link.hear(patience());
            const std::uint32_t facts[] = {1, 0};
            link.say(std::as_bytes(std::span{facts}));
            (void)link.take_over_socket();
            deed(link.socket());
            (void)ends(link.socket());
        }};
        const auto found = error_of(
            [&] { (void)Client::connect(listener.address(), by(Transport::tcp), deadline); });
        liar.join();
        return found;
    };
    const auto send_all = [](int socket, std::span<const std::byte> bytes) {
        (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    };
    EXPECT_EQ(
        talk_to([&](int socket) { send_all(socket, bytes_of("220 smtp at your service")); }).first,
        ErrorCode::peer_lost);
    EXPECT_EQ(talk_to([](int socket) { (void)shutdown(socket, SHUT_WR); }).first,
              ErrorCode::peer_lost);
    EXPECT_EQ(talk_to([](int) {}, Deadline::after(2s)).first, ErrorCode::timed_out);
    SocketOutbox outbox;
    outbox.append(pack(SessionHeader{.kind = SessionKind::answer}), {});
    EXPECT_EQ(talk_to([&](int socket) { send_all(socket, outbox.pending()); }).first,
              ErrorCode::protocol);
}

// --- crowds

TEST(CrowdsOverSockets, OfAThousandAreServedWhoeverIsActive) {
    rlimit files{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    constexpr std::size_t count = 1000;
    if (files.rlim_cur < 4 * count) GTEST_SKIP() << "too few descriptors are allowed here";
    Running running{taking(Transport::tcp), echo, loopback()};
    std::vector<Client> clients;
    for (std::size_t i = 0; i < count; ++i) {
        clients.push_back(
            Client::connect(running.server.address(), by(Transport::tcp), patience()));
    }
    for (std::uint64_t number = 0; number < 600; ++number) {
        expect_call(clients[number * 7919 % count], number, 64);
        if (number % 200 == 0) std::this_thread::sleep_for(2ms);
    }
    // Nobody asks any more.
    EXPECT_TRUE(eventually([&] { return running.server.stats().sleeps != 0; }));
    running.stop();
    EXPECT_EQ(running.server.stats().clients, count);
}

}  // namespace
}  // namespace millrace::message
