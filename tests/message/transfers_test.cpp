// The ways that requests and answers travel: what each of them posts, what a server refuses, and
// what a client that lies costs the others.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/channel_core.hpp"
#include "channel/setup.hpp"
#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "support/counted_posts.hpp"
#include "support/extent.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;

class Transfers : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, Transfers, testing::ValuesIn(every_ring_way),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(Transfers, PostWhatTheySayForEachCall) {
    test::CountedEndpoint at_server;
    test::CountedEndpoint at_client;
    const Way way = GetParam();
    ServerOptions chosen = options();
    chosen.endpoint = at_server.endpoint;
    chosen.tuning.carrier = ring::Carrier::post;
    Server server = Server::listen(unique_address(), chosen);
    ClientOptions client_options = options_of_client();
    client_options.endpoint = at_client.endpoint;
    client_options.tuning.carrier = ring::Carrier::post;
    Client client = join_in_turns(
        server, [&] { return Client::connect(server.address(), client_options, patience()); });
    const auto call = [&](std::uint64_t number) {
        std::uint64_t id = 0;
        const Bytes request = content(1, number, 64);
        ASSERT_EQ(client.submit(request, id), Status::ok) << client.failure();
        Status status = Status::empty;
        const Deadline deadline = patience();
        while (status == Status::empty && !deadline.expired()) {
            (void)server.turn(echo);
            status = client.poll([&](const Answer& answer) {
                EXPECT_TRUE(std::ranges::equal(answer.payload, request));
            });
        }
        ASSERT_EQ(status, Status::ok) << client.failure();
    };
    call(0);
    at_server.posts.clear();
    at_client.posts.clear();
    constexpr std::uint64_t calls = 400;
    for (std::uint64_t number = 0; number < calls; ++number) call(number);

    const std::uint64_t writes = client.link().writes_in_order() ? 1 : 2;
    const bool by_byte = way.polling == Polling::dense && way.requests == Transfer::write;
    const std::uint64_t client_writes =
        way.requests == Transfer::write ? calls * (writes + (by_byte ? 1 : 0)) : 0;
    const std::uint64_t server_writes = way.answers == Transfer::write ? calls * writes : 0;
    // Credit, skips at the end of a ring, and questions about room.
    constexpr std::uint64_t now_and_then = calls / 4;
    EXPECT_EQ(at_client.posts.send, way.requests == Transfer::send ? calls : 0);
    EXPECT_GE(at_client.posts.write, client_writes);
    EXPECT_LE(at_client.posts.write, client_writes + now_and_then);
    EXPECT_LE(at_client.posts.read, now_and_then);
    EXPECT_EQ(at_client.posts.receive, way.answers == Transfer::send ? calls : 0);
    EXPECT_EQ(at_server.posts.send, way.answers == Transfer::send ? calls : 0);
    EXPECT_GE(at_server.posts.write, server_writes);
    EXPECT_LE(at_server.posts.write, server_writes + now_and_then);
    EXPECT_LE(at_server.posts.read, now_and_then);
    EXPECT_EQ(at_server.posts.receive, way.requests == Transfer::send ? calls : 0);
    EXPECT_EQ(at_client.posts.write_with_immediate + at_server.posts.write_with_immediate, 0U);
}

TEST_P(Transfers, AreInlinedAndSignaledAsTheirOptionsSay) {
    for (const bool is_on : {true, false}) {
        test::CountedEndpoint at_server;
        test::CountedEndpoint at_client;
        ServerOptions chosen = options();
        chosen.endpoint = at_server.endpoint;
        chosen.tuning.carrier = ring::Carrier::post;
        chosen.tuning.posting = {.inlines = is_on, .signals_selectively = is_on};
        Server server = Server::listen(unique_address(), chosen);
        ClientOptions client_options = options_of_client();
        client_options.endpoint = at_client.endpoint;
        client_options.tuning.carrier = ring::Carrier::post;
        client_options.tuning.posting = chosen.tuning.posting;
        Client client = join_in_turns(
            server, [&] { return Client::connect(server.address(), client_options, patience()); });
        at_server.posts.clear();
        at_client.posts.clear();
        constexpr std::uint64_t calls = 200;
        const Deadline deadline = patience();
        for (std::uint64_t number = 0; number < calls; ++number) {
            std::uint64_t id = 0;
            ASSERT_EQ(client.submit(content(1, number, 40), id), Status::ok) << client.failure();
            Status status = Status::empty;
            while (status == Status::empty && !deadline.expired()) {
                (void)server.turn(echo);
                status = client.poll([](const Answer&) {});
            }
            ASSERT_EQ(status, Status::ok) << client.failure();
        }
        for (const test::Posts* posts : {&at_server.posts, &at_client.posts}) {
            if (is_on) {
                EXPECT_GE(posts->inlined, calls);
                EXPECT_LT(posts->signaled, calls / 2);
            } else {
                EXPECT_LT(posts->inlined, calls / 4) << "credit, and questions about room";
                EXPECT_GE(posts->signaled, calls);
            }
        }
    }
}

TEST_P(Transfers, AreExplainedAtBothEnds) {
    Running running{options()};
    Client client = running.connect();
    const std::string text = client.explain();
    EXPECT_NE(text.find("requests by " + std::string{name_of(GetParam().requests)}),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("answers by " + std::string{name_of(GetParam().answers)}),
              std::string::npos)
        << text;
    EXPECT_NE(running.server.explain().find(GetParam().receives == Receives::shared
                                                ? "trusts its clients"
                                                : "receives of each client's own"),
              std::string::npos)
        << running.server.explain();
}

TEST(ServersOfEveryWay, ServeClientsOfAllOfThemAtOnce) {
    for (const Receives receives : {Receives::own, Receives::shared}) {
        for (const Polling polling : {Polling::flag, Polling::dense}) {
            ServerOptions options;
            options.polling = polling;
            options.tuning.receives = receives;
            if (receives == Receives::shared) options.protection = Protection::trusted;
            Running running{options};
            std::vector<Client> clients;
            for (const Transfer requests : {Transfer::write, Transfer::send}) {
                for (const Transfer answers : {Transfer::write, Transfer::send}) {
                    ClientOptions chosen;
                    chosen.requests = requests;
                    chosen.answers = answers;
                    clients.push_back(
                        Client::connect(running.server.address(), chosen, patience()));
                }
            }
            Bytes answer;
            for (std::uint64_t number = 0; number < test::repetitions(500); ++number) {
                for (std::uint64_t whose = 0; whose < clients.size(); ++whose) {
                    const Bytes request = content(whose, number, number * 7 % 1200);
                    ASSERT_EQ(clients[whose].call(request, answer, patience()), Outcome::ok)
                        << whose << ": " << clients[whose].failure();
                    ASSERT_EQ(answer, request);
                }
            }
        }
    }
}

TEST(ServersOfEveryWay, RefuseWhatTheyDoNotAllowWithTheReason) {
    ServerOptions options;
    options.tuning.requests_by_send = false;
    options.tuning.answers_by_send = false;
    Running running{options};
    const auto refused = [&](Transfer requests, Transfer answers, const std::string& what) {
        ClientOptions chosen;
        chosen.requests = requests;
        chosen.answers = answers;
        try {
            (void)Client::connect(running.server.address(), chosen, patience());
            ADD_FAILURE() << "it was let in";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::refused);
            EXPECT_NE(std::string{error.what()}.find(what), std::string::npos) << error.what();
        }
    };
    refused(Transfer::send, Transfer::write, "requests by SEND are not allowed here");
    refused(Transfer::write, Transfer::send, "answers by SEND are not allowed here");
    Client client = running.connect();
    Bytes answer;
    EXPECT_EQ(client.call(content(1, 1, 40), answer, patience()), Outcome::ok);
}

TEST(ServersOfEveryWay, RefuseReceivesThatCannotBe) {
    for (const std::size_t slot :
         {std::size_t{0}, std::size_t{64}, std::size_t{500}, std::size_t{128} << 10}) {
        ServerOptions server;
        server.tuning.slot_bytes = slot;
        EXPECT_THROW((void)Server::listen(unique_address(), server), base::Error) << slot;
        ClientOptions client;
        client.tuning.slot_bytes = slot;
        EXPECT_THROW((void)Client::connect(unique_address(), client, patience()), base::Error);
    }
    for (const std::uint32_t receives : {0U, 15U, 100'000U}) {
        ServerOptions server;
        server.tuning.receives = Receives::shared;
        server.protection = Protection::trusted;
        server.tuning.shared_receives = receives;
        EXPECT_THROW((void)Server::listen(unique_address(), server), base::Error) << receives;
    }
}

TEST(ServersOfEveryWay, GoOnWhereSharedReceivesAreFewerThanTheRequestsOfAll) {
    ServerOptions options;
    options.tuning.receives = Receives::shared;
    options.protection = Protection::trusted;
    options.tuning.shared_receives = 16;
    Running running{options};
    std::vector<std::thread> crowd;
    for (std::uint64_t whose = 0; whose < 6; ++whose) {
        crowd.emplace_back([&, whose] {
            ClientOptions chosen;
            chosen.requests = Transfer::send;
            Client client = Client::connect(running.server.address(), chosen, patience());
            std::uint64_t sent = 0;
            std::uint64_t answered = 0;
            while (answered < 400) {
                std::uint64_t id = 0;
                while (sent < 400 &&
                       client.submit(content(whose, sent + 1, 100), id) == Status::ok) {
                    ++sent;
                }
                const Status status = client.wait(
                    [&](const Answer& answer) {
                        ++answered;
                        EXPECT_TRUE(
                            std::ranges::equal(answer.payload, content(whose, answer.id, 100)));
                    },
                    patience());
                if (status != Status::ok && status != Status::empty) {
                    ADD_FAILURE() << name_of(status) << ", " << client.failure();
                    return;
                }
            }
        });
    }
    for (std::thread& each : crowd) each.join();
}

/// A peer that sends whatever it likes.
struct Liar {
    Liar(const Server& server, Transfer requests) {
        ChannelOptions options;
        options.endpoint = connect::Endpoint::shared();
        core = set_up(
            connect::connect(server.address(), link_options(options, server_service), patience()),
            options, patience(), {.sends = requests});
        memory = core->link().allocate(4096, verbs::Access::none);
    }
    void send(std::size_t offset, std::size_t bytes) {
        const ibv_sge slice = memory.slice(offset, bytes);
        (void)core->window().post(verbs::Send{.from = {&slice, 1}});
    }
    /// As it ought to be, or only its first bytes, where there is credit or not.
    void send_frame(std::size_t payload, std::uint8_t flags, std::size_t less = 0) {
        std::byte* const laid = core->send_ring.data();
        const Transmission frame = core->writer.commit(payload, flags);
        std::memcpy(memory.data(), laid + frame.offset, frame.bytes);
        send(0, frame.bytes - less);
        core->writer.pass_slot(core->peer_slot);
    }
    std::unique_ptr<Channel::Core> core;
    verbs::RegisteredBuffer memory;
};

TEST(ServersOfEveryWay, LoseTheConnectionOfALiarAndNoOther) {
    using Deed = void (*)(Liar&);
    const Deed deeds[] = {
        [](Liar& it) { it.send(0, 0); },
        [](Liar& it) { it.send(0, 8); },
        [](Liar& it) { it.send(0, 512); },
        [](Liar& it) { it.send(0, 513); },
        [](Liar& it) { it.send(0, 4096); },
        [](Liar& it) { it.send_frame(100, frame_whole, 8); },
        [](Liar& it) { it.send_frame(100, frame_whole, 100); },
        [](Liar& it) { it.send_frame(0, frame_skip); },
        [](Liar& it) { it.send_frame(0, 15); },
        [](Liar& it) {  // a frame twice
            it.send_frame(0, frame_continues | frame_more);
            it.send(0, 16);
        },
        [](Liar& it) {  // more than it has credits for
            for (int i = 0; i < 36; ++i) it.send_frame(0, frame_continues | frame_more);
        },
    };
    for (const Receives receives : {Receives::own, Receives::shared}) {
        ServerOptions options;
        options.tuning.receives = receives;
        if (receives == Receives::shared) options.protection = Protection::trusted;
        Server server = Server::listen(unique_address(), options);
        ClientOptions by_send;
        by_send.requests = Transfer::send;
        Client other = join_in_turns(
            server, [&] { return Client::connect(server.address(), by_send, patience()); });
        std::uint64_t number = 0;
        const auto still_serves = [&] {
            std::uint64_t id = 0;
            ASSERT_EQ(other.submit(content(1, ++number, 100), id), Status::ok) << other.failure();
            Status status = Status::empty;
            const Deadline deadline = patience();
            while (status == Status::empty && !deadline.expired()) {
                (void)server.turn(echo);
                status = other.poll([&](const Answer& answer) {
                    EXPECT_TRUE(std::ranges::equal(answer.payload, content(1, number, 100)));
                });
            }
            ASSERT_EQ(status, Status::ok) << other.failure();
        };
        const auto is_dismissed = [&](Liar& liar) {
            const Deadline deadline = patience();
            while (liar.core->link().peer_now() == connect::PeerState::alive &&
                   !deadline.expired()) {
                (void)server.serve(echo, Deadline::after(std::chrono::milliseconds{1}));
            }
            EXPECT_FALSE(deadline.expired());
        };
        for (const Deed& deed : deeds) {
            SCOPED_TRACE(&deed - deeds);
            Liar liar = join_in_turns(server, [&] { return Liar{server, Transfer::send}; });
            deed(liar);
            is_dismissed(liar);
            still_serves();
        }
        // Who is to write, and sends.
        Liar liar = join_in_turns(server, [&] { return Liar{server, Transfer::write}; });
        liar.send(0, 100);
        is_dismissed(liar);
        still_serves();
        EXPECT_EQ(server.stats().clients, 1U);
    }
}

}  // namespace
}  // namespace millrace::message
