// A server of several threads: whose handler is called, what limits and counts all of them share.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "rpc/serving.hpp"

namespace millrace::rpc {
namespace {

using base::Status;

constexpr std::uint32_t threads = 3;

ServerOptions several() {
    ServerOptions options;
    options.threads.count = threads;
    return options;
}

TEST(ServerThreads, HaveAHandlerEachIfThatIsAskedFor) {
    Running running{several(), [](Server& server) {
                        EXPECT_EQ(server.threads(), threads);
                        server.handle_each<Add>([](std::size_t thread) {
                            // What no other thread calls needs no lock.
                            return [thread, calls = std::uint64_t{0}](const Pair&) mutable {
                                return Sum{.sum = ++calls, .who = thread};
                            };
                        });
                    }};
    std::vector<Client> clients;
    std::array<std::uint64_t, threads> calls{};
    for (std::uint32_t i = 0; i < 2 * threads; ++i) {
        clients.push_back(running.connect<Add>());
    }
    for (int round = 0; round < 20; ++round) {
        for (Client& client : clients) {
            const Result<Sum> sum = client.call<Add>({}, patience());
            ASSERT_TRUE(sum) << sum.error().text;
            ASSERT_LT(sum->who, threads);
            EXPECT_EQ(sum->sum, ++calls[sum->who]);
        }
    }
    for (const std::uint64_t each : calls) EXPECT_EQ(each, 40U) << "two clients each";
}

TEST(ServerThreads, AreCountedTogetherWhileTheyServe) {
    Running running{several()};
    std::vector<std::thread> crowd;
    std::atomic<bool> ends{false};
    std::thread looking{[&] {
        while (!ends) {
            (void)running.server.procedures();
            (void)running.server.stats();
        }
    }};
    for (unsigned i = 0; i < 2 * threads; ++i) {
        crowd.emplace_back([&] {
            Client client = running.connect<Add, Break>();
            for (std::uint64_t call = 0; call < 100; ++call) {
                const Result<Sum> sum = client.call<Add>({call, 1}, patience());
                ASSERT_TRUE(sum) << sum.error().text;
                EXPECT_EQ(sum->sum, call + 1);
            }
            EXPECT_FALSE(client.call<Break>("throw", patience()));
        });
    }
    for (std::thread& each : crowd) each.join();
    ends = true;
    looking.join();
    // Whichever thread is asked, it tells of all.
    for (std::uint32_t i = 0; i < threads; ++i) {
        Client client = running.connect<Add>();
        const std::vector<ProcedureReport> reports = client.procedures(patience());
        ASSERT_EQ(reports.size(), 4U);
        EXPECT_EQ(reports[0].calls, 2U * threads * 100);
        EXPECT_EQ(reports[0].answered, 2U * threads * 100);
        EXPECT_EQ(reports[2].failed, 2U * threads);
        EXPECT_GT(reports[0].latency_most, 0U);
        EXPECT_LE(reports[0].latency_p50, reports[0].latency_most);
    }
    running.stop();
    EXPECT_EQ(running.server.stats().messages.joined, 3U * threads);
}

TEST(ServerThreads, ShareTheLimitOfAProcedure) {
    std::mutex mutex;
    std::vector<Reply<Sum>> aside;
    Running running{several(), [&](Server& server) {
                        server.handle<Add>(
                            [&](const Pair&, Call<Add>& call) {
                                const std::lock_guard guard{mutex};
                                aside.push_back(call.defer());
                            },
                            {.max_pending = 4});
                    }};
    std::vector<Client> clients;
    for (std::uint32_t i = 0; i < threads; ++i) clients.push_back(running.connect<Add>());
    int answered = 0;
    int overloaded = 0;
    for (std::uint64_t call = 0; call < 12; ++call) {
        Client& client = clients[call % threads];
        ASSERT_EQ(client.submit<Add>(
                      {call, 1},
                      [&](Result<Sum> sum) {
                          ++(sum.ok() ? answered : overloaded);
                          if (!sum.ok()) {
                              EXPECT_EQ(sum.error().code, Code::overloaded);
                          }
                      },
                      patience()),
                  Status::ok);
        // One behind the other, so that a limit of all is not passed by two at once.
        const auto deadline = patience();
        const auto is_taken = [&] {
            (void)client.poll();
            const std::lock_guard guard{mutex};
            return aside.size() + static_cast<std::size_t>(overloaded) == call + 1;
        };
        while (!is_taken() && !deadline.expired()) std::this_thread::yield();
    }
    EXPECT_EQ(aside.size(), 4U);
    EXPECT_EQ(overloaded, 8);
    for (Reply<Sum>& reply : aside) EXPECT_EQ(reply.answer({}), Status::ok);
    for (Client& client : clients) {
        while (client.wait(patience()) == Status::ok) {
        }
    }
    EXPECT_EQ(answered, 4);
    running.stop();
    EXPECT_EQ(running.server.stats().overloaded, 8U);
    EXPECT_EQ(running.server.procedures().at(0).overloaded, 8U);
}

TEST(ServerThreads, OfSeveralAreServedTogetherOnly) {
    Server server = Server::listen(unique_address(), several());
    const auto refused = [](const auto& call) {
        try {
            call();
            return false;
        } catch (const base::Error& error) {
            return error.code() == base::ErrorCode::invalid_argument;
        }
    };
    EXPECT_TRUE(refused([&] { (void)server.turn(); }));
    EXPECT_TRUE(refused([&] { (void)server.rest(base::Deadline::now()); }));
    EXPECT_TRUE(refused([&] { (void)server.descriptor(); }));
    EXPECT_EQ(server.serve(base::Deadline::after(std::chrono::milliseconds{5})), Status::timed_out);
}

}  // namespace
}  // namespace millrace::rpc
