// What servers and clients do for several messages at once: servers tell handlers what comes next,
// and both post together what they gathered. Nothing may be lost by it, or come late for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "message/serving.hpp"
#include "support/counted_posts.hpp"
#include "support/readable.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

class ServersInBatches : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServersInBatches, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

[[nodiscard]] bool is_set_to(const char* variable, std::string_view begin) {
    const char* const value = std::getenv(variable);
    return value != nullptr && std::string_view{value}.starts_with(begin);
}

/// Answers what it gets, and keeps what it was told of and what came.
struct Expecting {
    void expect(std::uint16_t procedure, std::span<const std::byte> payload) noexcept {
        told.insert({procedure, {payload.begin(), payload.end()}});
    }
    void operator()(Request& request) {
        const std::span<const std::byte> payload = request.payload();
        came.insert({request.procedure(), {payload.begin(), payload.end()}});
        (void)request.answer(payload);
    }
    std::set<std::pair<std::uint16_t, Bytes>> told;
    std::set<std::pair<std::uint16_t, Bytes>> came;
};

/// Three clients talk to a server that looks ahead at so many.
Expecting told_with(ServerOptions options, std::uint32_t look_ahead) {
    options.look_ahead = look_ahead;
    Server server = Server::listen(unique_address(), std::move(options));
    Expecting handler;
    test::ServingThread<Server> serving{
        server, [&](Server& its) { return its.serve(handler, Deadline::never()); }};
    {
        std::vector<std::jthread> clients;
        for (std::uint64_t whose = 0; whose < 3; ++whose) {
            clients.emplace_back([&server, whose] {
                Client client = Client::connect(server.address(), options_of_client(), patience());
                talk(client, whose, 200, 300, static_cast<unsigned>(whose + 1));
            });
        }
    }
    serving.stop();
    return handler;
}

TEST_P(ServersInBatches, TellAHandlerWhatComesIfTheyLookAhead) {
    const Expecting handler = told_with(options(), 4);
    EXPECT_FALSE(handler.told.empty());
    EXPECT_TRUE(std::ranges::includes(handler.came, handler.told));
    EXPECT_TRUE(told_with(options(), 0).told.empty());
}

/// The most that a handler was told of and had not got yet.
struct LookingAhead {
    void expect(std::uint16_t, std::span<const std::byte> payload) noexcept {
        told.insert(text_of(payload));
        most = std::max(most, told.size());
    }
    void operator()(Request& request) {
        if (told.erase(text_of(request.payload())) == 0) ++untold;
        (void)request.answer(request.payload());
    }
    std::multiset<std::string> told{};
    std::size_t most = 0;
    std::size_t untold = 0;
};

TEST(ServersThatLookAhead, TellOfAsManyAsTheyMayBeforeTheFirst) {
    if (std::getenv("MILLRACE_SOFT_MODE") != nullptr || is_set_to("MILLRACE_CARRIER", "post")) {
        GTEST_SKIP() << "a request may land while the server looks";
    }
    constexpr std::size_t clients_in_all = 8;
    constexpr std::uint32_t look_ahead = 3;
    for (const Polling polling : {Polling::flag, Polling::dense}) {
        ServerOptions options;
        options.polling = polling;
        options.look_ahead = look_ahead;
        Running running{options};
        std::vector<Client> clients;
        for (std::size_t i = 0; i < clients_in_all; ++i) clients.push_back(running.connect());
        running.stop();
        for (std::uint64_t i = 0; i < clients_in_all; ++i) {
            std::uint64_t id = 0;
            ASSERT_EQ(clients[i].submit(content(i, 1, 40), id), Status::ok);
        }
        LookingAhead handler;
        EXPECT_EQ(running.server.turn(handler), clients_in_all);
        // Wherever the lap begins, one of its two parts has more than look_ahead clients.
        EXPECT_EQ(handler.most, look_ahead);
        EXPECT_EQ(handler.untold, 0U);
        EXPECT_TRUE(handler.told.empty());
    }
}

TEST_P(ServersInBatches, ServeEveryClientThoughInGroups) {
    for (const std::chrono::nanoseconds slice : {1ns, 100'000ns, 1'000'000'000ns}) {
        ServerOptions chosen = options();
        chosen.group_clients = 2;
        chosen.group_slice = slice;
        chosen.look_ahead = 3;
        Running running{chosen};
        std::vector<std::jthread> clients;
        for (std::uint64_t whose = 0; whose < 5; ++whose) {
            clients.emplace_back([&, whose] {
                Client client = running.connect(options_of_client());
                talk(client, whose, 100, 400, static_cast<unsigned>(whose + 1));
                EXPECT_EQ(client.close(patience()), Status::ok);
            });
        }
        clients.clear();
    }
}

/// Four clients of a server by groups of two, which turns when it is told to: who is served.
class ServersOfGroups : public testing::Test {
  protected:
    void SetUp() override {
        if (std::getenv("MILLRACE_SOFT_MODE") != nullptr) {
            GTEST_SKIP() << "a request may land while the server looks";
        }
    }
    void serve_by(std::chrono::nanoseconds slice, Polling polling) {
        clients_.clear();
        ServerOptions options;
        options.polling = polling;
        options.group_clients = 2;
        options.group_slice = slice;
        running_.emplace(options);
        for (std::size_t i = 0; i < 4; ++i) {
            clients_.push_back(running_->connect());
            Bytes answer;
            ASSERT_EQ(clients_[i].call(content(i, 0, 40), answer, patience()), Outcome::ok);
        }
        running_->stop();
        EXPECT_NE(running_->server.explain().find("in groups of 2"), std::string::npos);
    }
    void ask(std::uint64_t whose) {
        std::uint64_t id = 0;
        ASSERT_EQ(clients_[whose].submit(content(whose, 1, 40), id), Status::ok);
    }
    /// Those who were served in one turn, in order. Their answers are taken.
    std::vector<std::uint64_t> turn() {
        std::set<std::string> came;
        const auto handler = [&](Request& request) {
            came.insert(text_of(request.payload()));
            (void)request.answer(request.payload());
        };
        const std::size_t requests = running_->server.turn(handler);
        EXPECT_EQ(came.size(), requests) << "nobody twice";
        std::vector<std::uint64_t> served;
        for (std::uint64_t whose = 0; whose < clients_.size(); ++whose) {
            const Bytes asked = content(whose, 1, 40);
            if (!came.contains(text_of(asked))) continue;
            served.push_back(whose);
            EXPECT_EQ(clients_[whose].wait([](const Answer&) {}, patience()), Status::ok);
        }
        return served;
    }

    std::optional<Running> running_;
    std::vector<Client> clients_;
};

TEST_F(ServersOfGroups, StayWithOneForItsSliceAndLeaveItWhenItHasNothing) {
    for (const Polling polling : {Polling::flag, Polling::dense}) {
        const auto slice = 1s;
        const auto begin = base::Clock::now();
        serve_by(slice, polling);
        for (std::uint64_t whose = 0; whose < 4; ++whose) ask(whose);
        std::vector<std::uint64_t> served = turn();
        ASSERT_EQ(served.size(), 2U);
        std::int64_t changes = 0;
        for (int i = 0; i < 100; ++i) {
            const std::vector<std::uint64_t> before = served;
            for (const std::uint64_t whose : before) ask(whose);
            served = turn();
            ASSERT_EQ(served.size(), 2U);
            if (served != before) ++changes;
        }
        EXPECT_LE(changes, (base::Clock::now() - begin) / slice);
        // None of these asks again: it is the others' turn, though their slice has not begun.
        const std::vector<std::uint64_t> others = turn();
        ASSERT_EQ(others.size(), 2U);
        EXPECT_NE(others, served);
        EXPECT_TRUE(turn().empty());
        ask(3);
        EXPECT_EQ(turn(), std::vector<std::uint64_t>{3});
        ask(0);
        EXPECT_EQ(turn(), std::vector<std::uint64_t>{0});
    }
}

TEST_F(ServersOfGroups, GoOnToTheNextOneBehindASlice) {
    for (const Polling polling : {Polling::flag, Polling::dense}) {
        serve_by(1ns, polling);
        for (std::uint64_t whose = 0; whose < 4; ++whose) ask(whose);
        std::vector<std::uint64_t> served = turn();
        ASSERT_EQ(served.size(), 2U);
        for (int i = 0; i < 20; ++i) {
            for (const std::uint64_t whose : served) ask(whose);
            const std::vector<std::uint64_t> next = turn();
            ASSERT_EQ(next.size(), 2U);
            EXPECT_NE(next, served) << "though they have asked again";
            served = next;
        }
    }
}

TEST_P(ServersInBatches, AnswerRightWhereBothSidesGather) {
    // By a wire there is no carrier to choose.
    const std::size_t carriers = GetParam().has_rings() ? 2 : 1;
    for (std::size_t i = 0; i < carriers; ++i) {
        constexpr ring::Carrier chosen_of[] = {ring::Carrier::automatic, ring::Carrier::post};
        ServerOptions chosen = options();
        chosen.gather_turns = 8;
        chosen.ring_bytes = 2048;
        chosen.carrier = chosen_of[i];
        Running running{chosen};
        ClientOptions gathering;
        gathering.gathers_requests = true;
        gathering.ring_bytes = 2048;
        gathering.carrier = chosen_of[i];
        std::vector<std::jthread> clients;
        for (std::uint64_t whose = 0; whose < 3; ++whose) {
            clients.emplace_back([&, whose] {
                Client client = running.connect(gathering);
                talk(client, whose, 300, 400, static_cast<unsigned>(whose + 1));
                Bytes answer;
                const Bytes request = content(whose, 1000, 50);
                EXPECT_EQ(client.call(request, answer, patience()), Outcome::ok);
                EXPECT_EQ(answer, request);
                EXPECT_EQ(client.close(patience()), Status::ok);
            });
        }
        clients.clear();
    }
}

TEST_P(ServersInBatches, ResumeSessionsThoughTheyGather) {
    ServerOptions chosen = options();
    chosen.gather_turns = 64;
    if (GetParam().has_rings()) chosen.carrier = ring::Carrier::post;
    Running running{chosen};
    ClientOptions asking = resuming();
    asking.carrier = chosen.carrier;
    Breakable one{running.server.address(), asking};
    Client& client = one.client;
    Bytes answer;
    ASSERT_EQ(client.call(content(1, 0, 50), answer, patience()), Outcome::ok);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        one.cut();
        // The welcome to the new connection goes by another place than its hello came by.
        const Deadline deadline = patience();
        while (client.stats().resumed != round && !deadline.expired()) {
            ASSERT_EQ(client.wait([](const Answer&) {}, deadline), Status::empty);
        }
        ASSERT_EQ(client.stats().resumed, round);
        ASSERT_EQ(client.call(content(1, round, 50), answer, patience()), Outcome::ok);
        EXPECT_EQ(answer, content(1, round, 50));
    }
}

/// WRITEs that `count` requests, all submitted before the server looks, and their answers take.
std::pair<std::uint64_t, std::uint64_t> writes_of(std::uint64_t count, bool gathers) {
    test::CountedEndpoint of_server;
    test::CountedEndpoint of_client;
    ServerOptions options;
    options.polling = Polling::flag;
    options.carrier = ring::Carrier::post;
    options.endpoint = of_server.endpoint;
    options.gather_turns = gathers ? 64 : 1;
    Running running{options};
    ClientOptions asking;
    asking.carrier = ring::Carrier::post;
    asking.endpoint = of_client.endpoint;
    asking.gathers_requests = gathers;
    Client client = running.connect(asking);
    running.stop();
    Server& server = running.server;
    of_server.posts.clear();
    of_client.posts.clear();
    std::uint64_t id = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        EXPECT_EQ(client.submit(content(1, i, 40), id), Status::ok);
    }
    EXPECT_EQ(client.poll([](const Answer&) {}), Status::empty);
    std::uint64_t served = 0;
    const Deadline deadline = patience();
    while (served < count && !deadline.expired()) served += server.turn(echo);
    (void)server.turn(echo);  // in vain, and so what was gathered goes
    for (std::uint64_t answered = 0; answered < count; ++answered) {
        EXPECT_EQ(client.wait([](const Answer&) {}, patience()), Status::ok);
    }
    return {of_client.posts.write, of_server.posts.write};
}

TEST(ServersThatGather, PostFewerWrites) {
    if (is_set_to("MILLRACE_SOFT_MODE", "strict")) {
        GTEST_SKIP() << "where bytes of a WRITE land in any order each frame is two";
    }
    constexpr std::uint64_t count = 16;
    const auto [requests, answers] = writes_of(count, false);
    EXPECT_GE(requests, count);
    EXPECT_GE(answers, count);
    const auto [gathered_requests, gathered_answers] = writes_of(count, true);
    EXPECT_LE(gathered_requests, requests - count + 2);
    EXPECT_LE(gathered_answers, answers - count + 2);
}

/// Takes answers until the server has closed: how many.
std::uint64_t answers_until_close(Client& client) {
    std::uint64_t count = 0;
    Status status = Status::ok;
    while ((status = client.wait([](const Answer&) {}, patience())) == Status::ok) ++count;
    Outcome outcome = Outcome::closed;
    if (status == Status::empty) {
        // All is answered: whether it has closed only another request tells.
        Bytes answer;
        while ((outcome = client.call({}, answer, patience())) == Outcome::draining) ++count;
    } else {
        EXPECT_EQ(status, Status::closed);
    }
    EXPECT_EQ(outcome, Outcome::closed) << client.failure();
    return count;
}

/// Three clients have asked when the server closes, or drains and closes.
void expect_all_answers(const ServerOptions& options, bool drains) {
    Running running{options};
    std::vector<Client> clients;
    for (int i = 0; i < 3; ++i) {
        ClientOptions asking;
        asking.carrier = options.carrier;
        clients.push_back(running.connect(asking));
    }
    running.stop();
    for (std::uint64_t i = 0; i < 3; ++i) {
        for (Client& client : clients) {
            std::uint64_t id = 0;
            ASSERT_EQ(client.submit(content(1, i, 40), id), Status::ok);
        }
    }
    std::vector<std::uint64_t> counts(clients.size());
    std::vector<std::jthread> readers;
    for (std::size_t i = 0; i < clients.size(); ++i) {
        readers.emplace_back([&, i] { counts[i] = answers_until_close(clients[i]); });
    }
    if (drains) {
        EXPECT_EQ(running.server.drain(patience()), Status::ok);
    }
    EXPECT_EQ(running.server.close(patience()), Status::ok);
    readers.clear();
    std::uint64_t got = 0;
    for (const std::uint64_t count : counts) got += count;
    // What came too late for the server to take has no answer.
    EXPECT_EQ(got, running.server.stats().answers);
}

TEST_P(ServersInBatches, LoseNoAnswerThatTheyGatheredWhenTheyClose) {
    ServerOptions chosen = options();
    chosen.gather_turns = 4;
    if (GetParam().has_rings()) chosen.carrier = ring::Carrier::post;
    for (int i = 0; i < 5; ++i) {
        expect_all_answers(chosen, false);
        expect_all_answers(chosen, true);
    }
}

}  // namespace
}  // namespace millrace::message
