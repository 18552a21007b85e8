// Servers of several threads at one address: who serves whom, sessions that find their server
// again, and the common end.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "message/lane_inside.hpp"
#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "support/child_process.hpp"
#include "support/extent.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using connect::Transport;
using test::repetitions;
using namespace std::chrono_literals;

constexpr std::uint32_t threads = 3;

/// One of each kind: every way is the same beyond where a client is added.
constexpr Way ways_of_groups[] = {
    {Polling::flag},
    {Polling::dense},
    {Polling::dense, Transfer::send, Transfer::send, Receives::shared},
    {.polling = Polling::dense, .transport = Transport::tcp},
    {.polling = Polling::dense, .transport = Transport::uc},
    {.polling = Polling::dense, .transport = Transport::ud},
};

class ServerGroups : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServerGroups, testing::ValuesIn(ways_of_groups),
                         [](const auto& way) { return name_of(way.param); });

using Who = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
Who who_of(const ClientId& id) { return {id.server, id.place, id.generation}; }

TEST_P(ServerGroups, AnswerACrowdEachClientByOneThread) {
    const std::uint64_t count = repetitions(400);
    std::mutex mutex;
    std::map<Who, std::set<std::thread::id>> by;
    std::map<Who, std::uint64_t> last;
    ServerOptions chosen = options();
    chosen.ring_bytes = 4096;
    RunningGroup running{threads, chosen, [&](Request& request) {
                             {
                                 const std::lock_guard guard{mutex};
                                 const Who who = who_of(request.client());
                                 by[who].insert(std::this_thread::get_id());
                                 EXPECT_EQ(request.id(), ++last[who]) << "each once, in order";
                             }
                             echo(request);
                         }};
    std::vector<std::thread> crowd;
    for (unsigned whose = 0; whose < 6; ++whose) {
        crowd.emplace_back([&, whose] {
            Client client = running.connect();
            talk(client, whose, count, 200, whose);
            EXPECT_EQ(client.close(patience()), Status::ok);
        });
    }
    for (std::thread& each : crowd) each.join();
    running.stop();
    EXPECT_EQ(by.size(), 6U) << "no two clients are the same";
    for (const auto& [who, own] : by) EXPECT_EQ(own.size(), 1U);
    const ServerStats all = running.group.stats();
    EXPECT_EQ(all.requests, 6 * count);
    EXPECT_EQ(all.answers, 6 * count);
    EXPECT_EQ(all.joined, 6U);
    EXPECT_EQ(all.misbehaved, 0U);
    ServerStats sum;
    for (std::size_t i = 0; i < threads; ++i) sum += running.group.server(i).stats();
    EXPECT_EQ(sum.requests, all.requests);
}

TEST_P(ServerGroups, HaveAsManyClientsEach) {
    RunningGroup running{threads, options(), tell_server};
    std::vector<Client> clients;
    std::array<std::vector<std::size_t>, threads> of;
    for (std::size_t i = 0; i < 3 * threads; ++i) {
        clients.push_back(running.connect());
        const std::uint32_t server = ask(clients.back()).server;
        ASSERT_LT(server, threads);
        of[server].push_back(i);
    }
    for (const auto& each : of) EXPECT_EQ(each.size(), 3U);
    // Where some have left, the next ones are added.
    for (const std::size_t i : of[1]) EXPECT_EQ(clients[i].close(patience()), Status::ok);
    EXPECT_TRUE(eventually([&] { return running.group.server(1).stats().clients == 0; }));
    for (int i = 0; i < 3; ++i) {
        clients.push_back(running.connect());
        EXPECT_EQ(ask(clients.back()).server, 1U);
    }
    running.stop();
    EXPECT_EQ(running.group.stats().joined, 4U * threads);
}

// The invariant of sessions: a server's, for good. One that was resumed elsewhere would be unknown
// there, and end with session_lost.
TEST_P(ServerGroups, ResumeSessionsWhereTheyAreKeptAndExecuteNothingTwice) {
    constexpr std::uint64_t count = 800;
    std::mutex mutex;
    std::map<Who, std::map<std::uint64_t, int>> times;
    RunningGroup running{threads, options(), [&](Request& request) {
                             {
                                 const std::lock_guard guard{mutex};
                                 ++times[who_of(request.client())][request.id()];
                             }
                             echo(request);
                         }};
    std::vector<std::thread> crowd;
    std::array<std::uint64_t, 5> sent{};
    for (unsigned whose = 0; whose < 5; ++whose) {
        crowd.emplace_back([&, whose] {
            Breakable breakable{running.group.address(), resuming()};
            talk_while_it_breaks(breakable, whose, count, 100 + 13 * whose);
            sent[whose] = count + call_until_resumed(breakable, whose);
        });
    }
    for (std::thread& each : crowd) each.join();
    running.stop();
    EXPECT_EQ(running.group.stats().joined, 5U);
    EXPECT_EQ(times.size(), 5U);
    std::vector<std::uint64_t> executed;
    for (const auto& [who, own] : times) {
        executed.push_back(own.size());
        for (const auto& [id, number] : own) ASSERT_EQ(number, 1) << id;
    }
    // Of each session; which of them is whose only the server knows.
    std::ranges::sort(executed);
    std::ranges::sort(sent);
    EXPECT_TRUE(std::ranges::equal(executed, sent));
}

TEST_P(ServerGroups, BringAClientBackToItsServerHoweverManyTheOthersHave) {
    RunningGroup running{threads, options(), tell_server};
    Breakable breakable{running.group.address(), resuming()};
    const ClientId before = ask(breakable.client);
    // All others would be chosen first.
    std::vector<Client> crowd;
    for (std::uint32_t i = 0; i < 2 * threads; ++i) {
        crowd.push_back(running.connect());
        (void)ask(crowd.back());
    }
    for (Client& each : crowd) {
        if (ask(each).server == before.server) continue;
        EXPECT_EQ(each.close(patience()), Status::ok);
    }
    for (std::uint64_t round = 1; round <= 3; ++round) {
        breakable.cut();
        const Deadline deadline = patience();
        while (breakable.client.stats().resumed < round && !deadline.expired()) {
            ASSERT_EQ(ask(breakable.client), before);
        }
    }
    EXPECT_EQ(ask(breakable.client), before);
    running.stop();
    EXPECT_EQ(running.group.server(before.server).stats().away, 0U);
}

TEST_P(ServerGroups, BringAnswersThatWereGivenWhileTheClientWasAway) {
    std::mutex mutex;
    std::vector<Reply> later;
    RunningGroup running{threads, options(), [&](Request& request) {
                             const std::lock_guard guard{mutex};
                             later.push_back(request.defer());
                         }};
    std::vector<std::unique_ptr<Breakable>> clients;
    for (std::uint64_t i = 0; i < 2 * threads; ++i) {
        clients.push_back(std::make_unique<Breakable>(running.group.address(), resuming()));
        std::uint64_t id = 0;
        ASSERT_EQ(clients.back()->client.submit(content(i, 1, 100), id), Status::ok);
        ASSERT_TRUE(eventually([&] {
            (void)clients.back()->client.poll([](const Answer&) { FAIL() << "too early"; });
            const std::lock_guard guard{mutex};
            return later.size() == i + 1;
        }));
        clients.back()->cut();
    }
    for (std::size_t i = 0; i < later.size(); ++i) {
        EXPECT_EQ(later[i].answer(bytes_of("for " + std::to_string(i))), Status::ok);
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
        ASSERT_EQ(clients[i]->client.wait(
                      [&](const Answer& answer) {
                          EXPECT_EQ(text_of(answer.payload), "for " + std::to_string(i));
                      },
                      patience()),
                  Status::ok);
    }
    running.stop();
    EXPECT_EQ(running.group.stats().requests, clients.size());
    EXPECT_EQ(running.group.stats().pending, 0U);
}

TEST_P(ServerGroups, RefuseMoreClientsThanAllTogetherMayHave) {
    ServerOptions chosen = options();
    chosen.max_clients = 4;
    RunningGroup running{threads, chosen};
    std::vector<Client> clients;
    for (int i = 0; i < 4; ++i) clients.push_back(running.connect());
    try {
        (void)running.connect();
        FAIL() << "a fifth client was taken";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
    }
    EXPECT_EQ(clients.back().close(patience()), Status::ok);
    clients.pop_back();
    EXPECT_TRUE(eventually([&] {
        try {
            clients.push_back(running.connect());
            return true;
        } catch (const base::Error&) {
            return false;
        }
    })) << "its place is free";
}

TEST_P(ServerGroups, DrainAndCloseAll) {
    std::mutex mutex;
    std::vector<Reply> later;
    RunningGroup running{threads, options(), [&](Request& request) {
                             const std::lock_guard guard{mutex};
                             later.push_back(request.defer());
                         }};
    std::vector<Client> clients;
    for (std::uint64_t i = 0; i < 2 * threads; ++i) {
        clients.push_back(running.connect());
        std::uint64_t id = 0;
        ASSERT_EQ(clients.back().submit(content(i, 1, 100), id), Status::ok);
        ASSERT_TRUE(eventually([&] {
            (void)clients.back().poll([](const Answer&) { FAIL() << "too early"; });
            const std::lock_guard guard{mutex};
            return later.size() == i + 1;
        }));
    }
    running.stop();
    EXPECT_EQ(running.group.drain(Deadline::after(5ms)), Status::timed_out) << "all are pending";
    // All clients are looked at by turns until each has its answer, and then the end.
    std::thread reading{[&] {
        std::vector<std::size_t> answers(clients.size());
        std::set<std::size_t> open;
        for (std::size_t i = 0; i < clients.size(); ++i) open.insert(i);
        const Deadline deadline = patience();
        while (!open.empty() && !deadline.expired()) {
            for (std::size_t i = 0; i < clients.size(); ++i) {
                const auto take = [&](const Answer& answer) {
                    EXPECT_EQ(answer.outcome, Outcome::ok);
                    ++answers[i];
                };
                if (clients[i].poll(take) == Status::closed) open.erase(i);
            }
            std::this_thread::yield();
        }
        EXPECT_TRUE(open.empty());
        for (const std::size_t each : answers) EXPECT_EQ(each, 1U);
    }};
    for (Reply& reply : later) EXPECT_EQ(reply.answer({}), Status::ok);
    EXPECT_EQ(running.group.close(patience()), Status::ok);
    reading.join();
    EXPECT_EQ(running.group.stats().clients, 0U);
}

TEST_P(ServerGroups, ServeAgainWhereTheyWereStopped) {
    RunningGroup running{threads, options()};
    std::vector<Client> clients;
    for (std::uint32_t i = 0; i < 2 * threads; ++i) clients.push_back(running.connect());
    running.stop();
    for (int round = 0; round < 5; ++round) {
        std::thread serving{[&] {
            running.group.adopt();
            EXPECT_EQ(running.group.serve(echo, Deadline::never()), Status::closed);
        }};
        for (std::uint64_t i = 0; i < clients.size(); ++i) talk(clients[i], i, 20, 50, 1);
        running.group.stop();
        serving.join();
        running.group.adopt();
    }
    EXPECT_EQ(running.group.stats().requests, 5U * clients.size() * 20);
}

class ServerGroupThreads : public testing::Test {};

TEST_F(ServerGroupThreads, EndByTheirDeadline) {
    auto group = ServerGroup::listen(unique_address(), {}, {.count = threads});
    for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(group.serve(echo, Deadline::after(5ms)), Status::timed_out);
    }
    group.stop();
    EXPECT_EQ(group.serve(echo, Deadline::never()), Status::closed) << "it was stopped before";
    EXPECT_EQ(group.serve(echo, Deadline::after(5ms)), Status::timed_out) << "once";
}

TEST_F(ServerGroupThreads, AreCancelledTogether) {
    auto group = ServerGroup::listen(unique_address(), {}, {.count = threads});
    base::Cancellation cancelled;
    std::thread cancelling{[&] {
        std::this_thread::sleep_for(20ms);
        cancelled.request();
    }};
    EXPECT_EQ(group.serve(echo, Deadline::never().cancelled_by(cancelled)), Status::cancelled);
    cancelling.join();
}

TEST_F(ServerGroupThreads, EndWhenOneOfThemThrows) {
    auto group = ServerGroup::listen(unique_address(), {}, {.count = threads});
    std::atomic<int> ended{0};
    const auto body = [&](Server& server, std::size_t number) {
        if (number == 1) throw std::runtime_error{"one of three"};
        const Status status = group.serve_one(server, echo, Deadline::never());
        EXPECT_TRUE(group.is_ending());
        ++ended;
        return status;
    };
    EXPECT_THROW((void)group.run(body), std::runtime_error);
    EXPECT_EQ(ended, 2);
    EXPECT_FALSE(group.is_ending());
    EXPECT_EQ(group.serve(echo, Deadline::after(5ms)), Status::timed_out) << "it can go on";
}

TEST_F(ServerGroupThreads, MayHaveAHandlerEach) {
    auto group = ServerGroup::listen(unique_address(), {}, {.count = threads});
    std::array<std::atomic<std::uint64_t>, threads> served{};
    std::thread serving{[&] {
        group.adopt();
        const auto serve = [&](Server& server, std::size_t number) {
            // Not shared by threads, so it may be what it likes.
            auto handler = [&, mine = std::uint64_t{0}](Request& request) mutable {
                served[number] = ++mine;
                (void)request.answer(request.payload());
            };
            return group.serve_one(server, handler, Deadline::never());
        };
        EXPECT_EQ(group.run(serve), Status::closed);
    }};
    for (std::uint64_t i = 0; i < 2 * threads; ++i) {
        Client client = Client::connect(group.address(), {}, patience());
        talk(client, i, 50, 100, 1);
    }
    group.stop();
    serving.join();
    group.adopt();
    for (const auto& each : served) EXPECT_GT(each, 0U);
}

TEST_F(ServerGroupThreads, ArePinnedIfThatIsAskedFor) {
    const std::vector<int> cores = base::available_cores();
    std::thread serving_thread{[&] {
        auto group = ServerGroup::listen(unique_address(), {}, {.count = threads, .cores = cores});
        const auto body = [&](Server&, std::size_t number) {
            cpu_set_t mask;
            EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
            EXPECT_EQ(CPU_COUNT(&mask), 1);
            EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(cores[number % cores.size()]), &mask));
            return Status::ok;
        };
        EXPECT_EQ(group.run(body), Status::ok);
        EXPECT_NE(group.explain().find("pinned"), std::string::npos) << group.explain();
    }};
    serving_thread.join();
}

TEST_F(ServerGroupThreads, AreRefusedOutsideTheirRanges) {
    const auto refused = [](const ServerThreads& asked) {
        try {
            (void)ServerGroup::listen(unique_address(), {}, asked);
            return false;
        } catch (const base::Error& error) {
            return error.code() == base::ErrorCode::invalid_argument;
        }
    };
    EXPECT_TRUE(refused({.count = 0}));
    EXPECT_TRUE(refused({.count = 257}));
    EXPECT_TRUE(refused({.count = 2, .cores = {100'000}}));
}

TEST_F(ServerGroupThreads, OfOneAreAServer) {
    RunningGroup running{1};
    Client client = running.connect();
    talk(client, 1, 200, 100, 1);
    running.stop();
    EXPECT_EQ(running.group.stats().requests, 200U);
    EXPECT_EQ(running.group.explain(), running.group.server(0).explain());
}

TEST_F(ServerGroupThreads, TakeWhoKnowsTheSecret) {
    ServerOptions options;
    options.transports = {Transport::rc, Transport::uc, Transport::ud, Transport::tcp};
    options.protection = Protection::trusted;
    options.admission.secret = connect::Secret{"sixteen bytes or more of it"};
    RunningGroup running{threads, options, tell_server};
    std::set<std::uint32_t> servers;
    for (const Transport transport :
         {Transport::rc, Transport::uc, Transport::ud, Transport::tcp}) {
        ClientOptions chosen;
        chosen.transport = transport;
        EXPECT_THROW((void)Client::connect(running.group.address(), chosen, patience()),
                     base::Error);
        chosen.admission = options.admission;
        Client client = Client::connect(running.group.address(), chosen, patience());
        servers.insert(ask(client).server);
        Client other = Client::connect(running.group.address(), chosen, patience());
        servers.insert(ask(other).server);
    }
    EXPECT_GT(servers.size(), 1U);
}

/// threads, way
MILLRACE_CHILD(message_server_group) {
    chosen_way() = way_named(arguments.at(1));
    auto group = ServerGroup::listen(
        connect::Address::parse(arguments.at(2)), options_of_server(chosen_way()),
        {.count = static_cast<std::uint32_t>(std::stoul(arguments.at(0)))});
    test::say(group.address().to_string());
    (void)group.serve(tell_server, Deadline::after(60s));
    return 0;
}

TEST_P(ServerGroups, ThatWereRestartedWithFewerThreadsSayThatSessionsAreLost) {
    const std::string way = name_of(GetParam());
    auto child =
        test::ChildProcess::start("message_server_group", {"3", way, unique_address().to_string()});
    const auto address = connect::Address::parse(child.read_line().value_or("nowhere:0"));
    std::vector<Client> clients;
    for (int i = 0; i < 3; ++i) {
        clients.push_back(Client::connect(address, resuming(), patience()));
        (void)ask(clients.back());
    }
    child.kill();
    (void)child.wait();
    auto again = test::ChildProcess::start("message_server_group", {"1", way, address.to_string()});
    EXPECT_TRUE(again.read_line().has_value());
    for (Client& client : clients) {
        Bytes answer;
        Outcome outcome = client.call({}, answer, patience());
        // What was not sent when the end was found is asked of the new server.
        if (outcome != Outcome::ok) {
            EXPECT_EQ(outcome, Outcome::session_lost);
            outcome = client.call({}, answer, patience());
        }
        EXPECT_EQ(outcome, Outcome::ok);
    }
    again.kill();
    (void)again.wait();
}

/// Fills its ring with what asks for nothing, so that each lap of the server finds some.
void flood(Client& client) {
    Channel::Core& core = RingLaneInside::core_of(client);
    const SessionHead cancel = pack(SessionHeader{.kind = SessionKind::cancel});
    while (core.reserve(sizeof cancel) == Status::ok && core.send(cancel, {}) == Status::ok) {
    }
}

TEST(ServerGroupsThatDrain, EndThoughOneWasBusyLonger) {
    ServerOptions options;
    options.ring_bytes = std::size_t{4} << 20;
    std::mutex mutex;
    std::vector<Reply> later;
    RunningGroup running{2, options, [&](Request& request) {
                             const std::lock_guard lock{mutex};
                             later.push_back(request.defer());
                         }};
    std::vector<Client> clients;
    for (int i = 0; i < 2; ++i) clients.push_back(running.connect());
    Client waiting = running.connect();
    std::uint64_t id = 0;
    ASSERT_EQ(waiting.submit(content(1, 1, 20), id), Status::ok);
    ASSERT_TRUE(eventually([&] {
        const std::lock_guard lock{mutex};
        return !later.empty();
    }));
    running.stop();
    for (Client& client : clients) flood(client);
    std::atomic<bool> done{false};
    std::thread flooding{[&] {
        while (!done) {
            for (Client& client : clients) flood(client);
        }
    }};
    std::thread answering{[&] {
        std::this_thread::sleep_for(20ms);
        const std::lock_guard lock{mutex};
        for (Reply& reply : later) EXPECT_EQ(reply.answer({}), Status::ok);
    }};
    EXPECT_EQ(running.group.drain(patience()), Status::ok);
    done = true;
    flooding.join();
    answering.join();
}

}  // namespace
}  // namespace millrace::message
