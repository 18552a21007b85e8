// The other end of a server's places: what clients do between two of its steps, and what is left of
// a client whose place another one has. With a mistake made in the copies, one of these fails.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "message/hostile.hpp"
#include "message/serving.hpp"
#include "mutants/seam.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;

/// A server that looks at a ring where its byte says so, and nowhere else, once its clients are
/// there: of a hello no byte tells.
class Places : public testing::Test {
  protected:
    ~Places() override {
        test::act = {};
        test::is_never_due = false;
    }
    static ServerOptions dense(Protection protection = Protection::domains) {
        ServerOptions options;
        options.polling = Polling::dense;
        options.protection = protection;
        return options;
    }
    /// A client, while this thread serves by `turns`.
    template <class Turns>
    static Client connect(const Server& server, Turns&& turns) {
        test::is_never_due = false;
        std::optional<Client> client;
        std::atomic<bool> is_in{false};
        std::thread thread{[&] {
            client.emplace(Client::connect(server.address(), {}, patience()));
            is_in = true;
        }};
        const Deadline deadline = patience();
        while (!is_in && !deadline.expired()) turns();
        thread.join();
        test::is_never_due = true;
        return std::move(*client);
    }
    static Client connect(Server& server) {
        return connect(server, [&] { (void)server.turn(echo); });
    }
    /// How many answers came of a number of turns that is enough for all that the server knows of.
    static std::size_t answers(Server& server, Client& client) {
        std::size_t count = 0;
        for (int turn = 0; turn < 20; ++turn) {
            (void)server.turn(echo);
            while (client.poll([](const Answer& answer) {
                EXPECT_EQ(answer.outcome, Outcome::ok);
            }) == Status::ok) {
                ++count;
            }
        }
        return count;
    }
    static std::uint64_t submit(Client& client) {
        std::uint64_t id = 0;
        EXPECT_EQ(client.submit(content(1, 1, 40), id), Status::ok) << client.failure();
        return id;
    }
};

TEST_F(Places, FindWhatComesBeforeTheExchange) {
    Server server = Server::listen(unique_address(), dense());
    Client client = connect(server);
    (void)answers(server, client);
    (void)submit(client);
    test::when_at("exchange", [&] { (void)submit(client); });
    EXPECT_EQ(answers(server, client), 2U);
    EXPECT_FALSE(test::act.run) << "nothing was taken by a byte";
}

TEST_F(Places, FindWhatIsLaidBehindALook) {
    Server server = Server::listen(unique_address(), dense());
    Client client = connect(server);
    (void)answers(server, client);
    test::when_at("frame", [&] {
        for (int turn = 0; turn < 20; ++turn) (void)server.turn(echo);
    });
    (void)submit(client);
    EXPECT_EQ(answers(server, client), 1U);
}

TEST_F(Places, AreGivenWhenNothingOfTheFormerClientCanArrive) {
    Running running{dense()};
    Hostile former{running.server};
    (void)former.join();
    former.send(Bytes(16, std::byte{0xff}));  // of no session: it has to go
    const Deadline deadline = patience();
    while (running.server.stats().misbehaved == 0 && !deadline.expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    Channel::Core& core = former.core();
    const ibv_sge byte = core.memory.slice(0, 1);
    EXPECT_NE(end_of(former, verbs::Write{.from = {&byte, 1}, .to = core.peer_ring}),
              IBV_WC_SUCCESS);
}

TEST_F(Places, TakeNoAnswersForTheFormerClient) {
    Server server = Server::listen(unique_address(), dense());
    std::vector<Reply> replies;
    const auto keep = [&](Request& request) { replies.push_back(request.defer()); };
    const auto turns = [&] { (void)server.turn(keep); };
    {
        Client former = connect(server, turns);
        (void)submit(former);
        while (replies.empty()) turns();
    }
    const Deadline deadline = patience();
    while (server.stats().left == 0 && !deadline.expired()) turns();
    Client next = connect(server, turns);
    (void)submit(next);
    while (replies.size() == 1 && !deadline.expired()) turns();
    ASSERT_EQ(replies.size(), 2U);
    EXPECT_EQ(replies[0].client().place, replies[1].client().place);
    EXPECT_EQ(replies[0].answer(bytes_of("to the former")), Status::ok);
    for (int turn = 0; turn < 20; ++turn) turns();
    EXPECT_EQ(next.poll([](const Answer& answer) { ADD_FAILURE() << text_of(answer.payload); }),
              Status::empty);
    EXPECT_EQ(replies[1].answer(bytes_of("to the next")), Status::ok);
    for (int turn = 0; turn < 20; ++turn) turns();
    EXPECT_EQ(
        next.poll([](const Answer& answer) { EXPECT_EQ(text_of(answer.payload), "to the next"); }),
        Status::ok);
}

/// Two servers of a group, by turns of this thread.
class Pair {
  public:
    explicit Pair(const ServerOptions& options)
        : group{ServerGroup::listen(unique_address(), options, {.count = 2})} {}
    template <class Handler>
    void turn(Handler& handler) {
        for (std::size_t i = 0; i < group.size(); ++i) (void)group.server(i).turn(handler);
    }
    /// As long as the other server needs to hear of something, and often enough, however long a
    /// busy machine takes for one of them.
    template <class Handler>
    void turn_for_long(Handler& handler) {
        const Deadline deadline = Deadline::after(std::chrono::milliseconds{20});
        for (int turns = 0; turns < 100 || !deadline.expired(); ++turns) turn(handler);
    }
    ServerGroup group;
};

TEST_F(Places, AreLeftWhenNothingIsOwed) {
    Pair pair{dense()};
    std::vector<Reply> replies;
    const auto keep = [&](Request& request) { replies.push_back(request.defer()); };
    Client client = connect(pair.group.server(0), [&] { pair.turn(keep); });
    (void)submit(client);
    const Deadline deadline = patience();
    while (replies.empty() && !deadline.expired()) pair.turn(keep);
    ASSERT_EQ(replies.size(), 1U);
    pair.group.move(replies[0].client(), 1 - replies[0].client().server);
    pair.turn_for_long(keep);
    EXPECT_EQ(replies[0].answer(bytes_of("later")), Status::ok);
    pair.turn_for_long(keep);
    EXPECT_EQ(
        client.poll([](const Answer& answer) { EXPECT_EQ(text_of(answer.payload), "later"); }),
        Status::ok);
    while (pair.group.stats().moved == 0 && !deadline.expired()) {
        pair.group.move(replies[0].client(), 1 - replies[0].client().server);
        pair.turn(keep);
    }
    EXPECT_EQ(pair.group.stats().moved, 1U);
}

TEST_F(Places, AreLookedAtUntilTheirClientKnowsThem) {
    Pair pair{dense()};
    std::optional<ClientId> who;
    const auto answer = [&](Request& request) {
        who = request.client();
        echo(request);
    };
    Client client = connect(pair.group.server(0), [&] { pair.turn(answer); });
    (void)submit(client);
    const Deadline deadline = patience();
    while (!who.has_value() && !deadline.expired()) pair.turn(answer);
    ASSERT_TRUE(who.has_value());
    pair.group.move(*who, 1 - who->server);
    while (pair.group.stats().moved == 0 && !deadline.expired()) pair.turn(answer);
    pair.turn_for_long(answer);
    // It has read nothing, so it sets its former byte.
    (void)submit(client);
    for (int turn = 0; turn < 20; ++turn) pair.turn(answer);
    EXPECT_EQ(pair.group.stats().requests, 2U);
    EXPECT_EQ(client.link().peer_now(), connect::PeerState::alive);
}

TEST_F(Places, AreKeptUntilTheirClientKnowsAnother) {
    std::atomic<std::uint32_t> server{2};
    RunningGroup running{2, dense(), [&](Request& request) {
                             server = request.client().server;
                             echo(request);
                         }};
    Breakable one{running.group.address(), resuming()};
    Bytes answer;
    ASSERT_EQ(one.client.call({}, answer, patience()), Outcome::ok);
    running.group.move({.place = 0, .generation = 0, .server = server}, 1 - server);
    const Deadline deadline = patience();
    while (running.group.stats().moved == 0 && !deadline.expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    one.cut();
    const std::uint32_t former = server;
    while (one.client.stats().resumed == 0 && !deadline.expired()) {
        if (one.client.call({}, answer, patience()) != Outcome::ok) break;
    }
    EXPECT_EQ(one.client.stats().resumed, 1U);
    EXPECT_EQ(one.client.call({}, answer, patience()), Outcome::ok);
    EXPECT_EQ(server, 1 - former);
    running.stop();
    EXPECT_EQ(running.group.stats().joined, 1U);
}

/// A connection to one of the servers at an address.
AnyLane meet(const connect::Address& address, std::uint32_t server) {
    ChannelOptions options;
    options.endpoint = connect::Endpoint::shared();
    connect::LinkOptions link = link_options(options, server_service);
    link.listener = server;
    return AnyLane{std::make_unique<RingLane>(
        set_up(connect::connect(address, link, patience()), options, patience()),
        std::size_t{1} << 20)};
}
Welcome answer_to(AnyLane& line, const Hello& hello) {
    EXPECT_EQ(line->send(pack(SessionHeader{.kind = SessionKind::hello}), pack(hello)), Status::ok);
    std::span<const std::byte> message;
    const Deadline deadline = patience();
    while (line->look(message) != Status::ok && !deadline.expired()) {
    }
    const auto welcome = message.size() < session_head_bytes
                             ? std::nullopt
                             : parse_welcome(message.subspan(session_head_bytes));
    EXPECT_TRUE(welcome.has_value());
    line->pass();
    return welcome.value_or(Welcome{});
}

TEST_F(Places, AreKeptForWhoHasNotHeardThatItWasMoved) {
    RunningGroup running{2, dense()};
    const Hello hello{.window = 8, .resumes = true, .max_answer = 100, .moves = true};
    AnyLane line = meet(running.group.address(), connect::LinkOptions::any_listener);
    const Welcome first = answer_to(line, hello);
    running.group.move(
        {.place = first.client, .generation = first.generation, .server = first.server},
        1 - first.server);
    const Deadline deadline = patience();
    while (running.group.stats().moved == 0 && !deadline.expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    // It has read nothing of its second welcome, so it asks for its session where it was.
    (void)shutdown(line->link().socket(), SHUT_RDWR);
    AnyLane again = meet(running.group.address(), first.server);
    Hello back = hello;
    back.session = first.session;
    const Welcome second = answer_to(again, back);
    EXPECT_TRUE(second.resumed);
    EXPECT_EQ(second.server, 1 - first.server);
    running.stop();
    EXPECT_EQ(running.group.stats().joined, 1U);
}

TEST_F(Places, LoseALookToAForeignByte) {
    Running running{dense(Protection::trusted)};
    Client victim = running.connect();
    Hostile liar{running.server};
    const Welcome welcome = liar.join();
    const ibv_sge byte = liar.core().memory.slice(0, 1);
    *liar.core().memory.data() = std::byte{1};
    const verbs::RemoteAddress its{welcome.mailbox - welcome.client, welcome.mailbox_rkey};
    for (std::uint64_t number = 0; number < 20; ++number) {
        EXPECT_EQ(end_of(liar, verbs::Write{.from = {&byte, 1}, .to = its}), IBV_WC_SUCCESS);
        Bytes answer;
        ASSERT_EQ(victim.call(content(1, number, 50), answer, patience()), Outcome::ok);
        EXPECT_EQ(answer, content(1, number, 50));
    }
    running.stop();
    EXPECT_EQ(running.server.stats().misbehaved, 0U);
}

}  // namespace
}  // namespace millrace::message
