// Servers whose clients are accepted in a thread of the server's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "message/serving.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::message {
namespace {

/// Threads of this process that accept.
std::size_t acceptors() {
    std::size_t found = 0;
    for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
        std::ifstream file{task.path() / "comm"};
        std::string name;
        std::getline(file, name);
        found += name == "millrace-accept" ? 1 : 0;
    }
    return found;
}

class ServersThatAcceptApart : public ByEveryWay {
  protected:
    [[nodiscard]] static ServerOptions options() {
        ServerOptions chosen = ByEveryWay::options();
        chosen.acceptor.emplace();
        return chosen;
    }
};

TEST_P(ServersThatAcceptApart, ServeWhoComesAndWhoIsHere) {
    constexpr std::uint64_t requests = 200;
    {
        Running running{options()};
        EXPECT_EQ(acceptors(), 1U);
        Client first = running.connect();
        std::vector<std::thread> threads;
        threads.emplace_back([&] { talk(first, 0, requests, 500, 1); });
        for (unsigned whose = 1; whose != 4; ++whose) {
            threads.emplace_back([&running, whose] {
                Client client = running.connect();
                talk(client, whose, requests, 500, whose);
                EXPECT_EQ(client.close(patience()), base::Status::ok);
            });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_TRUE(eventually([&] { return running.server.stats().left == 3; }));
        EXPECT_EQ(running.server.stats().joined, 4U);
        running.stop();
    }
    EXPECT_EQ(acceptors(), 0U);
}

TEST_P(ServersThatAcceptApart, TellWhyTheyRefuse) {
    ServerOptions few = options();
    few.max_clients = 1;
    Running running{few};
    Client first = running.connect();
    try {
        (void)running.connect();
        FAIL() << "there was no place for it";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused);
        EXPECT_THAT(error.what(), testing::HasSubstr("max_clients"));
    }
    Bytes answer;
    EXPECT_EQ(first.call(bytes_of("still here"), answer, patience()), Outcome::ok);
}

/// Each kind of connection once, and that of each thread's group.
const Way ways_apart[] = {
    {Polling::flag},
    {Polling::dense},
    {Polling::dense, Transfer::send, Transfer::send},
    {Polling::shared, Transfer::shared},
    {.polling = Polling::dense, .transport = connect::Transport::tcp},
    {.polling = Polling::dense, .transport = connect::Transport::uc},
    {.polling = Polling::dense, .transport = connect::Transport::ud},
};
INSTANTIATE_TEST_SUITE_P(By, ServersThatAcceptApart, testing::ValuesIn(ways_apart),
                         [](const auto& one) { return name_of(one.param); });

TEST(ServerAcceptor, IsOfEachServerOfAGroup) {
    ServerOptions options;
    options.acceptor.emplace();
    ServerGroup group = ServerGroup::listen(unique_address(), options, {.count = 2});
    EXPECT_EQ(acceptors(), 2U);
    std::thread serving{[&] {
        group.adopt();
        EXPECT_EQ(group.serve(tell_server, base::Deadline::never()), base::Status::closed);
    }};
    {
        Client first = Client::connect(group.address(), {}, patience());
        Client second = Client::connect(group.address(), {}, patience());
        EXPECT_NE(ask(first).server, ask(second).server) << "the one has fewer peers";
    }
    group.stop();
    serving.join();
}

TEST(ServerAcceptor, LeavesTheCoreOfAServerThatIsPinned) {
    const std::vector<int> cores = base::available_cores();
    if (cores.size() < 2) GTEST_SKIP() << "there is one core";
    ServerOptions options;
    options.acceptor.emplace();
    const ServerGroup group =
        ServerGroup::listen(unique_address(), options, {.count = 2, .cores = {cores[0], cores[1]}});
    std::size_t found = 0;
    for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
        std::ifstream file{task.path() / "comm"};
        std::string name;
        std::getline(file, name);
        if (name != "millrace-accept") continue;
        cpu_set_t mask;
        ASSERT_EQ(sched_getaffinity(std::stoi(task.path().filename()), sizeof mask, &mask), 0);
        EXPECT_GE(CPU_COUNT(&mask), 2) << "it stands where a server does";
        ++found;
    }
    EXPECT_EQ(found, 2U);
}

TEST(ServerAcceptor, IsNotForReceivesThatClientsShare) {
    ServerOptions options;
    options.protection = Protection::trusted;
    options.tuning.receives = Receives::shared;
    options.acceptor.emplace();
    try {
        (void)Server::listen(unique_address(), options);
        FAIL() << "it was not refused";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_THAT(error.what(), testing::HasSubstr("acceptor"));
    }
}

}  // namespace
}  // namespace millrace::message
