// Messages by UC and UD, beyond what all servers do (server_test.cpp, server_crowd_test.cpp): what
// a call posts, crowds, what strangers in the fabric can do, and peers that lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "channel/setup.hpp"
#include "lane/packet_lane.hpp"
#include "lane/packet_stream.hpp"
#include "message/serving.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/facts.hpp"
#include "support/counted_posts.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using connect::Transport;

class PacketLanes : public ByEveryWay {
  protected:
    [[nodiscard]] static bool is_ud() { return GetParam().transport == Transport::ud; }
};
INSTANTIATE_TEST_SUITE_P(Over, PacketLanes,
                         testing::Values(Way{.polling = Polling::dense, .transport = Transport::uc},
                                         Way{.polling = Polling::dense,
                                             .transport = Transport::ud}),
                         [](const auto& way) { return std::string{name_of(way.param.transport)}; });

TEST_P(PacketLanes, PostOnePacketEachWayForACall) {
    test::CountedEndpoint at_server;
    test::CountedEndpoint at_client;
    ServerOptions chosen = options();
    chosen.endpoint = at_server.endpoint;
    Server server = Server::listen(unique_address(), chosen);
    ClientOptions own = options_of_client();
    own.endpoint = at_client.endpoint;
    Client client =
        join_in_turns(server, [&] { return Client::connect(server.address(), own, patience()); });
    const Deadline deadline = patience();
    // A client asks again where no answer has come for so long, and its server tells it what is
    // there: some packets more of a machine that was busy.
    std::uint64_t late = 0;
    const auto call = [&](std::uint64_t number) {
        const auto begin = base::Clock::now();
        std::uint64_t id = 0;
        const Bytes request = content(1, number, 64);
        ASSERT_EQ(client.submit(request, id), Status::ok) << client.failure();
        Status status = Status::empty;
        while (status == Status::empty && !deadline.expired()) {
            (void)server.turn(echo);
            status = client.poll([&](const Answer& answer) {
                EXPECT_TRUE(std::ranges::equal(answer.payload, request));
            });
        }
        ASSERT_EQ(status, Status::ok) << client.failure();
        if (base::Clock::now() - begin >= PacketTerms{}.least_patience) ++late;
    };
    for (std::uint64_t number = 0; number < 10; ++number) ASSERT_NO_FATAL_FAILURE(call(number));
    at_server.posts.clear();
    at_client.posts.clear();
    constexpr std::uint64_t calls = 400;
    for (std::uint64_t number = 0; number < calls; ++number) ASSERT_NO_FATAL_FAILURE(call(number));
    for (const test::Posts* const posts : {&at_client.posts, &at_server.posts}) {
        for (const std::uint64_t count : {posts->send.load(), posts->receive.load()}) {
            EXPECT_GE(count, calls);
            EXPECT_LE(count, calls + 8 * late) << client.explain();
        }
        EXPECT_EQ(posts->all(), posts->send);
    }
}

/// A server and its clients, each end with counted posts, in one thread once all are in.
struct CountedConversation {
    CountedConversation(ServerOptions of_server, ClientOptions of_clients, std::size_t count) {
        of_server.endpoint = at_server.endpoint;
        of_clients.endpoint = at_client.endpoint;
        running.emplace(of_server);
        for (std::size_t i = 0; i < count; ++i) clients.push_back(running->connect(of_clients));
        running->stop();
        // What they had to say at the beginning is said.
        call(64);
        at_server.posts.clear();
        at_client.posts.clear();
    }
    /// Each client has asked before the server looks.
    void call(std::size_t bytes, std::uint64_t each = 1) {
        std::uint64_t id = 0;
        for (std::uint64_t whose = 0; whose < clients.size(); ++whose) {
            for (std::uint64_t number = 0; number < each; ++number) {
                ASSERT_EQ(clients[whose].submit(content(whose, number, bytes), id), Status::ok)
                    << clients[whose].failure();
            }
            ASSERT_EQ(clients[whose].poll([](const Answer&) {}), Status::empty);
        }
        std::uint64_t answers = 0;
        const Deadline deadline = patience();
        while (answers != each * clients.size() && !deadline.expired()) {
            (void)running->server.turn(echo);
            for (std::uint64_t whose = 0; whose < clients.size(); ++whose) {
                (void)clients[whose].poll([&](const Answer& answer) {
                    ++answers;
                    EXPECT_EQ(answer.payload.size(), bytes);
                    EXPECT_EQ(answer.outcome, Outcome::ok);
                });
            }
        }
        ASSERT_EQ(answers, each * clients.size());
    }

    test::CountedEndpoint at_server;
    test::CountedEndpoint at_client;
    std::optional<Running> running;
    std::vector<Client> clients;
};

TEST_P(PacketLanes, PostThePiecesOfALongMessageTogether) {
    CountedConversation both{options(), {}, 1};
    ASSERT_NO_FATAL_FAILURE(both.call(15'000));
    for (const test::Posts* const posts : {&both.at_client.posts, &both.at_server.posts}) {
        EXPECT_GE(posts->send, 4U);
        EXPECT_LT(posts->doorbells, posts->send);
    }
}

TEST_P(PacketLanes, PostWhatTheyGatherWithOneDoorbell) {
    ClientOptions of_client;
    of_client.gathers_requests = true;
    constexpr std::size_t clients = 3;
    constexpr std::uint64_t each = 8;
    CountedConversation both{options(), of_client, clients};
    ASSERT_NO_FATAL_FAILURE(both.call(64, each));
    // What a timer adds, where the machine is slow, has doorbells of its own.
    const auto saved = [](const test::Posts& posts) { return posts.send - posts.doorbells; };
    EXPECT_GE(both.at_client.posts.send, clients * each);
    EXPECT_GE(saved(both.at_client.posts), clients * (each - 1)) << "one for each client is left";
}

TEST_P(PacketLanes, GoOnWithALongAnswerWhileTheirServerRests) {
    test::CountedEndpoint at_server;
    test::CountedEndpoint at_client;
    ServerOptions chosen = options();
    chosen.endpoint = at_server.endpoint;
    chosen.tuning.max_waiting_bytes = 4096;
    chosen.patience = std::chrono::minutes{10};  // who is dropped has the rest posted, too
    Server server = Server::listen(unique_address(), chosen);
    ClientOptions own = options_of_client();
    own.endpoint = at_client.endpoint;
    own.ring_bytes = 4096;
    Client client =
        join_in_turns(server, [&] { return Client::connect(server.address(), own, patience()); });
    const Deadline deadline = patience();
    // So long that nothing is taken from its client until it has read most of it.
    const Bytes longest = content(1, 2, 128 << 10);
    const Handler answering = [&](Request& request) { (void)request.answer(longest); };
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(content(1, 1, 64), id), Status::ok) << client.failure();
    while (server.turn(answering) == 0 && !deadline.expired()) {
    }
    // The last one has nothing to do, and posts what there is room for.
    while (server.turn(answering) != 0 && !deadline.expired()) {
    }
    // The client tells that it has that, and then does nothing: it has no timer but in its calls.
    const std::uint64_t told = at_client.posts.send;
    while (at_client.posts.send == told && !deadline.expired()) {
        ASSERT_EQ(client.poll([](const Answer&) {}), Status::empty) << client.failure();
    }
    const std::uint64_t before = at_server.posts.send;
    // What has found room ends it, as a message would.
    EXPECT_EQ(server.rest(deadline), Status::ok);
    EXPECT_GT(at_server.posts.send, before);
}

TEST_P(PacketLanes, LetGoOfAClientThatGoesWhileManyAnswersWaitForIt) {
    for (const bool in_good_order : {false, true}) {
        ServerOptions chosen = options();
        chosen.tuning.max_waiting_bytes = 4096;
        Running running{chosen,
                        [](Request& request) { (void)request.answer(content(1, 2, 256 << 10)); }};
        std::optional<Client> client{running.connect(options_of_client())};
        for (std::uint64_t i = 0; i < 4; ++i) {
            std::uint64_t id = 0;
            ASSERT_EQ(client->submit(content(1, i, 64), id), Status::ok) << client->failure();
        }
        const Deadline deadline = patience();
        while (running.server.stats().answers == 0 && !deadline.expired()) {
            std::this_thread::yield();
        }
        if (in_good_order) (void)client->close(Deadline::now());
        client.reset();
        while (running.server.stats().clients != 0 && !deadline.expired()) {
            std::this_thread::yield();
        }
        EXPECT_EQ(running.server.stats().clients, 0U);
        EXPECT_EQ(running.server.stats().misbehaved, 0U);
    }
}

TEST_P(PacketLanes, PostAsTheyWereTold) {
    constexpr std::uint64_t calls = 16;
    for (const bool inlines : {true, false}) {
        for (const bool selectively : {true, false}) {
            const PostingHabits habits{.inlines = inlines, .signals_selectively = selectively};
            ServerOptions of_server = options();
            of_server.tuning.posting = habits;
            ClientOptions of_client;
            of_client.tuning.posting = habits;
            CountedConversation both{of_server, of_client, 1};
            for (std::uint64_t i = 0; i < calls; ++i) ASSERT_NO_FATAL_FAILURE(both.call(64));
            for (const test::Posts* const posts : {&both.at_client.posts, &both.at_server.posts}) {
                // Where a call takes time there may be packets of a timer, too.
                EXPECT_GE(posts->send, calls);
                EXPECT_EQ(posts->inlined, inlines ? posts->send.load() : 0);
                // Of a queue pair that others use, too, each is.
                const bool signals_each =
                    !selectively || (is_ud() && posts == &both.at_server.posts);
                if (signals_each) {
                    EXPECT_EQ(posts->signaled, posts->send);
                } else {
                    EXPECT_LT(posts->signaled, posts->send);
                }
            }
        }
    }
}

TEST_P(PacketLanes, CarryTwoHundredClientsOfOneServer) {
    Running running{options()};
    std::vector<Client> crowd;
    constexpr std::size_t count = 200;
    ClientOptions small;
    small.ring_bytes = 4096;
    for (std::size_t i = 0; i < count; ++i) crowd.push_back(running.connect(small));
    Bytes answer;
    for (std::uint64_t round = 0; round < 3; ++round) {
        // All have requests under way at one time, and each gets its own answers.
        for (std::size_t i = 0; i < count; ++i) {
            for (std::uint64_t k = 0; k < 3; ++k) {
                std::uint64_t id = 0;
                ASSERT_EQ(crowd[i].submit(content(i, round * 3 + k, 50 + i), id), Status::ok);
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            for (std::uint64_t k = 0; k < 3; ++k) {
                bool is_right = false;
                ASSERT_EQ(crowd[i].wait(
                              [&](const Answer& one) {
                                  is_right = std::ranges::equal(one.payload,
                                                                content(i, round * 3 + k, 50 + i));
                              },
                              patience()),
                          Status::ok)
                    << crowd[i].failure();
                EXPECT_TRUE(is_right) << i;
            }
        }
    }
    for (Client& each : crowd) EXPECT_EQ(each.close(patience()), Status::ok);
    const Deadline deadline = patience();
    while (running.server.stats().clients != 0 && !deadline.expired()) std::this_thread::yield();
    running.stop();
    EXPECT_EQ(running.server.stats().requests, count * 9);
    EXPECT_EQ(running.server.stats().misbehaved, 0U);
}

TEST_P(PacketLanes, SayWhoMayDoWhat) {
    Running running{options()};
    const Client client = running.connect();
    EXPECT_THAT(client.explain(), testing::HasSubstr("messages over packets"));
    running.stop();
    const std::string text = running.server.explain();
    EXPECT_EQ(text.find("for trusted fabrics") != std::string::npos, is_ud()) << text;
}

/// A queue pair of a stranger, who knows where the server's is, and its Q_Key.
class Stranger {
  public:
    explicit Stranger(const verbs::DatagramDestination& to)
        : endpoint_{connect::Endpoint::open()},
          completions_{endpoint_->context().create_completion_queue(256)},
          memory_{endpoint_->protection_domain().allocate(8192, verbs::Access::none)},
          pair_{endpoint_->protection_domain().create_datagram_queue_pair(
              {.send_queue = &completions_,
               .receive_queue = &completions_,
               .max_send_requests = 64,
               .signal_all = true})},
          to_{to} {
        pair_.start(endpoint_->port(), 1);
        // The server is on this host, as its own port is.
        verbs::QueuePairAddress host{.number = to.queue_pair};
        verbs::PathOptions path{.port = endpoint_->port(), .gid_index = endpoint_->gid_index()};
        host.lid = endpoint_->context().port(endpoint_->port()).lid;
        if (path.gid_index >= 0) {
            host.has_gid = true;
            host.gid = endpoint_->context().gid(endpoint_->port(), path.gid_index);
        }
        way_ = endpoint_->protection_domain().create_address_handle(host, path);
        to_.way = &way_;
    }
    void say(std::span<const std::byte> what, std::uint32_t key) {
        std::memcpy(memory_.data(), what.data(), what.size());
        const ibv_sge slice = memory_.slice(0, what.size());
        to_.key = key;
        const Deadline deadline = patience();
        while (pair_.post(verbs::SendTo{.from = {&slice, what.empty() ? 0U : 1U}, .to = to_}) !=
                   0 &&
               !deadline.expired()) {
            drain();
        }
        drain();
    }

  private:
    void drain() {
        verbs::Completion batch[16];
        while (completions_.poll(batch) > 0) {
        }
    }
    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::CompletionQueue completions_;
    verbs::RegisteredBuffer memory_;
    verbs::DatagramQueuePair pair_;
    verbs::AddressHandle way_;
    verbs::DatagramDestination to_;
};

TEST(DatagramStrangers, TakeAReceiveForAMomentAndNothingElse) {
    chosen_way() = {.polling = Polling::dense, .transport = Transport::ud};
    ServerOptions chosen = options_of_server(chosen_way());
    chosen.tuning.shared_receives = 64;
    Running running{chosen};
    Client client = running.connect();
    const verbs::DatagramDestination server = client.link().destination();
    std::atomic<bool> is_over{false};
    std::thread stranger{[&] {
        Stranger hostile{server};
        std::minstd_rand random{5};
        std::uint64_t sent = 0;
        while (!is_over || sent < 2000) {
            PacketHead head{.token = (std::uint64_t{random()} << 32) | (random() % 4),
                            .received = random(),
                            .sequence = static_cast<std::uint32_t>(random()),
                            .acknowledged = static_cast<std::uint32_t>(random()),
                            .room = static_cast<std::uint16_t>(random()),
                            .length = static_cast<std::uint16_t>(random()),
                            .flags = static_cast<std::uint16_t>(random() % 32)};
            Bytes packet(std::max<std::size_t>(random() % 4097, sizeof head));
            std::memcpy(packet.data(), &head, sizeof head);
            if (random() % 4 == 0) packet.resize(random() % sizeof head);
            // A foreign Q_Key now and then.
            hostile.say(packet, random() % 8 == 0 ? server.key ^ 1 : server.key);
            if (++sent % 16 == 0) std::this_thread::yield();
        }
    }};
    Bytes answer;
    for (std::uint64_t number = 0; number < 1000; ++number) {
        const Bytes request = content(1, number, 100 + number % 5000);
        ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok) << client.failure();
        ASSERT_EQ(answer, request);
    }
    is_over = true;
    stranger.join();
    running.stop();
    chosen_way() = {};
    EXPECT_EQ(running.server.stats().requests, 1000U);
    EXPECT_EQ(running.server.stats().clients, 1U);
    EXPECT_THAT(running.server.explain(), testing::Not(testing::HasSubstr("(0 were nobody's)")));
}

TEST(DatagramPool, ServesEveryClientThoughItsReceivesAreFullOfWhatCameOutOfOrder) {
    chosen_way() = {.polling = Polling::dense, .transport = Transport::ud};
    ServerOptions chosen = options_of_server(chosen_way());
    chosen.tuning.shared_receives = 16;
    Server server = Server::listen(unique_address(), chosen);
    const auto join = [&] {
        return join_in_turns(server, [&] {
            return Client::connect(server.address(), options_of_client(), patience());
        });
    };
    constexpr std::uint64_t receives = 16;
    constexpr std::uint64_t crowd = 8;
    constexpr std::uint64_t each = 3;
    Client first = join();
    std::vector<Client> clients;
    for (std::uint64_t i = 0; i < crowd; ++i) clients.push_back(join());
    const auto ask = [&](Client& client, std::uint64_t whose, std::uint64_t number) {
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(content(whose, number, 64), id), Status::ok) << client.failure();
    };
    // The first one fills all receives, so the first request of each of the others is lost, and
    // the next ones, for which there is memory then, come out of order.
    for (std::uint64_t i = 0; i < receives; ++i) ASSERT_NO_FATAL_FAILURE(ask(first, crowd, i));
    for (std::uint64_t i = 0; i < crowd; ++i) ASSERT_NO_FATAL_FAILURE(ask(clients[i], i, 0));
    while (server.turn(echo) != 0) {
    }
    for (std::uint64_t number = 1; number < each; ++number) {
        for (std::uint64_t i = 0; i < crowd; ++i)
            ASSERT_NO_FATAL_FAILURE(ask(clients[i], i, number));
    }
    std::uint64_t answers = 0;
    const Deadline deadline = patience();
    while (answers != crowd * each && !deadline.expired()) {
        (void)server.turn(echo);
        for (Client& client : clients) {
            (void)client.poll([&](const Answer& answer) {
                EXPECT_EQ(answer.outcome, Outcome::ok);
                ++answers;
            });
        }
    }
    EXPECT_EQ(answers, crowd * each);
    chosen_way() = {};
}

TEST(ServersOfAllTransports, ServeTheirClientsAtOnce) {
    for (const Receives receives : {Receives::own, Receives::shared}) {
        ServerOptions options;
        options.transports = connect::Transports::all();
        options.tuning.receives = receives;
        options.protection = Protection::trusted;
        Running running{options};
        std::vector<Client> clients;
        for (const Transport transport :
             {Transport::rc, Transport::uc, Transport::ud, Transport::tcp, Transport::rc}) {
            ClientOptions chosen;
            chosen.transport = transport;
            if (clients.size() == 4) chosen.requests = chosen.answers = Transfer::send;
            clients.push_back(Client::connect(running.server.address(), chosen, patience()));
        }
        Bytes answer;
        for (std::uint64_t number = 0; number < 200; ++number) {
            for (std::size_t whose = 0; whose < clients.size(); ++whose) {
                const Bytes request = content(whose, number, number * 31 % 3000);
                ASSERT_EQ(clients[whose].call(request, answer, patience()), Outcome::ok)
                    << clients[whose].failure();
                ASSERT_EQ(answer, request);
            }
        }
        for (Client& client : clients) EXPECT_EQ(client.close(patience()), Status::ok);
        running.stop();
        EXPECT_EQ(running.server.stats().misbehaved, 0U);
    }
}

/// A client that knows its token, and lies.
TEST(PacketLiars, LoseTheirConnectionAndNoOtherIsTouched) {
    chosen_way() = {.polling = Polling::dense, .transport = Transport::uc};
    Running running{options_of_server(chosen_way())};
    Client honest = running.connect();
    Bytes answer;
    for (int lie = 0; lie < 4; ++lie) {
        ChannelOptions options;
        options.endpoint = connect::Endpoint::shared();
        connect::LinkOptions how = link_options(options, server_service);
        how.transport = Transport::uc;
        connect::Link link = connect::connect(running.server.address(), how, patience());
        const PacketFacts mine{.token = 17, .ring_bytes = 4096, .room = 16, .packet_bytes = 1024};
        const auto told = link.exchange(connect::bytes_of(mine), patience());
        const auto theirs = connect::facts_in<PacketFacts>(told, "lie", link.peer_name());
        const auto first = static_cast<std::uint32_t>(theirs.token >> 32);
        PacketHead head{.token = theirs.token,
                        .sequence = first,
                        .acknowledged = 0,  // of 17 >> 32
                        .room = 16,
                        .length = 40,
                        .flags = packet_whole};
        if (lie == 0) head.acknowledged = 5;
        if (lie == 1) head.sequence = first + theirs.room;
        if (lie == 2) head.flags = packet_data | packet_last;
        // 3: a packet that is right, and a message that is none of a session.
        auto memory = link.allocate(4096, verbs::Access::none);
        std::memcpy(memory.data(), &head, sizeof head);
        std::memset(memory.data() + sizeof head, 0xff, 40);
        const ibv_sge slice = memory.slice(0, sizeof head + 40);
        ASSERT_EQ(link.queue_pair().post(
                      verbs::Send{.from = {&slice, 1}, .flags = verbs::SendFlags::signaled}),
                  0);
        const Deadline deadline = patience();
        while (link.peer_now() == connect::PeerState::alive && !deadline.expired()) {
            std::this_thread::yield();
        }
        EXPECT_NE(link.peer_now(), connect::PeerState::alive) << "lie " << lie;
        ASSERT_EQ(honest.call(bytes_of("honest"), answer, patience()), Outcome::ok);
    }
    running.stop();
    chosen_way() = {};
}

}  // namespace
}  // namespace millrace::message
