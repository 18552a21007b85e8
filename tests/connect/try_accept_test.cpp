// Accepting without waiting: by a descriptor, beside crowds that say nothing, half of something, or
// nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "millrace/connect/connector.hpp"
#include "millrace/connect/link.hpp"
#include "peers.hpp"
#include "support/readable.hpp"
#include "support/two_threads.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using millrace::test::accept_in_loop;
using millrace::test::becomes_readable;
using millrace::test::goes_quiet;
using millrace::test::is_readable;
using test::bytes;
using test::fresh_address;
using test::soon;
using test::Stranger;

std::optional<Link> accept_in_loop(Listener& listener) {
    return accept_in_loop(listener, [&] { return listener.try_accept(); });
}
std::future<Link> connect_in_background(const Listener& listener) {
    return std::async(std::launch::async,
                      [&listener] { return connect(listener.address(), {}, soon()); });
}

TEST(TryAccept, IsEmptyHandedUntilSomebodyComes) {
    Listener listener = Listener::listen(fresh_address());
    EXPECT_FALSE(is_readable(listener.descriptor()));
    EXPECT_FALSE(listener.try_accept().has_value());
    EXPECT_FALSE(is_readable(listener.descriptor()));
    auto connecting = connect_in_background(listener);
    std::optional<Link> link = accept_in_loop(listener);
    ASSERT_TRUE(link.has_value());
    Link other = connecting.get();
    EXPECT_EQ(link->peer_now(), PeerState::alive);
    EXPECT_FALSE(listener.try_accept().has_value());
    EXPECT_FALSE(is_readable(listener.descriptor()));
}

// Whoever accepts in a loop serves others between these steps.
TEST(TryAccept, ComesBackBetweenMakingAQueuePairAndConnectingIt) {
    Listener listener = Listener::listen(fresh_address());
    Connector connector{listener.address(), {}};
    EXPECT_FALSE(connector.try_connect().has_value());  // it has said hello
    int calls = 0;
    while (!is_readable(connector.descriptor())) {
        ASSERT_TRUE(becomes_readable(listener.descriptor(), 20s)) << calls << " calls";
        EXPECT_FALSE(listener.try_accept().has_value());
        ++calls;
    }
    EXPECT_GE(calls, 3) << "one for the newcomer, one for the queue pair, one for its connection";
    std::optional<Link> other = connector.try_connect();
    EXPECT_TRUE(other.has_value());
    EXPECT_TRUE(accept_in_loop(listener).has_value());
}

TEST(TryAccept, StaysReadableWhileMoreAreReady) {
    constexpr int count = 12;
    Listener listener = Listener::listen(fresh_address());
    std::vector<std::future<Link>> connecting;
    for (int i = 0; i < count; ++i) connecting.push_back(connect_in_background(listener));
    std::vector<Link> accepted;
    while (accepted.size() < count) {
        std::optional<Link> link = accept_in_loop(listener);
        ASSERT_TRUE(link.has_value()) << accepted.size();
        accepted.push_back(std::move(*link));
    }
    for (auto& one : connecting) EXPECT_EQ(one.get().peer_now(), PeerState::alive);
}

TEST(TryAccept, OfThoseWhoSpeakLeavesTheOthersWaiting) {
    Listener listener = Listener::listen(fresh_address());
    const auto speaking = [&] { return listener.try_accept_speaking(); };
    auto quiet = connect_in_background(listener);
    auto loud = std::async(std::launch::async, [&] {
        Link link = connect(listener.address(), {}, soon());
        link.say(bytes("first"));
        return link;
    });
    std::optional<Link> link = accept_in_loop(listener, speaking);
    ASSERT_TRUE(link.has_value());
    EXPECT_EQ(test::text(link->hear(base::Deadline::now())), "first");
    Link first = loud.get();
    // The other one is through its handshake, or on its way there: a loop serves it.
    std::atomic<bool> is_through{false};
    std::optional<Link> second;
    std::thread waiting{[&] {
        second.emplace(quiet.get());
        is_through = true;
    }};
    while (!is_through) {
        (void)becomes_readable(listener.descriptor(), 10ms);
        EXPECT_FALSE(listener.try_accept_speaking().has_value());
    }
    waiting.join();
    second->say(bytes("second"));
    link = accept_in_loop(listener, speaking);
    ASSERT_TRUE(link.has_value());
    EXPECT_EQ(test::text(link->hear(base::Deadline::now())), "second");
}

TEST(TryAccept, LetsNobodyInTheWayOfWhoComesProperly) {
    Listener listener = Listener::listen(fresh_address());
    // More than there is place for, and each says nothing.
    std::vector<Stranger> crowd;
    auto connecting = std::async(std::launch::async, [&] {
        for (int i = 0; i < 300; ++i) crowd.push_back(Stranger::connect_to(listener.address()));
        crowd[0].say("GET / HTTP/1.1\r\n\r\n");
        crowd[299].say("MLRC");
        return connect(listener.address(), {}, soon());
    });
    std::optional<Link> link = accept_in_loop(listener);
    ASSERT_TRUE(link.has_value());
    Link other = connecting.get();
    EXPECT_EQ(other.peer_now(), PeerState::alive);
    EXPECT_EQ(link->peer_now(), PeerState::alive);
}

TEST(TryAccept, TellsOfNewcomersBehindAHouseThatWasFull) {
    // So few descriptors that 16 peers fill the house.
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit few = before;
    few.rlim_cur = 64;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    Listener listener = Listener::listen(fresh_address());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    // All of them at once, and in no hurry to be the first ones.
    constexpr std::size_t count = 40;
    std::vector<std::future<std::string>> crowd;
    for (std::size_t i = 0; i < count; ++i) {
        crowd.push_back(std::async(std::launch::async, [&listener] {
            try {
                Link link = connect(listener.address(), {}, soon());
                link.say(bytes("first"));
                return test::text(link.hear(soon()));
            } catch (const base::Error& error) {
                return std::string{error.what()};
            }
        }));
    }
    // One at a time, as they are ready.
    std::vector<Link> taken;
    while (taken.size() != count && becomes_readable(listener.descriptor(), 20s)) {
        if (std::optional<Link> link = listener.try_accept_speaking()) {
            link->say(bytes("answer"));
            taken.push_back(std::move(*link));
        } else {
            // A loop with other work: meanwhile each of them says its next word.
            std::this_thread::sleep_for(20ms);
        }
    }
    EXPECT_EQ(taken.size(), count) << "the descriptor stays quiet beside those who wait";
    for (auto& one : crowd) EXPECT_EQ(one.get(), "answer");
}

/// While it lives, the process has no descriptor below `limit` left.
class NoDescriptors {
  public:
    explicit NoDescriptors(rlim_t limit) {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        rlimit few = before_;
        few.rlim_cur = limit;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        for (int one = dup(STDIN_FILENO); one >= 0; one = dup(STDIN_FILENO)) taken_.push_back(one);
    }
    NoDescriptors(const NoDescriptors&) = delete;
    ~NoDescriptors() {
        for (const int one : taken_) close(one);
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
    }

  private:
    rlimit before_{};
    std::vector<int> taken_;
};

TEST(TryAccept, TellsWhoComesWhenThereIsNoDescriptorLeft) {
    Listener listener = Listener::listen(fresh_address());
    std::vector<Stranger> crowd;
    for (int i = 0; i < 3; ++i) crowd.push_back(Stranger::connect_to(listener.address()));
    {
        const NoDescriptors none{256};
        EXPECT_TRUE(is_readable(listener.descriptor()));
        EXPECT_TRUE(goes_quiet(listener.descriptor(),
                               [&] { EXPECT_FALSE(listener.try_accept().has_value()); }));
        for (const Stranger& one : crowd) {
            EXPECT_THAT(one.hear_all(), testing::HasSubstr("the listener's process has no "
                                                           "descriptor left for another peer"));
        }
    }
    auto connecting = connect_in_background(listener);
    std::optional<Link> link = accept_in_loop(listener);
    ASSERT_TRUE(link.has_value());
    EXPECT_EQ(connecting.get().peer_now(), PeerState::alive);
}

TEST(TryAccept, DoesNotKeepALoopSpinningWhereNobodyCanBeTaken) {
    Listener listener = Listener::listen(fresh_address());
    std::future<Link> connecting;
    {
        const Stranger patient = Stranger::connect_to(listener.address());
        // Not even the reserve can be had again.
        const NoDescriptors none{3};
        EXPECT_TRUE(goes_quiet(listener.descriptor(),
                               [&] { EXPECT_FALSE(listener.try_accept().has_value()); }));
        // And looks again now and then.
        EXPECT_TRUE(becomes_readable(listener.descriptor(), 20s));
        EXPECT_TRUE(goes_quiet(listener.descriptor(),
                               [&] { EXPECT_FALSE(listener.try_accept().has_value()); }));
    }
    connecting = connect_in_background(listener);
    std::optional<Link> link = accept_in_loop(listener);
    ASSERT_TRUE(link.has_value());
    EXPECT_EQ(connecting.get().peer_now(), PeerState::alive);
}

TEST(TryAccept, DismissesTheSilentInALoopThatOnlyListens) {
    Listener listener = Listener::listen(fresh_address());
    const Stranger silent = Stranger::connect_to(listener.address());
    const base::Deadline deadline = soon();
    std::string heard;
    std::thread hearing{[&] { heard = silent.hear_all(); }};
    std::atomic<bool> done{false};
    std::thread serving{[&] {
        while (!done && becomes_readable(listener.descriptor(), 20s)) {
            EXPECT_FALSE(listener.try_accept().has_value());
        }
    }};
    hearing.join();
    EXPECT_THAT(heard, testing::HasSubstr("this end took the connection and said nothing for 5 s"));
    done = true;
    const Stranger last = Stranger::connect_to(listener.address());
    serving.join();
    EXPECT_FALSE(deadline.expired());
}

TEST(Link, SaysAndHearsInHalves) {
    test::Pair pair;
    EXPECT_FALSE(pair.a->heard().has_value());
    pair.b->say(bytes("one"));
    pair.b->say(bytes("two"));
    EXPECT_EQ(test::text(pair.a->hear(soon())), "one");
    EXPECT_EQ(test::text(pair.a->hear(soon())), "two");
    EXPECT_FALSE(pair.a->heard().has_value());
    pair.b.reset();
    EXPECT_EQ(test::error_of([&] { (void)pair.a->hear(soon()); }).code(),
              base::ErrorCode::peer_lost);
}

TEST(Endpoint, CanHaveADomainOfItsOwnOnTheSameDevice) {
    const auto one = Endpoint::open();
    const auto other = one->with_own_domain();
    EXPECT_EQ(&one->context(), &other->context());
    EXPECT_NE(one->protection_domain().raw(), other->protection_domain().raw());
    EXPECT_EQ(one->port(), other->port());
    EXPECT_EQ(one->gid_index(), other->gid_index());
    EXPECT_EQ(one->describe(), other->describe());
}

TEST(Endpoint, IsSharedInAChildThatWasForkedWhileAThreadOpenedOne) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's own allocator does not survive it";
#endif
    // What a process makes once is made: a child would wait for ever for a thread that makes it.
    (void)Endpoint::shared();
    std::atomic<bool> over{false};
    std::thread opening{[&] {
        while (!over) (void)Endpoint::shared();
    }};
    for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);  // what hangs is ended
            int code = 1;
            try {
                code = Endpoint::shared() != nullptr ? 7 : 2;
            } catch (const base::Error&) {
                code = 3;
            }
            _exit(code);
        }
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    }
    over = true;
    opening.join();
}

TEST(Endpoint, IsSharedByWhoeverNamesNone) {
    const auto one = Endpoint::shared();
    EXPECT_EQ(Endpoint::shared(), one);
    Listener listener = Listener::listen(fresh_address());
    auto accepted = test::accept_in_background(listener);
    Link near = connect(listener.address(), {}, soon());
    Link far = accepted.get();
    EXPECT_EQ(&near.endpoint(), one.get());
    EXPECT_EQ(&far.endpoint(), one.get());
    EXPECT_NE(Endpoint::open(), one);
}

TEST(Listener, NamesTheMistakeOfASecondThreadInIt) {
    if (millrace::test::sees_races) GTEST_SKIP() << "two threads race in it";
    Listener listener = Listener::listen(fresh_address());
    const auto told = millrace::test::told_to_two_threads(
        [&](const base::Deadline& deadline) { (void)listener.accept(deadline); });
    ASSERT_TRUE(told.has_value());
    EXPECT_THAT(told->what(), testing::HasSubstr("a call of another thread is under way in it"));
    EXPECT_THAT(told->what(), testing::HasSubstr(listener.address().to_string()));
}

}  // namespace
}  // namespace millrace::connect
