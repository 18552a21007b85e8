// Clients of a store that go from one of its threads to another while they ask: in every way of
// asking, in sessions that end with their connection and in those that resume.
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/connect/hub.hpp"
#include "millrace/kv/coroutine.hpp"
#include "serving.hpp"
#include "stores.hpp"

namespace millrace::kv {
namespace {

using namespace std::chrono_literals;
using base::Status;

ServerOptions with_threads_that_balance() {
    ServerOptions options;
    options.threads.count = 2;
    options.threads.balance_every = 2ms;
    return options;
}

/// Some of whom share a thread, so that one of them goes to the other.
constexpr std::size_t crowd = 8;
/// Every second one connects to the same thread, and these alone ask.
std::vector<Client> busy_ones(Serving& serving, const message::ClientOptions& options,
                              std::vector<Client>& idle) {
    std::vector<Client> busy;
    while (busy.size() != crowd / 2) {
        busy.push_back(serving.client(options));
        idle.push_back(serving.client(options));
    }
    return busy;
}

/// How a client asks. Each sets the key to the value, and finds it there.
struct Asking {
    const char* name;
    void (*ask)(Client& client, const std::string& key, const std::string& value);
};

void set_and_get(Client& client, const std::string& key, const std::string& value) {
    ASSERT_TRUE(client.set(bytes(key), bytes(value), soon()).ok());
    std::vector<std::byte> found;
    ASSERT_TRUE(client.get(bytes(key), found, soon()).ok());
    EXPECT_EQ(text(found), value);
}

void submit_both(Client& client, const std::string& key, const std::string& value,
                 const bool polls) {
    std::map<std::uint64_t, std::string> open;
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(Command::set, {.key = bytes(key), .value = bytes(value)}, id, soon()),
              Status::ok);
    open[id] = "";
    ASSERT_EQ(client.submit(Command::get, {.key = bytes(key)}, id, soon()), Status::ok);
    open[id] = value;
    const auto take = [&](const Answer& answer) {
        const auto found = open.find(answer.id);
        ASSERT_NE(found, open.end());
        EXPECT_TRUE(answer.result.ok());
        EXPECT_EQ(text(answer.value), found->second);
        open.erase(found);
    };
    for (const auto deadline = soon(); !open.empty() && !deadline.expired();) {
        if (polls) {
            if (client.poll(take) == Status::empty) std::this_thread::yield();
        } else {
            ASSERT_EQ(client.wait(take, soon()), Status::ok);
        }
    }
    EXPECT_TRUE(open.empty());
}

constexpr Asking ways_to_ask[] = {
    {"call", set_and_get},
    {"poll", [](Client& client, const std::string& key,
                const std::string& value) { submit_both(client, key, value, true); }},
    {"wait", [](Client& client, const std::string& key,
                const std::string& value) { submit_both(client, key, value, false); }},
    {"many_keys",
     [](Client& client, const std::string& key, const std::string& value) {
         ASSERT_TRUE(client.set(bytes(key), bytes(value), soon()).ok());
         const std::vector<std::span<const std::byte>> keys(20, bytes(key));
         std::vector<int> told(keys.size());
         ASSERT_EQ(client.multi_get(
                       keys,
                       [&](std::size_t index, const Result& result, auto found) {
                           ++told.at(index);
                           EXPECT_TRUE(result.ok());
                           EXPECT_EQ(text(found), value);
                       },
                       soon()),
                   Status::ok);
         EXPECT_EQ(told, std::vector<int>(keys.size(), 1));
     }},
};

class MovedClients : public testing::TestWithParam<std::tuple<Asking, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Each, MovedClients,
                         testing::Combine(testing::ValuesIn(ways_to_ask),
                                          testing::Values("ends", "resumes")),
                         [](const auto& each) {
                             return std::string{std::get<0>(each.param).name} + "_" +
                                    std::get<1>(each.param);
                         });

TEST_P(MovedClients, HaveTheirAnswers) {
    const auto& [way, session] = GetParam();
    message::ClientOptions options;
    options.resumes = session == std::string_view{"resumes"};
    Serving serving{with_threads_that_balance()};
    std::vector<Client> idle;
    std::vector<Client> busy = busy_ones(serving, options, idle);
    int asked = 0;
    const auto ask_each = [&, ask = way.ask] {
        ++asked;
        for (std::size_t i = 0; i < busy.size() && !testing::Test::HasFailure(); ++i) {
            ask(busy[i], "key " + std::to_string(i), "value " + std::to_string(asked));
        }
    };
    const auto has_moved = [&] { return serving.server().stats().moved >= 1; };
    for (const auto deadline = soon();
         !has_moved() && !deadline.expired() && !testing::Test::HasFailure();) {
        ask_each();
    }
    EXPECT_TRUE(has_moved());
    for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) ask_each();
}

TEST(ClientsThatWereMoved, HaveTheAnswersThatTasksAwait) {
    Serving serving{with_threads_that_balance()};
    std::vector<Client> idle;
    std::vector<Client> busy = busy_ones(serving, {}, idle);
    connect::Hub hub;
    std::vector<AsyncClient> clients;
    for (Client& client : busy) clients.emplace_back(hub, std::move(client));
    std::size_t running = clients.size();
    const auto deadline = soon();
    const auto ask = [&](AsyncClient& client, const std::size_t who) -> base::Task<> {
        const std::string key = "key " + std::to_string(who);
        std::vector<std::byte> found;
        for (int left = 20; left != 0;) {
            const std::string value = "value " + std::to_string(left);
            EXPECT_TRUE((co_await client.set(bytes(key), bytes(value), soon())).ok());
            EXPECT_TRUE((co_await client.get(bytes(key), found, soon())).ok());
            EXPECT_EQ(text(found), value);
            if (testing::Test::HasFailure() || deadline.expired()) break;
            if (serving.server().stats().moved >= 1) --left;
        }
        if (--running == 0) hub.stop();
    };
    for (std::size_t i = 0; i < clients.size(); ++i) base::spawn(hub, ask(clients[i], i));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_GE(serving.server().stats().moved, 1U);
}

}  // namespace
}  // namespace millrace::kv
