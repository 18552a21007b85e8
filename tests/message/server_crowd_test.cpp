// A server and clients in processes of their own: killed at any time, stopped, hostile, coming back
// to a session, and as many as there may be.
//
// MILLRACE_TEST_ROUNDS: how many join and leave (default 60, in other modes 20, with
// MILLRACE_TEST_LONG 10,000).
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "message/hostile.hpp"
#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "millrace/soft/survey.hpp"
#include "support/child_process.hpp"
#include "support/extent.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::hear;
using test::repetitions;
using test::say;
using namespace std::chrono_literals;

[[nodiscard]] std::uint64_t rounds() {
    const char* const asked = std::getenv("MILLRACE_TEST_ROUNDS");
    if (asked != nullptr) return std::strtoull(asked, nullptr, 10);
    if (std::getenv("MILLRACE_TEST_LONG") != nullptr) return 10'000;
    return test::in_full() ? 60 : 20;
}

/// What this process holds of what clients cost.
struct Held {
    std::size_t descriptors = 0;
    std::size_t mapped = 0;       ///< bytes of memory that is registered, or was mapped of peers
    std::size_t regions = 0;      ///< of the soft device
    std::size_t queue_pairs = 0;  ///< the same
};
Held held() {
    Held held;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        (void)entry;
        ++held.descriptors;
    }
    std::ifstream maps{"/proc/self/maps"};
    for (std::string line; std::getline(maps, line);) {
        if (line.find("memfd:") == std::string::npos) continue;
        std::size_t behind = 0;
        const std::size_t begin = std::stoull(line, &behind, 16);
        held.mapped += std::stoull(line.substr(behind + 1), nullptr, 16) - begin;
    }
    for (const soft::Participant& each : soft::survey().participants) {
        if (each.pid != getpid()) continue;
        held.regions += each.regions.size();
        held.queue_pairs += each.queue_pairs.size();
    }
    return held;
}

class ServersApart : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServersApart, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

/// Of a client: no more requests.
volatile std::sig_atomic_t enough = 0;

/// address, whose, requests of a life (at most: until SIGTERM), lives (0: for ever), way
MILLRACE_CHILD(message_client) {
    std::signal(SIGTERM, [](int) { enough = 1; });
    const auto address = connect::Address::parse(arguments.at(0));
    const std::uint64_t whose = std::stoull(arguments.at(1));
    std::uint64_t count = std::stoull(arguments.at(2));
    const std::uint64_t lives = std::stoull(arguments.at(3));
    chosen_way() = way_named(arguments.at(4));
    try {
        for (std::uint64_t life = 0; lives == 0 || life != lives; ++life) {
            Client client = Client::connect(address, options_of_client(), patience());
            // Every other one sends several requests in a message.
            if (whose % 2 == 1) client.begin_batch();
            std::map<std::uint64_t, std::uint64_t> open;
            std::uint64_t sent = 0;
            std::uint64_t answered = 0;
            while (answered != count) {
                if (enough != 0) count = sent;
                if (answered == count) break;
                std::uint64_t id = 0;
                while (sent != count && client.submit(content(whose, sent, 20 + sent * 31 % 400),
                                                      id) == Status::ok) {
                    open[id] = sent++;
                }
                bool is_right = true;
                const Status status = client.wait(
                    [&](const Answer& answer) {
                        const auto found = open.find(answer.id);
                        is_right = found != open.end() && answer.outcome == Outcome::ok &&
                                   std::ranges::equal(answer.payload,
                                                      content(whose, found->second,
                                                              20 + found->second * 31 % 400));
                        if (found != open.end()) open.erase(found);
                        ++answered;
                    },
                    patience());
                if (status == Status::empty) continue;
                if (status != Status::ok) return 2;
                if (!is_right) return 3;
            }
            const Status closed = client.close(patience());
            if (closed != Status::ok && closed != Status::closed) return 4;
        }
    } catch (const base::Error& error) {
        say(error.what());
        return 1;
    }
    return 0;
}

ChildProcess start_client(const Server& server, std::uint64_t whose, std::uint64_t count,
                          std::uint64_t lives) {
    return ChildProcess::start(
        "message_client", {server.address().to_string(), std::to_string(whose),
                           std::to_string(count), std::to_string(lives), name_of(chosen_way())});
}

TEST_P(ServersApart, AnswerEachAndItsOwn) {
    Server server = Server::listen(unique_address(), options());
    std::vector<ChildProcess> crowd;
    for (std::uint64_t whose = 0; whose < 4; ++whose) {
        crowd.push_back(start_client(server, whose, repetitions(1500), 1));
    }
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> next;
    const Deadline deadline = patience();
    while (server.stats().left < 4 && !deadline.expired()) {
        (void)server.serve(
            [&](Request& request) {
                // In the order of their numbers, each once.
                const ClientId who = request.client();
                EXPECT_EQ(request.id(), (++next[{who.place, who.generation}]));
                echo(request);
            },
            Deadline::after(2ms));
    }
    for (ChildProcess& each : crowd) EXPECT_TRUE(each.wait().success());
    EXPECT_EQ(server.stats().requests, 4U * repetitions(1500));
}

TEST_P(ServersApart, KeepNothingOfClientsWhoComeAndGo) {
    Server server = Server::listen(unique_address(), options());
    // Under load of one who stays.
    ChildProcess steady = start_client(server, 9, 1'000'000'000, 1);
    const auto serve_until = [&](Deadline deadline, auto&& is_done) {
        while (!is_done() && !deadline.expired()) {
            (void)server.serve(echo, Deadline::after(2ms));
        }
    };
    serve_until(patience(), [&] { return server.stats().requests != 0; });
    const auto pass = [&](std::uint64_t lives) {
        const std::uint64_t before = server.stats().left;
        std::vector<ChildProcess> crowd;
        for (std::uint64_t whose = 0; whose < 2; ++whose) {
            crowd.push_back(start_client(server, whose, 3, lives));
        }
        serve_until(Deadline::after(std::chrono::seconds{100} + lives * 50ms),
                    [&] { return server.stats().left >= before + 2 * lives; });
        for (ChildProcess& each : crowd) EXPECT_TRUE(each.wait().success());
    };
    // What a process had that has just died is let go of where somebody polls, by and by.
    constexpr std::size_t some = 4;
    constexpr std::size_t some_bytes = std::size_t{256} << 10;
    const auto settled = [&](const Held& before) {
        Held now = held();
        Deadline next = Deadline::after(20ms);
        serve_until(Deadline::after(20s), [&] {
            // A look goes through all processes of the machine.
            if (next.expired()) {
                now = held();
                next = Deadline::after(20ms);
            }
            return now.descriptors <= before.descriptors + some &&
                   now.mapped <= before.mapped + some_bytes &&
                   now.regions <= before.regions + some && now.queue_pairs <= before.queue_pairs;
        });
        return now;
    };
    const Held alone = held();
    pass(std::min<std::uint64_t>(rounds() / 3, 20));
    const Held before = settled(alone);
    pass(rounds() / 2);
    const Held after = settled(before);
    EXPECT_LE(after.descriptors, before.descriptors + some);
    EXPECT_LE(after.mapped, before.mapped + some_bytes);
    EXPECT_LE(after.regions, before.regions + some);
    EXPECT_LE(after.queue_pairs, before.queue_pairs);
    EXPECT_EQ(server.stats().clients, 1U);
    EXPECT_EQ(server.stats().misbehaved, 0U);
    ASSERT_EQ(::kill(steady.pid(), SIGTERM), 0);
    serve_until(patience(), [&] { return server.stats().clients == 0; });
    EXPECT_TRUE(steady.wait().success());
}

TEST_P(ServersApart, GetThePlacesOfKilledClientsBackWhileOthersAreServed) {
    ServerOptions chosen = options();
    chosen.max_clients = 4;
    Server server = Server::listen(unique_address(), chosen);
    ChildProcess steady = start_client(server, 9, 1'000'000'000, 1);
    std::minstd_rand random{11};
    const Deadline deadline = Deadline::after(100s);
    // How often the server was called for a millisecond.
    const auto serve_until = [&](auto&& is_done) {
        std::uint64_t times = 0;
        for (; !is_done() && !deadline.expired(); ++times) {
            (void)server.serve(echo, Deadline::after(1ms));
        }
        return times;
    };
    (void)serve_until([&] { return server.stats().joined == 1; });
    for (std::uint64_t round = 0; round < repetitions(5); ++round) {
        const std::uint64_t joined = server.stats().joined;
        std::vector<ChildProcess> victims;
        for (std::uint64_t whose = 0; whose < 3; ++whose) {
            victims.push_back(start_client(server, whose, 1'000'000'000, 1));
        }
        (void)serve_until([&] { return server.stats().joined == joined + 3; });
        const std::uint64_t requests = server.stats().requests + random() % 3000;
        (void)serve_until([&] { return server.stats().requests >= requests; });
        for (ChildProcess& victim : victims) victim.kill_and_wait();
        // Within two seconds of serving, however long the machine takes for those.
        EXPECT_LE(serve_until([&] { return server.stats().clients <= 1; }), 2000U);
        ASSERT_FALSE(deadline.expired()) << "in round " << round;
    }
    ASSERT_EQ(::kill(steady.pid(), SIGTERM), 0);
    (void)serve_until([&] { return server.stats().clients == 0; });
    EXPECT_TRUE(steady.wait().success());
}

TEST_P(ServersApart, LeaveStoppedClientsBehindAndGoOnWithThemLater) {
    ServerOptions chosen = options();
    // However long the machine takes for the others: who is stopped for longer is dropped.
    chosen.patience = std::chrono::hours{1};
    Server server = Server::listen(unique_address(), chosen);
    // More than are served in the millisecond in which the 500th is.
    ChildProcess stopped = start_client(server, 1, 8'000, 1);
    const Deadline deadline = Deadline::after(100s);
    while (server.stats().requests < 500 && !deadline.expired()) {
        (void)server.serve(echo, Deadline::after(1ms));
    }
    ASSERT_TRUE(stopped.stop());
    ChildProcess other = start_client(server, 2, repetitions(3000), 1);
    while (server.stats().left < 1 && !deadline.expired()) {
        (void)server.serve(echo, Deadline::after(1ms));
    }
    EXPECT_TRUE(other.wait().success());
    stopped.resume();
    while (server.stats().left < 2 && !deadline.expired()) {
        (void)server.serve(echo, Deadline::after(1ms));
    }
    EXPECT_TRUE(stopped.wait().success());
}

/// way, address or none; serves until it is told to end
MILLRACE_CHILD(message_server) {
    const ServerOptions options = options_of_server(way_named(arguments.at(0)));
    const auto address = arguments.size() > 1 ? connect::Address::parse(arguments.at(1))
                                              : connect::Address::parse("127.0.0.1:0");
    Running running{options,
                    [](Request& request) {
                        if (request.procedure() == 7) return;  // the handler forgot
                        echo(request);
                    },
                    address};
    say(running.server.address().to_string());
    (void)hear();
    return 0;
}

ChildProcess start_server(const Way& way, std::string& address) {
    std::vector<std::string> arguments{name_of(way)};
    if (!address.empty()) arguments.push_back(address);
    ChildProcess child = ChildProcess::start("message_server", arguments);
    address = child.read_line().value_or("nowhere");
    return child;
}

/// At an address where the next one may be: no port of those that the system gives to others.
ChildProcess start_server_that_comes_again(const Way& way, std::string& address) {
    std::mt19937 random{std::random_device{}()};
    for (int tries = 0; tries < 20; ++tries) {
        address = way.meets == connect::Address::Kind::tcp
                      ? "127.0.0.1:" + std::to_string(20'000 + random() % 10'000)
                      : unique_address().to_string();
        ChildProcess child = start_server(way, address);
        if (address != "nowhere") return child;
    }
    throw std::runtime_error{"no address is free"};
}

TEST_P(ServersApart, EndAllCallsWhenTheyAreKilled) {
    std::string address;
    ChildProcess child = start_server(GetParam(), address);
    std::atomic<int> started{0};
    std::vector<std::thread> callers;
    for (std::uint64_t whose = 0; whose < 4; ++whose) {
        callers.emplace_back([&, whose] {
            Client client =
                Client::connect(connect::Address::parse(address), options_of_client(), patience());
            Bytes answer;
            std::uint64_t number = 0;
            Outcome outcome = Outcome::ok;
            while (outcome == Outcome::ok) {
                const Bytes request = content(whose, number++, 64);
                outcome = client.call(request, answer, patience());
                if (outcome == Outcome::ok) {
                    EXPECT_EQ(answer, request);
                }
                if (number == 100) ++started;
            }
            EXPECT_EQ(outcome, Outcome::peer_lost);
            EXPECT_NE(client.failure(), "");
        });
    }
    while (started != 4) std::this_thread::sleep_for(1ms);
    // And those of one who has a window full of them, which nobody answers any more.
    Client waiting =
        Client::connect(connect::Address::parse(address), options_of_client(), patience());
    ASSERT_TRUE(child.stop());
    std::uint64_t id = 0;
    Status status = Status::ok;
    for (int i = 0; i < 16 && status == Status::ok; ++i) {
        status = waiting.submit(content(9, 1, 100), id);
    }
    EXPECT_GT(waiting.outstanding(), 1U);
    child.kill_and_wait();
    EXPECT_EQ(waiting.wait([](const Answer&) { ADD_FAILURE() << "an answer"; }, patience()),
              Status::peer_lost);
    Bytes none;
    EXPECT_EQ(waiting.call({}, none, patience()), Outcome::peer_lost);
    for (std::thread& caller : callers) caller.join();
}

TEST_P(ServersApart, ThatWereRestartedSayThatTheSessionIsLost) {
    std::string address;
    ChildProcess child = start_server_that_comes_again(GetParam(), address);
    ClientOptions resuming = options_of_client();
    resuming.resumes = true;
    Client client = Client::connect(connect::Address::parse(address), resuming, patience());
    Bytes answer;
    ASSERT_EQ(client.call(content(1, 1, 50), answer, patience()), Outcome::ok);
    ASSERT_TRUE(child.stop());
    std::uint64_t ids[3];
    for (std::uint64_t& id : ids) ASSERT_EQ(client.submit(content(1, 2, 50), id), Status::ok);
    child.kill_and_wait();
    child = start_server(GetParam(), address);
    for (const std::uint64_t id : ids) {
        ASSERT_EQ(client.wait(
                      [&](const Answer& its) {
                          EXPECT_EQ(its.id, id);
                          EXPECT_EQ(its.outcome, Outcome::session_lost);
                      },
                      patience()),
                  Status::ok)
            << client.failure();
    }
    ASSERT_EQ(client.call(content(1, 3, 50), answer, patience()), Outcome::ok);
    EXPECT_EQ(answer, content(1, 3, 50));
    EXPECT_EQ(client.stats().resumed, 0U);
}

TEST_P(ServersApart, ExecuteNothingTwiceAndLoseNothingWhenChannelsBreak) {
    std::map<std::uint64_t, int> times;
    Running running{options(), [&](Request& request) {
                        ++times[request.id()];
                        echo(request);
                    }};
    Breakable breakable{running.server.address(), resuming()};
    Client& client = breakable.client;
    const std::uint64_t count = std::max<std::uint64_t>(repetitions(4000), 1000);
    talk_while_it_breaks(breakable, 1, count, 200);
    const std::uint64_t calls = call_until_resumed(breakable, 1);
    running.stop();
    EXPECT_EQ(times.size(), count + calls);
    for (const auto& [id, number] : times) ASSERT_EQ(number, 1) << id;
    EXPECT_EQ(running.server.stats().resumed, client.stats().resumed);
    EXPECT_LE(client.stats().resumed, breakable.cuts) << "it lost what nobody had cut";
    EXPECT_EQ(running.server.stats().joined, 1U);
}

TEST_P(ServersApart, ResumeASessionThatWaitsForNothing) {
    Running running{options(), echo};
    Breakable breakable{running.server.address(), resuming()};
    Client& client = breakable.client;
    Bytes answer;
    ASSERT_EQ(client.call(content(1, 1, 50), answer, patience()), Outcome::ok);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        breakable.cut();
        const Deadline deadline = patience();
        while (client.stats().resumed != round && !deadline.expired()) {
            ASSERT_EQ(client.wait([](const Answer&) { FAIL() << "nobody asked"; }, deadline),
                      Status::empty);
        }
        ASSERT_EQ(client.stats().resumed, round);
        ASSERT_EQ(client.call(content(1, 2, 50), answer, patience()), Outcome::ok);
    }
}

TEST_P(ServersApart, TellHandlersOfARequestThatIsSentAgainWhenItsClientStopsWaiting) {
    Running running{options(), [](Request& request) {
                        const auto left = request.deadline().remaining();
                        (void)request.answer(std::as_bytes(std::span{&left, 1}));
                    }};
    std::optional<Breakable> breakable;
    Status status = Status::peer_lost;
    std::uint64_t cuts = 0;
    // A client looks after its connection by the clock, so again until it has not looked.
    for (const Deadline deadline = patience();
         status == Status::peer_lost && !deadline.expired();) {
        breakable.emplace(running.server.address(), resuming());
        Bytes answer;
        ASSERT_EQ(breakable->client.call({}, answer, Deadline::never()), Outcome::ok);
        breakable->cut();
        ++cuts;
        ASSERT_TRUE(eventually([&] { return running.server.stats().away == cuts; }));
        std::uint64_t id = 0;
        // Nobody takes it where it is sent to.
        status = breakable->client.submit({}, id, {.deadline = Deadline::after(100s)});
    }
    ASSERT_EQ(status, Status::ok);
    Client& client = breakable->client;
    std::chrono::nanoseconds left{};
    ASSERT_EQ(client.wait(
                  [&](const Answer& given) {
                      ASSERT_EQ(given.payload.size(), sizeof left);
                      std::memcpy(&left, given.payload.data(), sizeof left);
                  },
                  patience()),
              Status::ok);
    EXPECT_EQ(client.stats().repeated, 1U);
    EXPECT_GT(left, 10s);
    EXPECT_LE(left, 101s);
}

TEST_P(ServersApart, HearOnceMoreWhatIsNotWantedAnyMore) {
    std::mutex mutex;
    std::vector<Reply> later;
    std::atomic<std::uint64_t> unwanted{0};
    Server server = Server::listen(unique_address(), options());
    server.on_unwanted([&](ClientId, std::uint64_t id) { unwanted = id; });
    test::ServingThread<Server> serving{server, [&](Server& its) {
                                            return its.serve(
                                                [&](Request& request) {
                                                    const std::lock_guard guard{mutex};
                                                    later.push_back(request.defer());
                                                },
                                                Deadline::never());
                                        }};
    Breakable breakable{server.address(), resuming()};
    Client& client = breakable.client;
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(content(1, 1, 100), id), Status::ok);
    ASSERT_TRUE(eventually([&] { return server.stats().pending == 1; }));
    breakable.cut();
    ASSERT_TRUE(eventually([&] { return server.stats().away == 1; }));
    // What it says now is lost with the connection.
    EXPECT_TRUE(client.cancel(id));
    const Deadline deadline = patience();
    while (client.stats().resumed == 0 && !deadline.expired()) {
        (void)client.wait([](const Answer&) {}, deadline);
    }
    ASSERT_EQ(client.stats().resumed, 1U);
    while (unwanted == 0 && !deadline.expired()) {
        EXPECT_NE(client.poll([](const Answer&) { FAIL() << "of what was taken back"; }),
                  Status::ok);
    }
    EXPECT_EQ(unwanted, id);
    EXPECT_TRUE(eventually([&] { return server.stats().pending == 0; }));
    serving.stop();
}

TEST_P(ServersApart, BringAnAnswerThatWasGivenWhileTheClientWasAway) {
    std::mutex mutex;
    std::vector<Reply> later;
    Running running{options(), [&](Request& request) {
                        const std::lock_guard guard{mutex};
                        later.push_back(request.defer());
                    }};
    Breakable breakable{running.server.address(), resuming()};
    std::uint64_t id = 0;
    ASSERT_EQ(breakable.client.submit(content(1, 1, 100), id), Status::ok);
    const auto is_deferred = [&] {
        const std::lock_guard guard{mutex};
        return later.size() == 1;
    };
    const Deadline deadline = patience();
    while (!is_deferred() && !deadline.expired()) std::this_thread::yield();
    breakable.cut();
    EXPECT_EQ(later.at(0).answer(bytes_of("in the meantime")), Status::ok);
    ASSERT_EQ(breakable.client.wait(
                  [&](const Answer& answer) {
                      EXPECT_EQ(answer.id, id);
                      EXPECT_EQ(text_of(answer.payload), "in the meantime");
                  },
                  patience()),
              Status::ok);
    running.stop();
    EXPECT_EQ(running.server.stats().requests, 1U);
    EXPECT_EQ(running.server.stats().pending, 0U);
}

TEST_P(ServersApart, SayThatAnAnswerIsNotKeptAnyMore) {
    ServerOptions chosen = options();
    chosen.tuning.max_kept_bytes = 10;
    std::atomic<int> executed{0};
    Running running{chosen, [&](Request& request) {
                        echo(request);
                        ++executed;
                    }};
    // More answers than its ring holds: the last ones go with the channel.
    ClientOptions small = resuming();
    small.ring_bytes = 4096;
    Breakable breakable{running.server.address(), small};
    std::uint64_t id = 0;
    for (std::uint64_t i = 0; i < 30; ++i) {
        ASSERT_EQ(breakable.client.submit(content(1, i, 400), id), Status::ok);
    }
    const Deadline deadline = patience();
    while (executed != 30 && !deadline.expired()) std::this_thread::yield();
    running.stop();
    breakable.cut();
    while (running.server.stats().away == 0 && !deadline.expired()) {
        (void)running.server.serve(echo, Deadline::after(1ms));
    }
    std::thread again{[&] {
        running.server.adopt();
        (void)running.server.serve(echo, Deadline::never());
    }};
    std::map<Outcome, int> outcomes;
    while (breakable.client.outstanding() != 0) {
        ASSERT_EQ(breakable.client.wait([&](const Answer& answer) { ++outcomes[answer.outcome]; },
                                        patience()),
                  Status::ok);
    }
    running.server.stop();
    again.join();
    running.server.adopt();
    EXPECT_EQ(executed, 30);
    // A socket that is cut keeps what has come.
    EXPECT_GE(outcomes[Outcome::expired], GetParam().has_rings() ? 10 : 0);
    EXPECT_EQ(outcomes[Outcome::ok] + outcomes[Outcome::expired], 30);
}

TEST_P(ServersApart, ForgetASessionWhosePatienceIsOver) {
    ServerOptions chosen = options();
    chosen.session_patience = 1ms;
    Running running{chosen};
    Breakable breakable{running.server.address(), resuming()};
    Bytes answer;
    ASSERT_EQ(breakable.client.call({}, answer, patience()), Outcome::ok);
    breakable.cut();
    // Left: forgotten, not only away.
    const Deadline deadline = patience();
    while (running.server.stats().left == 0 && !deadline.expired())
        std::this_thread::sleep_for(1ms);
    ASSERT_EQ(running.server.stats().left, 1U);
    // Found broken, it begins anew.
    ASSERT_EQ(breakable.client.call(content(1, 1, 10), answer, patience()), Outcome::session_lost);
    ASSERT_EQ(breakable.client.call(content(1, 2, 10), answer, patience()), Outcome::ok);
    EXPECT_EQ(answer, content(1, 2, 10));
    EXPECT_EQ(breakable.client.stats().resumed, 0U);
}

TEST_P(ServersApart, DismissWhoeverSpeaksNonsenseAndServeTheOthers) {
    Running running{options()};
    Client other = running.connect();
    const auto still_serves = [&] {
        Bytes answer;
        ASSERT_EQ(other.call(content(1, 1, 100), answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, content(1, 1, 100));
    };
    using Deed = std::function<void(Hostile&)>;
    const Deed before_hello[] = {
        [](Hostile& it) { it.send(Bytes{}); },
        [](Hostile& it) { it.send(Bytes(15, std::byte{0xff})); },
        [](Hostile& it) { it.send(Bytes(16, std::byte{0})); },
        [](Hostile& it) { it.send(Bytes(400, std::byte{0xff})); },
        [](Hostile& it) { it.send(SessionHeader{.id = 1}); },
        [](Hostile& it) { it.send({.kind = SessionKind::hello}); },
        [](Hostile& it) { it.send({.kind = SessionKind::hello}, pack(Hello{.window = 0})); },
        [](Hostile& it) { it.send({.kind = SessionKind::hello}, pack(Hello{.window = 9999})); },
        [](Hostile& it) {
            it.send({.kind = SessionKind::hello}, pack(Hello{.window = 1, .next_id = 0}));
        },
    };
    const Deed behind_hello[] = {
        [](Hostile& it) { it.send(Bytes{}); },
        [](Hostile& it) { it.send(SessionHeader{.id = 0}); },
        [](Hostile& it) { it.send(SessionHeader{.id = 2}); },
        [](Hostile& it) { it.send(SessionHeader{.id = largest_request_id}); },
        [](Hostile& it) { it.send(SessionHeader{.id = 1, .behind = 1}); },
        [](Hostile& it) { it.send(SessionHeader{.id = 1, .behind = 8}); },
        [](Hostile& it) { it.send({.id = 1, .kind = SessionKind::answer}); },
        [](Hostile& it) { it.send({.id = 1, .kind = SessionKind::welcome}); },
        [](Hostile& it) { it.send({.kind = SessionKind::hello}, pack(Hello{.window = 1})); },
        [](Hostile& it) {  // the same number twice
            it.send(SessionHeader{.id = 1});
            it.send(SessionHeader{.id = 1});
        },
        [](Hostile& it) { it.send(Bytes(16, std::byte{0xff})); },
        [](Hostile& it) {  // nobody has agreed to that
            it.send({.id = 1, .kind = SessionKind::request_by_read},
                    pack(Announcement{.length = 1}));
        },
    };
    for (const Deed& deed : before_hello) {
        Hostile hostile{running.server};
        deed(hostile);
        EXPECT_TRUE(hostile.is_dismissed()) << &deed - before_hello;
        still_serves();
    }
    for (const Deed& deed : behind_hello) {
        Hostile hostile{running.server};
        (void)hostile.join();
        deed(hostile);
        EXPECT_TRUE(hostile.is_dismissed()) << &deed - behind_hello;
        still_serves();
    }
    // A cancellation of nothing is none.
    Hostile harmless{running.server};
    (void)harmless.join();
    harmless.send({.id = 77, .kind = SessionKind::cancel});
    harmless.send({.id = 0, .kind = SessionKind::cancel});
    still_serves();
    running.stop();
    EXPECT_EQ(running.server.stats().misbehaved, std::size(before_hello) + std::size(behind_hello));
}

TEST_P(ServersApart, GreetANewcomerThoughOthersNeverStopAsking) {
    Server server = Server::listen(unique_address(), options());
    std::vector<Client> others;
    for (int i = 0; i < 2; ++i) {
        others.push_back(join_in_turns(server, [&] {
            return Client::connect(server.address(), options_of_client(), patience());
        }));
    }
    const Deadline deadline = patience();
    const auto serve_others = [&] {
        std::size_t answers = 0;
        for (Client& other : others) {
            std::uint64_t id = 0;
            ASSERT_EQ(other.submit(content(1, 1, 64), id), Status::ok) << other.failure();
        }
        while (answers != others.size() && !deadline.expired()) {
            (void)server.turn(echo);
            for (Client& other : others) {
                if (other.poll([](const Answer&) {}) == Status::ok) ++answers;
            }
        }
        ASSERT_EQ(answers, others.size());
    };
    Hostile newcomer = join_in_turns(server, [&] { return Hostile{server}; });
    // Nothing reminds the server of it any more.
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(serve_others());
    newcomer.send({.kind = SessionKind::hello}, pack(Hello{.window = 8, .max_answer = 100}));
    // What the others send comes behind that.
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(serve_others());
    EXPECT_EQ(server.stats().joined, others.size() + 1);
}

TEST_P(ServersApart, LoseALookToForeignMailboxesAndNothingElse) {
    if (GetParam().polling != Polling::dense || !GetParam().has_rings() ||
        GetParam().requests != Transfer::write) {
        GTEST_SKIP() << "there are no bytes to set";
    }
    ServerOptions trusting = options();
    trusting.protection = Protection::trusted;
    Running running{trusting};
    std::vector<Client> others;
    for (int i = 0; i < 3; ++i) others.push_back(running.connect());
    Hostile hostile{running.server};
    const Welcome welcome = hostile.join();
    Channel::Core& core = hostile.core();
    std::fill_n(core.memory.data(), 64, std::byte{0xff});
    const ibv_sge ones = core.memory.slice(0, 64);
    const verbs::RemoteAddress first{welcome.mailbox - welcome.client, welcome.mailbox_rkey};
    for (std::uint64_t number = 0; number < repetitions(300); ++number) {
        // All bytes of the clients, and many of nobody.
        (void)core.window().post(verbs::Write{.from = {&ones, 1}, .to = first});
        for (std::uint64_t i = 0; i < 3; ++i) {
            Bytes answer;
            ASSERT_EQ(others[i].call(content(i, number, 80), answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, content(i, number, 80));
        }
    }
    running.stop();
    EXPECT_GT(running.server.stats().vain_looks, 0U);
    EXPECT_EQ(running.server.stats().misbehaved, 0U);
}

/// What the server has granted to one client, and nobody else is to reach.
std::vector<verbs::RemoteAddress> granted_to(const Hostile& client, const Welcome& welcome) {
    const Channel::Core& core = client.core();
    std::vector<verbs::RemoteAddress> all{core.peer_ring};
    if (welcome.mailbox_rkey != 0) all.push_back({welcome.mailbox, welcome.mailbox_rkey});
    return all;
}

TEST_P(ServersApart, KeepClientsOutOfEachOthersMemory) {
    if (!GetParam().has_rings()) GTEST_SKIP() << "nobody writes into its memory";
    if (GetParam().needs_trust()) GTEST_SKIP() << "its clients are trusted";
    Running running{options()};
    Client other = running.connect();
    Bytes answer;
    std::uint64_t calls = 0;
    const auto still_serves = [&] {
        const Bytes request = content(1, ++calls, 100);
        ASSERT_EQ(other.call(request, answer, patience()), Outcome::ok) << other.failure();
        ASSERT_EQ(answer, request);
    };
    Hostile victim{running.server};
    const Welcome its = victim.join();
    EXPECT_EQ(its.mailbox_rkey != 0,
              GetParam().polling == Polling::dense && GetParam().requests == Transfer::write);
    std::optional<Hostile> leaver{std::in_place, running.server};
    const Welcome left = leaver->join();
    std::vector<verbs::RemoteAddress> foreign = granted_to(victim, its);
    // Keys of one who is here no more, and whose place somebody may have by now.
    for (const verbs::RemoteAddress& stale : granted_to(*leaver, left)) foreign.push_back(stale);
    leaver.reset();
    const Deadline deadline = patience();
    while (running.server.stats().left == 0 && !deadline.expired()) still_serves();
    const auto tries = [&](const char* what, auto&& attempt) {
        for (const verbs::RemoteAddress& place : foreign) {
            Hostile hostile{running.server};
            (void)hostile.join();
            EXPECT_EQ(attempt(hostile, hostile.core().memory.slice(0, 1), place),
                      IBV_WC_REM_ACCESS_ERR)
                << what << ' ' << &place - foreign.data();
            still_serves();
        }
    };
    tries("a WRITE", [](Hostile& hostile, const ibv_sge& byte, verbs::RemoteAddress place) {
        return end_of(hostile, verbs::Write{.from = {&byte, 1}, .to = place});
    });
    tries("a READ", [](Hostile& hostile, const ibv_sge& byte, verbs::RemoteAddress place) {
        return end_of(hostile, verbs::Read{.into = {&byte, 1}, .from = place});
    });
    if (its.mailbox_rkey == 0) return;
    // Its own byte, and the ones beside it.
    for (const int beside : {-1, 0, 1}) {
        Hostile hostile{running.server};
        const Welcome welcome = hostile.join();
        const ibv_sge byte = hostile.core().memory.slice(0, 1);
        EXPECT_EQ(end_of(hostile,
                         verbs::Write{.from = {&byte, 1},
                                      .to = {welcome.mailbox + static_cast<std::uint64_t>(beside),
                                             welcome.mailbox_rkey}}),
                  beside == 0 ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR)
            << beside;
        still_serves();
    }
    // The victim lost nothing: a look, at most.
    Channel::Core& core = victim.core();
    EXPECT_EQ(core.link().peer_now(), connect::PeerState::alive);
}

TEST_P(ServersApart, ReadNothingFromScribblesInARing) {
    if (!GetParam().has_rings()) GTEST_SKIP() << "there are no rings";
    Running running{options()};
    Client other = running.connect();
    std::mt19937_64 random{23};
    for (int round = 0; round < 10; ++round) {
        Hostile hostile{running.server};
        if (round % 2 == 0) (void)hostile.join();
        for (std::uint64_t i = 0; i < repetitions(50); ++i) {
            // By a WRITE, wherever this channel may write.
            Channel::Core& core = hostile.core();
            std::byte* const from = core.memory.data();
            for (int k = 0; k < 64; ++k) from[k] = static_cast<std::byte>(random());
            const ibv_sge noise = core.memory.slice(0, 64);
            const std::uint64_t at = random() % ((std::size_t{16} << 10) / 64) * 64;
            (void)core.window().post(verbs::Write{.from = {&noise, 1}, .to = core.peer_ring + at});
            Bytes answer;
            ASSERT_EQ(other.call(content(1, 1, 80), answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, content(1, 1, 80));
        }
    }
}

TEST_P(ServersApart, ServeHundredsOfWhomFewAreActive) {
    rlimit files{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    const std::size_t count = test::in_full() ? 300 : 150;
    if (files.rlim_cur < 30 * count) GTEST_SKIP() << "too few descriptors are allowed here";
    ServerOptions chosen = options();
    chosen.ring_bytes = 4096;
    Running running{chosen};
    ClientOptions small;
    small.ring_bytes = 4096;
    std::vector<Client> clients;
    for (std::size_t i = 0; i < count; ++i) clients.push_back(running.connect(small));
    Bytes answer;
    std::mt19937_64 random{3};
    for (std::uint64_t number = 0; number < repetitions(1000); ++number) {
        const std::uint64_t whose = random() % count;
        ASSERT_EQ(clients[whose].call(content(whose, number, 64), answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, content(whose, number, 64));
        // The server sleeps meanwhile, now and then.
        if (number % 100 == 0) std::this_thread::sleep_for(2ms);
    }
    // Nobody asks any more.
    EXPECT_TRUE(eventually([&] { return running.server.stats().sleeps != 0; }));
    running.stop();
    EXPECT_EQ(running.server.stats().clients, count);
}

}  // namespace
}  // namespace millrace::message
