// Clients that go from one thread of a group of servers to another: by call, by balance, under
// load, while their connections break, and while they are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"
#include "support/extent.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::repetitions;
using namespace std::chrono_literals;

/// Those whose clients can be moved.
constexpr Way ways_that_move[] = {
    {Polling::flag},
    {Polling::dense},
    {Polling::flag, Transfer::send, Transfer::send},
    {Polling::dense, Transfer::send, Transfer::write},
};
/// Those whose clients use what belongs to their server.
constexpr Way ways_that_stay[] = {
    {Polling::dense, Transfer::send, Transfer::send, Receives::shared},
    {.polling = Polling::dense, .transport = connect::Transport::tcp},
    {.polling = Polling::dense, .transport = connect::Transport::uc},
    {Polling::shared, Transfer::shared},
};

class ServersThatMoveClients : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServersThatMoveClients, testing::ValuesIn(ways_that_move),
                         [](const auto& way) { return name_of(way.param); });
class ServersThatKeepClients : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServersThatKeepClients, testing::ValuesIn(ways_that_stay),
                         [](const auto& way) { return name_of(way.param); });

/// What the handlers of all threads have seen: who asked what, and where it is.
class Seen {
  public:
    /// A request whose content begins with who asks, and its number among that one's.
    void note(const Request& request, bool in_order) {
        std::uint64_t said[2];
        ASSERT_GE(request.payload().size(), sizeof said);
        std::memcpy(said, request.payload().data(), sizeof said);
        const std::lock_guard guard{mutex_};
        Of& of = by_[said[0]];
        ASSERT_TRUE(of.numbers.insert(said[1]).second) << "executed twice: " << said[1];
        if (in_order) {
            EXPECT_EQ(said[1] + 1, of.numbers.size());
        }
        of.id = request.client();
        of.servers.insert(of.id.server);
    }
    [[nodiscard]] std::map<std::uint64_t, ClientId> whereabouts() {
        const std::lock_guard guard{mutex_};
        std::map<std::uint64_t, ClientId> all;
        for (const auto& [whose, of] : by_) all.emplace(whose, of.id);
        return all;
    }
    [[nodiscard]] std::size_t count(std::uint64_t whose) {
        const std::lock_guard guard{mutex_};
        return by_[whose].numbers.size();
    }
    [[nodiscard]] std::size_t servers(std::uint64_t whose) {
        const std::lock_guard guard{mutex_};
        return by_[whose].servers.size();
    }

  private:
    struct Of {
        std::set<std::uint64_t> numbers;
        std::set<std::uint32_t> servers;
        ClientId id{};
    };
    std::mutex mutex_;
    std::map<std::uint64_t, Of> by_;
};

/// Moves whoever it sees, at random, until it is destroyed.
class Mover {
  public:
    Mover(ServerGroup& group, Seen& seen, unsigned seed)
        : thread_{[&group, &seen, seed, this] {
              std::minstd_rand random{seed};
              while (!is_over_) {
                  for (const auto& [whose, id] : seen.whereabouts()) {
                      if (random() % 2 == 0) group.move(id, random() % group.size());
                  }
                  std::this_thread::sleep_for(std::chrono::microseconds{random() % 1500});
              }
          }} {}
    Mover(const Mover&) = delete;
    Mover& operator=(const Mover&) = delete;
    ~Mover() {
        is_over_ = true;
        thread_.join();
    }

  private:
    std::atomic<bool> is_over_{false};
    std::thread thread_;
};

/// Until `enough(answered)`; cuts the connection behind each `cut_every`. How many were answered.
template <class Enough>
std::uint64_t talk_while_moved(Breakable& breakable, std::uint64_t whose, std::uint64_t cut_every,
                               Enough&& enough) {
    Client& client = breakable.client;
    std::map<std::uint64_t, std::uint64_t> open;
    std::uint64_t sent = 0;
    std::uint64_t answered = 0;
    std::uint64_t cuts = 0;
    // Now and then more than a ring takes.
    const auto size_of = [](std::uint64_t number) {
        return number % 97 == 96 ? 40'000 : 16 + number * 37 % 500;
    };
    for (bool is_over = false; !is_over || !open.empty();) {
        is_over = is_over || enough(answered);
        while (!is_over && open.size() < 8) {
            std::uint64_t id = 0;
            const Status status = client.submit(content(whose, sent, size_of(sent)), id);
            if (status != Status::ok) break;
            open[id] = sent++;
        }
        const Status status = client.wait(
            [&](const Answer& answer) {
                ASSERT_EQ(answer.outcome, Outcome::ok) << name_of(answer.outcome);
                const auto found = open.find(answer.id);
                ASSERT_NE(found, open.end()) << "an answer to nothing, or the second one";
                EXPECT_TRUE(std::ranges::equal(
                    answer.payload, content(whose, found->second, size_of(found->second))));
                open.erase(found);
                ++answered;
            },
            patience());
        EXPECT_TRUE(status == Status::ok || (status == Status::empty && open.empty()))
            << name_of(status) << client.failure();
        if (testing::Test::HasFailure()) break;
        if (cut_every != 0 && answered >= (cuts + 1) * cut_every) {
            breakable.cut();
            ++cuts;
        }
    }
    EXPECT_EQ(answered, sent);
    return sent;
}

TEST_P(ServersThatMoveClients, MoveOneWhoAsksAndOneWhoDoesNot) {
    RunningGroup running{3, options(), tell_server};
    Client client = running.connect();
    ClientId id = ask(client);
    for (std::uint64_t round = 1; round <= 6; ++round) {
        const std::uint32_t to = (id.server + 1) % 3;
        running.group.move(id, to);
        ASSERT_TRUE(eventually([&] { return running.group.stats().moved == round; }));
        // What it asks now lies where it always did.
        const ClientId now = ask(client);
        EXPECT_EQ(now.server, to);
        EXPECT_EQ(client.stats().moved, round);
        // Its former place is another's from now on, and who was there has left.
        running.group.move(id, (to + 1) % 3);
        id = now;
        EXPECT_EQ(ask(client), id);
    }
    running.stop();
    EXPECT_EQ(running.group.stats().joined, 1U);
    EXPECT_EQ(running.group.stats().clients, 1U);
    EXPECT_EQ(running.group.stats().left, 0U);
    EXPECT_EQ(running.group.stats().misbehaved, 0U);
}

TEST_P(ServersThatMoveClients, WakeWhomTheyMove) {
    ServerOptions chosen = options();
    chosen.wait = base::WaitPolicy::blocking();
    RunningGroup running{2, chosen, tell_server};
    ClientOptions sleeping;
    sleeping.wait = base::WaitPolicy::blocking();
    Client client = running.connect(sleeping);
    ClientId id = ask(client);
    for (std::uint64_t round = 1; round <= 6; ++round) {
        running.group.move(id, 1 - id.server);
        ASSERT_TRUE(eventually([&] { return running.group.stats().moved == round; }));
        if (round % 2 == 0) std::this_thread::sleep_for(5ms);  // so that its new server sleeps
        const ClientId now = ask(client);
        EXPECT_EQ(now.server, 1 - id.server);
        id = now;
    }
    EXPECT_EQ(client.close(patience()), Status::ok);
}

TEST_P(ServersThatMoveClients, AnswerEachOnceUnderLoad) {
    const std::uint64_t count = repetitions(3000);
    Seen seen;
    RunningGroup running{3, options(), [&](Request& request) {
                             seen.note(request, false);
                             echo(request);
                         }};
    std::vector<std::thread> crowd;
    std::atomic<std::uint64_t> moved{0};
    {
        const Mover mover{running.group, seen, 7};
        for (std::uint64_t whose = 0; whose < 5; ++whose) {
            crowd.emplace_back([&, whose] {
                Breakable one{running.group.address(), options_of_client()};
                // As long as it takes to be moved a few times.
                const std::uint64_t sent =
                    talk_while_moved(one, whose, 0, [&](std::uint64_t answered) {
                        return answered >= count && one.client.stats().moved >= 5;
                    });
                EXPECT_EQ(seen.count(whose), sent);
                EXPECT_GE(seen.servers(whose), 2U);
                moved += one.client.stats().moved;
                EXPECT_EQ(one.client.close(patience()), Status::ok);
            });
        }
        for (std::thread& each : crowd) each.join();
    }
    EXPECT_TRUE(eventually([&] { return running.group.stats().left == 5; }));
    running.stop();
    const ServerStats all = running.group.stats();
    EXPECT_GE(all.moved, moved);
    EXPECT_EQ(all.joined, 5U);
    EXPECT_EQ(all.left, 5U);
    EXPECT_EQ(all.clients, 0U);
    EXPECT_EQ(all.misbehaved, 0U);
    EXPECT_EQ(all.requests, all.answers);
}

TEST_P(ServersThatMoveClients, BringWhatIsAnsweredLaterBeforeTheyMoveAnybody) {
    Seen seen;
    std::mutex mutex;
    std::vector<Reply> later;
    std::atomic<bool> is_over{false};
    RunningGroup running{3, options(), [&](Request& request) {
                             seen.note(request, false);
                             if (request.id() % 3 != 0) return echo(request);
                             const std::lock_guard guard{mutex};
                             later.push_back(request.defer());
                         }};
    std::thread answering{[&] {
        while (!is_over) {
            std::vector<Reply> now;
            {
                const std::lock_guard guard{mutex};
                now.swap(later);
            }
            for (Reply& reply : now) (void)reply.answer(bytes_of("later"));
            std::this_thread::sleep_for(100us);
        }
    }};
    {
        const Mover mover{running.group, seen, 5};
        std::vector<std::thread> crowd;
        for (std::uint64_t whose = 0; whose < 4; ++whose) {
            crowd.emplace_back([&, whose] {
                Client client = running.connect();
                const Deadline deadline = patience();
                for (std::uint64_t number = 0; client.stats().moved < 5 && !deadline.expired();
                     ++number) {
                    const Bytes request = content(whose, number, 64);
                    Bytes answer;
                    ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok);
                    ASSERT_TRUE(answer == request || text_of(answer) == "later");
                }
                EXPECT_GE(client.stats().moved, 5U);
                EXPECT_EQ(client.close(patience()), Status::ok);
            });
        }
        for (std::thread& each : crowd) each.join();
    }
    is_over = true;
    answering.join();
    running.stop();
    EXPECT_EQ(running.group.stats().pending, 0U);
    EXPECT_EQ(running.group.stats().misbehaved, 0U);
}

TEST_P(ServersThatMoveClients, LeaveWhomTheyOweAnAnswerWhereHeIs) {
    std::mutex mutex;
    std::vector<Reply> later;
    ServerOptions chosen = options();
    chosen.patience = 50ms;
    RunningGroup running{2, chosen, [&](Request& request) {
                             if (request.procedure() == 0) return tell_server(request);
                             const std::lock_guard guard{mutex};
                             later.push_back(request.defer());
                         }};
    Client client = running.connect();
    const ClientId id = ask(client);
    std::uint64_t owed = 0;
    ASSERT_EQ(client.submit(bytes_of("when?"), owed, {.procedure = 1}), Status::ok);
    ASSERT_TRUE(eventually([&] {
        (void)client.poll([](const Answer&) { FAIL() << "too early"; });
        const std::lock_guard guard{mutex};
        return later.size() == 1;
    }));
    running.group.move(id, 1 - id.server);
    // Its requests wait, and go on when the patience is over.
    EXPECT_EQ(ask(client), id);
    EXPECT_EQ(running.group.stats().moved, 0U);
    EXPECT_EQ(later[0].answer(bytes_of("now")), Status::ok);
    EXPECT_EQ(client.wait([&](const Answer& answer) { EXPECT_EQ(answer.id, owed); }, patience()),
              Status::ok);
    running.group.move(id, 1 - id.server);
    ASSERT_TRUE(eventually([&] { return running.group.stats().moved == 1; }));
    EXPECT_EQ(ask(client).server, 1 - id.server);
}

TEST_P(ServersThatMoveClients, TellHandlersThatAClientHasLeftThem) {
    RunningGroup running{2, options(), tell_server};
    running.stop();
    std::mutex mutex;
    std::vector<ClientId> gone;
    for (std::size_t i = 0; i < 2; ++i) {
        running.group.server(i).on_unwanted([&](ClientId who, std::uint64_t id) {
            const std::lock_guard guard{mutex};
            if (id == 0) gone.push_back(who);
        });
    }
    std::thread serving{[&] {
        running.group.adopt();
        EXPECT_EQ(running.group.serve(tell_server, Deadline::never()), Status::closed);
    }};
    {
        Client client = running.connect();
        const ClientId id = ask(client);
        running.group.move(id, 1 - id.server);
        EXPECT_TRUE(eventually([&] {
            const std::lock_guard guard{mutex};
            return gone == std::vector{id};
        }));
        EXPECT_NE(ask(client), id);
        EXPECT_EQ(client.close(patience()), Status::ok);
    }
    running.group.stop();
    serving.join();
    running.group.adopt();
}

TEST_P(ServersThatMoveClients, ExecuteNothingTwiceWhereConnectionsBreakMeanwhile) {
    const std::uint64_t count = repetitions(1500);
    Seen seen;
    RunningGroup running{3, options(), [&](Request& request) {
                             seen.note(request, false);
                             echo(request);
                         }};
    std::atomic<std::uint64_t> resumed{0};
    {
        const Mover mover{running.group, seen, 3};
        std::vector<std::thread> crowd;
        for (std::uint64_t whose = 0; whose < 4; ++whose) {
            crowd.emplace_back([&, whose] {
                Breakable one{running.group.address(), resuming()};
                const std::uint64_t sent =
                    talk_while_moved(one, whose, 70 + 13 * whose, [&](std::uint64_t answered) {
                        return answered >= count && one.client.stats().resumed >= 3 &&
                               seen.servers(whose) >= 2;
                    });
                EXPECT_EQ(seen.count(whose), sent) << "each once";
                resumed += one.client.stats().resumed;
                // It may have been cut off behind the last answer.
                EXPECT_THAT(one.client.close(patience()),
                            testing::AnyOf(Status::ok, Status::peer_lost));
            });
        }
        for (std::thread& each : crowd) each.join();
    }
    // Who was cut off behind the last answer is away, as nobody heard that it closed.
    EXPECT_TRUE(eventually([&] {
        const ServerStats now = running.group.stats();
        return now.clients == now.away;
    }));
    running.stop();
    EXPECT_GE(resumed, 12U);
    EXPECT_GE(running.group.stats().moved, 4U);
    EXPECT_EQ(running.group.stats().joined, 4U) << "no session was lost";
}

/// One who is moved and comes back, again and again, before it has read that it was.
void send_on_a_client(const ServerOptions& options) {
    RunningGroup running{3, options, tell_server};
    ClientOptions asking = resuming();
    asking.carrier = options.carrier;
    Breakable one{running.group.address(), asking};
    ClientId id = ask(one.client);
    for (std::uint64_t round = 1; round <= 5; ++round) {
        const std::uint32_t to = (id.server + 1) % 3;
        running.group.move(id, to);
        ASSERT_TRUE(eventually([&] { return running.group.stats().moved == round; }));
        // It has read nothing since, so it asks for its former server.
        one.cut();
        Bytes answer;
        const Deadline deadline = patience();
        while (one.client.stats().resumed < round && !deadline.expired()) (void)ask(one.client);
        id = ask(one.client);
        EXPECT_EQ(id.server, to);
        // Its former server hears of it.
        EXPECT_TRUE(eventually([&] {
            const ServerStats all = running.group.stats();
            return all.clients == 1 && all.away == 0;
        }));
    }
    running.stop();
    EXPECT_EQ(running.group.stats().joined, 1U);
    EXPECT_EQ(running.group.stats().clients, 1U);
    EXPECT_EQ(running.group.stats().away, 0U);
}

TEST_P(ServersThatMoveClients, SendOnWhoHasNotHeardThatItWasMoved) { send_on_a_client(options()); }

TEST_P(ServersThatMoveClients, SendOnWhatTheyHaveBegunToGather) {
    ServerOptions chosen = options();
    chosen.gather_turns = 64;
    chosen.carrier = ring::Carrier::post;
    send_on_a_client(chosen);
}

TEST_P(ServersThatMoveClients, GetThePlacesOfThoseBackWhoAreKilledMeanwhile) {
    Seen seen;
    ServerOptions chosen = options();
    chosen.max_clients = 4;
    RunningGroup running{3, chosen, [&](Request& request) {
                             seen.note(request, true);
                             echo(request);
                         }};
    std::minstd_rand random{17};
    const std::uint64_t rounds = repetitions(12);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        std::vector<ChildProcess> victims;
        for (std::uint64_t i = 0; i < 4; ++i) {
            victims.push_back(ChildProcess::start(
                "message_client",
                {running.group.address().to_string(), std::to_string(round * 4 + i), "1000000000",
                 "1", name_of(chosen_way())}));
        }
        {
            const Mover mover{running.group, seen, static_cast<unsigned>(round + 1)};
            const std::uint64_t moved = running.group.stats().moved + 3 + random() % 10;
            ASSERT_TRUE(eventually([&] {
                return running.group.stats().joined == 4 * (round + 1) &&
                       running.group.stats().moved >= moved;
            }));
            for (ChildProcess& victim : victims) victim.kill_and_wait();
        }
        ASSERT_TRUE(eventually([&] { return running.group.stats().clients == 0; }));
    }
    // There is room for as many as ever.
    std::vector<Client> clients;
    for (std::uint64_t i = 0; i < 4; ++i) clients.push_back(running.connect());
    running.stop();
    EXPECT_EQ(running.group.stats().clients, 4U);
    EXPECT_EQ(running.group.stats().misbehaved, 0U);
}

TEST_P(ServersThatMoveClients, BalanceThreadsWhoseClientsAreBusier) {
    Seen seen;
    // Of who asks all the while, all are one thread's.
    auto group =
        ServerGroup::listen(unique_address(), options(), {.count = 2, .balance_every = 5ms});
    EXPECT_NE(group.explain().find("a busy one gives one away"), std::string::npos);
    std::thread serving{[&] {
        group.adopt();
        const auto handler = [&](Request& request) {
            if (request.procedure() == 1) return tell_server(request);
            seen.note(request, true);
            echo(request);
        };
        EXPECT_EQ(group.serve(handler, Deadline::never()), Status::closed);
    }};
    {
        std::vector<Client> clients;
        std::vector<Client> idle;
        const auto server_of = [&](Client& client) {
            Bytes answer;
            EXPECT_EQ(client.call(bytes_of("who?"), answer, patience(), 1), Outcome::ok);
            ClientId id{.server = ~0U};
            if (answer.size() == sizeof id) std::memcpy(&id, answer.data(), sizeof id);
            return id.server;
        };
        const auto join = [&] {
            return Client::connect(group.address(), options_of_client(), patience());
        };
        std::optional<std::uint32_t> first;
        while (clients.size() < 2) {
            Client client = join();
            const std::uint32_t server = server_of(client);
            if (!first.has_value()) first = server;
            (server == *first ? clients : idle).push_back(std::move(client));
        }
        std::atomic<bool> is_over{false};
        std::vector<std::thread> crowd;
        for (std::uint64_t whose = 0; whose < 2; ++whose) {
            crowd.emplace_back([&, whose] {
                for (std::uint64_t number = 0; !is_over; ++number) {
                    Bytes answer;
                    ASSERT_EQ(clients[whose].call(content(whose, number, 64), answer, patience()),
                              Outcome::ok);
                }
            });
        }
        EXPECT_TRUE(eventually([&] {
            const auto where = seen.whereabouts();
            return where.size() == 2 && where.at(0).server != where.at(1).server;
        })) << "both are one thread's still";
        is_over = true;
        for (std::thread& each : crowd) each.join();
    }
    group.stop();
    serving.join();
    group.adopt();
    EXPECT_GE(group.stats().moved, 1U);
}

TEST_P(ServersThatMoveClients, CloseThoseWhoWereMoved) {
    RunningGroup running{3, options(), tell_server};
    std::vector<Client> clients;
    for (std::uint32_t i = 0; i < 6; ++i) {
        clients.push_back(running.connect());
        const ClientId id = ask(clients.back());
        running.group.move(id, (id.server + 1) % 3);
    }
    running.stop();
    std::thread closing{[&] {
        running.group.adopt();
        EXPECT_EQ(running.group.close(patience()), Status::ok);
    }};
    for (Client& client : clients) {
        Bytes answer;
        Outcome outcome = Outcome::ok;
        const Deadline deadline = patience();
        while (!deadline.expired() && (outcome == Outcome::ok || outcome == Outcome::draining)) {
            outcome = client.call({}, answer, patience());
        }
        EXPECT_EQ(outcome, Outcome::closed);
    }
    closing.join();
    running.group.adopt();
    EXPECT_EQ(running.group.stats().clients, 0U);
}

TEST_P(ServersThatKeepClients, ServeThemWhereTheyAre) {
    RunningGroup running{2, options(), tell_server};
    Client client = running.connect();
    const ClientId id = ask(client);
    running.group.move(id, 1 - id.server);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(ask(client), id);
    running.stop();
    EXPECT_EQ(running.group.stats().moved, 0U);
}

TEST(ServersThatMoveNobody, NameTheirNumberAndTheirTimes) {
    auto group = ServerGroup::listen(unique_address(), {}, {.count = 2});
    EXPECT_THROW(group.move({}, 2), base::Error);
    EXPECT_THROW(group.move({.server = 2}, 0), base::Error);
    group.move({.place = 77, .generation = 3, .server = 1}, 0);
    EXPECT_EQ(group.serve(echo, Deadline::after(5ms)), Status::timed_out) << "nobody is there";
    for (const std::chrono::nanoseconds wrong : {std::chrono::nanoseconds{-1ms}, 10000ns}) {
        EXPECT_THROW(
            (void)ServerGroup::listen(unique_address(), {}, {.count = 2, .balance_every = wrong}),
            base::Error);
    }
}

}  // namespace
}  // namespace millrace::message
