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
