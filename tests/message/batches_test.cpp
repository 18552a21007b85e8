// What servers and clients do for several messages at once: servers tell handlers what comes next,
// and both post together what they gathered. Nothing may be lost by it, or come late for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
