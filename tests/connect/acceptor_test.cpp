// Accepting in a thread of its own: ends, and what fails, come to the hub that serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/placement.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/link.hpp"
#include "peers.hpp"
#include "support/lamp.hpp"

namespace millrace::connect {
namespace {

using base::ErrorCode;
using base::Status;
using millrace::test::Lamp;
using test::error_of;
using test::eventually;
using test::fresh_address;
using test::soon;
using test::Stranger;

std::future<Link> connect_in_background(const Listener& listener) {
    return std::async(std::launch::async,
                      [&listener] { return connect(listener.address(), {}, soon()); });
}

/// Turns until `ready`. False: that takes too long.
template <class Ready>
[[nodiscard]] bool turns_until(Hub& hub, Ready&& ready) {
    const base::Deadline deadline = soon();
    while (!ready()) {
        if (hub.turn() == 0 && hub.rest(deadline) != Status::ok) return false;
    }
    return true;
}

TEST(Acceptor, HandsWhoComesToTheThreadOfTheHub) {
    constexpr std::size_t count = 6;
    Listener listener = Listener::listen(fresh_address());
    const Stranger silent = Stranger::connect_to(listener.address());
    const Stranger hostile = Stranger::connect_to(listener.address());
    hostile.say("GET / HTTP/1.0\r\n");
    Hub hub;
    std::atomic<std::thread::id> accepts_in{};
    std::vector<Link> links;
    const Acceptor acceptor{listener.descriptor(),
                            [&] {
                                accepts_in = std::this_thread::get_id();
                                return listener.try_accept();
                            },
                            hub,
                            [&](Link link) {
                                EXPECT_TRUE(hub.is_current());
                                links.push_back(std::move(link));
                            }};
    std::vector<std::future<Link>> connecting;
    for (std::size_t i = 0; i != count; ++i) connecting.push_back(connect_in_background(listener));
    ASSERT_TRUE(turns_until(hub, [&] { return links.size() == count; }));
    EXPECT_NE(accepts_in.load(), std::this_thread::get_id());
    for (std::future<Link>& one : connecting) {
        Link other = one.get();
        EXPECT_EQ(other.peer_now(), PeerState::alive);
    }
}

TEST(Acceptor, KeepsToTheListenersBudget) {
    Listener listener =
        Listener::listen(fresh_address(), {.admission = {.budget = {.clients = 1}}});
    Hub hub;
    std::optional<Link> only;
    const Acceptor acceptor{listener, hub, [&](Link link) { only.emplace(std::move(link)); }};
    const Link first = connect(listener.address(), {}, soon());
    ASSERT_TRUE(turns_until(hub, [&] { return only.has_value(); }));
    EXPECT_EQ(error_of([&] { (void)connect(listener.address(), {}, soon()); }).code(),
              ErrorCode::refused);
    only.reset();
    const Link second = connect(listener.address(), {}, soon());
    EXPECT_TRUE(turns_until(hub, [&] { return only.has_value(); }));
}

TEST(Acceptor, ThrowsInTheHubWhatFailedAndGoesOn) {
    Hub hub;
    Lamp lamp;
    std::atomic<int> tries{0};
    std::vector<int> taken;
    const Acceptor acceptor{lamp.descriptor(),
                            [&]() -> std::optional<int> {
                                const int number = ++tries;
                                if (number == 2) throw std::runtime_error{"the second"};
                                if (number == 4) lamp.quench();
                                return number <= 3 ? std::optional{number} : std::nullopt;
                            },
                            hub, [&](int number) { taken.push_back(number); }};
    lamp.light();
    ASSERT_TRUE(eventually([&] { return tries == 2; }));
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
    EXPECT_EQ(tries, 2) << "it went on before anybody had been told";
    EXPECT_THROW((void)turns_until(hub, [] { return false; }), std::runtime_error);
    EXPECT_THAT(taken, testing::ElementsAre(1));
    ASSERT_TRUE(turns_until(hub, [&] { return taken.size() == 2; }));
    EXPECT_THAT(taken, testing::ElementsAre(1, 3));
}

TEST(Acceptor, AcceptsNoMoreThanMayWait) {
    Hub hub;
    Lamp lamp;
    lamp.light();
    std::atomic<int> accepted{0};
    std::vector<int> taken;
    const Acceptor acceptor{lamp.descriptor(),
                            [&] { return std::optional{++accepted}; },
                            hub,
                            [&](int number) { taken.push_back(number); },
                            {.most_waiting = 3}};
    ASSERT_TRUE(eventually([&] { return accepted == 3; }));
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
    EXPECT_EQ(accepted, 3) << "more than may wait";
    ASSERT_TRUE(turns_until(hub, [&] { return taken.size() >= 7; }));
    for (std::size_t i = 0; i != taken.size(); ++i) EXPECT_EQ(taken[i], static_cast<int>(i) + 1);
}

TEST(Acceptor, DestroysWhatNobodyHasTaken) {
    Hub hub;
    Lamp lamp;
    lamp.light();
    const auto given = std::make_shared<int>(0);
    std::atomic<int> accepted{0};
    {
        const Acceptor acceptor{
            lamp.descriptor(),
            [&] {
                ++accepted;
                return std::optional{std::shared_ptr<int>{given}};
            },
            hub,
            [](const std::shared_ptr<int>&) { FAIL() << "nobody asked for it"; },
            {.most_waiting = 2}};
        ASSERT_TRUE(eventually([&] { return accepted == 2; }));
    }
    EXPECT_EQ(given.use_count(), 1);
    while (hub.turn() != 0) {
    }
}

TEST(Acceptor, RunsWhereAndAsItIsTold) {
    using Priority = AcceptorOptions::Priority;
    for (const auto& [priority, policy] :
         {std::pair{Priority::background, SCHED_IDLE}, std::pair{Priority::normal, SCHED_OTHER}}) {
        Hub hub;
        Lamp lamp;
        lamp.light();
        const int core = base::available_cores().back();
        struct Seen {
            int policy = -1;
            int cores = 0;
            int core = -1;
        };
        std::optional<Seen> seen;
        const Acceptor acceptor{lamp.descriptor(),
                                [] {
                                    Seen now{.core = base::current_core()};
                                    sched_param parameters{};
                                    (void)pthread_getschedparam(pthread_self(), &now.policy,
                                                                &parameters);
                                    cpu_set_t cores;
                                    EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
                                    now.cores = CPU_COUNT(&cores);
                                    return std::optional{now};
                                },
                                hub,
                                [&](const Seen& what) { seen = what; },
                                {.priority = priority, .cores = {core}}};
        ASSERT_TRUE(turns_until(hub, [&] { return seen.has_value(); }));
        EXPECT_EQ(seen->policy, policy);
        EXPECT_EQ(seen->cores, 1);
        EXPECT_EQ(seen->core, core);
    }
}

TEST(Acceptor, IsRefusedCoresThatAreNotThere) {
    Hub hub;
    Lamp lamp;
    EXPECT_EQ(error_of([&] {
                  const Acceptor acceptor{lamp.descriptor(),
                                          [] { return std::optional<int>{}; },
                                          hub,
                                          [](int) {},
                                          {.cores = {1 << 20}}};
              }).code(),
              ErrorCode::invalid_argument);
}

TEST(Acceptor, IsLeftAloneByTheChildOfAFork) {
    Hub hub;
    Lamp lamp;
    std::vector<int> taken;
    std::optional<Acceptor> acceptor;
    acceptor.emplace(
        lamp.descriptor(),
        [&] {
            lamp.quench();
            return std::optional{7};
        },
        hub, [&](int number) { taken.push_back(number); }, AcceptorOptions{.most_waiting = 1});
    const pid_t child = fork();
    if (child == 0) {
        acceptor.reset();
        _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    lamp.light();
    EXPECT_TRUE(turns_until(hub, [&] { return !taken.empty(); }));
}

}  // namespace
}  // namespace millrace::connect
