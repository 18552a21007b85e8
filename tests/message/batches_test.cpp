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

TEST_P(ServersInBatches, AnswerRightWhereTheirClientsGather) {
    // By a wire there is no carrier to choose.
    const std::size_t carriers = GetParam().has_rings() ? 2 : 1;
    for (std::size_t i = 0; i < carriers; ++i) {
        constexpr ring::Carrier chosen_of[] = {ring::Carrier::automatic, ring::Carrier::post};
        ServerOptions chosen = options();
        chosen.ring_bytes = 2048;
        chosen.tuning.carrier = chosen_of[i];
        Running running{chosen};
        ClientOptions gathering;
        gathering.gathers_requests = true;
        gathering.ring_bytes = 2048;
        gathering.tuning.carrier = chosen_of[i];
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

TEST_P(ServersInBatches, ResumeSessionsOfClientsThatGather) {
    ServerOptions chosen = options();
    if (GetParam().has_rings()) chosen.tuning.carrier = ring::Carrier::post;
    Running running{chosen};
    ClientOptions asking = resuming();
    asking.gathers_requests = true;
    asking.tuning.carrier = chosen.tuning.carrier;
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

/// WRITEs of a client that submits `count` requests before it looks for an answer.
std::uint64_t writes_of(std::uint64_t count, bool gathers) {
    test::CountedEndpoint of_server;
    test::CountedEndpoint of_client;
    ServerOptions options;
    options.polling = Polling::flag;
    options.tuning.carrier = ring::Carrier::post;
    options.endpoint = of_server.endpoint;
    Running running{options};
    ClientOptions asking;
    asking.tuning.carrier = ring::Carrier::post;
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
    for (std::uint64_t answered = 0; answered < count; ++answered) {
        EXPECT_EQ(client.wait([](const Answer&) {}, patience()), Status::ok);
    }
    return of_client.posts.write;
}

TEST(ClientsThatGather, PostFewerWrites) {
    if (is_set_to("MILLRACE_SOFT_MODE", "strict")) {
        GTEST_SKIP() << "where bytes of a WRITE land in any order each frame is two";
    }
    constexpr std::uint64_t count = 16;
    const std::uint64_t writes = writes_of(count, false);
    EXPECT_GE(writes, count);
    EXPECT_LE(writes_of(count, true), writes - count + 2);
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
        asking.tuning.carrier = options.tuning.carrier;
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

TEST_P(ServersInBatches, LoseNoAnswerWhenTheyClose) {
    ServerOptions chosen = options();
    if (GetParam().has_rings()) chosen.tuning.carrier = ring::Carrier::post;
    for (int i = 0; i < 5; ++i) {
        expect_all_answers(chosen, false);
        expect_all_answers(chosen, true);
    }
}

}  // namespace
}  // namespace millrace::message
