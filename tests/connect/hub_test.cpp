// The hub: descriptors, timers, calls from other threads, and being stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "millrace/base/statistics.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/link.hpp"
#include "peers.hpp"
#include "support/lamp.hpp"
#include "support/readable.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using base::Clock;
using base::Status;
using millrace::test::becomes_readable;
using millrace::test::Lamp;
using test::soon;

TEST(Hub, CallsForADescriptorAsLongAsItIsReadable) {
    Hub hub;
    Lamp lamp;
    int calls = 0;
    hub.add(lamp.descriptor(), [&] {
        if (++calls == 3) lamp.quench();
    });
    EXPECT_EQ(hub.turn(), 0U);
    EXPECT_EQ(hub.rest(base::Deadline::after(1ms)), Status::timed_out);
    lamp.light();
    EXPECT_EQ(hub.rest(soon()), Status::ok);
    while (hub.turn() != 0) {
    }
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(hub.turn(), 0U);
}

TEST(Hub, ThatSleepsAtOnceAsksTheKernelOnce) {
    Hub hub{Hub::Options{.wait = base::WaitPolicy::blocking()}};
    Lamp lamp;
    hub.add(lamp.descriptor(), [&] { lamp.quench(); });
    EXPECT_EQ(hub.rest(base::Deadline::after(0ms)), base::Status::timed_out);
    EXPECT_EQ(hub.stats().looks, 1U);
    lamp.light();
    EXPECT_EQ(hub.rest(base::Deadline::after(0ms)), base::Status::ok);
    EXPECT_EQ(hub.stats().looks, 2U);
    EXPECT_EQ(hub.turn(), 1U);
}

TEST(Hub, TellsOtherProcessesWhatItDoesAndHowLongItsTurnsTake) {
    Hub hub;
    Lamp lamp;
    hub.add(lamp.descriptor(), [&] {
        lamp.quench();
        std::this_thread::sleep_for(2ms);
    });
    lamp.light();
    EXPECT_EQ(hub.turn(), 1U);
    EXPECT_EQ(hub.turn(), 0U);
    const auto pages = base::StatisticsPage::of_process(getpid());
    ASSERT_EQ(pages.size(), 1U);
    EXPECT_EQ(pages[0].title, "hub");
    EXPECT_THAT(pages[0].counters, testing::Contains(testing::Pair("calls", 1U)));
    EXPECT_THAT(pages[0].counters, testing::Contains(testing::Pair("looks", 2U)));
    EXPECT_THAT(pages[0].gauges, testing::ElementsAre(testing::Pair("members", 1U)));
    ASSERT_EQ(pages[0].histograms.size(), 1U);
    EXPECT_EQ(pages[0].histograms[0].count, 1U) << "turns that make no call are none";
    EXPECT_GE(pages[0].histograms[0].most, 2'000'000U);
}

TEST(Hub, KeepsToItsBudgetAndForgetsNothing) {
    Hub hub;
    std::vector<Lamp> lamps(5);
    int calls = 0;
    for (const Lamp& lamp : lamps) {
        lamp.light();
        hub.add(lamp.descriptor(), [&] { lamp.quench(), ++calls; });
    }
    EXPECT_EQ(hub.turn(2), 2U);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(hub.turn(2), 2U);
    EXPECT_EQ(hub.rest(base::Deadline::now()), Status::ok);
    EXPECT_EQ(hub.turn(2), 1U);
    EXPECT_EQ(calls, 5);
}

TEST(Hub, AsksTheKernelEachTimeForADescriptorOfTheProgram) {
    Hub hub;
    const Lamp lamp;
    lamp.light();
    hub.add(lamp.descriptor(), [] {});
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(hub.turn(), 1U);
    EXPECT_EQ(hub.stats().looks, 1000U);
}

// The lamp never goes out: what is known of it is good for 10 us, and then the kernel is asked.
TEST(Hub, CallsAnActiveEndWithoutAskingTheKernelEachTimeAndOverlooksNobody) {
    Hub hub;
    const Lamp end, other;
    int calls = 0, others = 0;
    hub.add_end(end.descriptor(), [&] { ++calls; });
    hub.add(other.descriptor(), [&] { other.quench(), ++others; });
    EXPECT_EQ(hub.turn(), 0U) << "nobody is active";
    end.light();
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(hub.turn(), 1U);
    EXPECT_EQ(calls, 1000);
    EXPECT_LT(hub.stats().looks, 1000U);
    other.light();
    const base::Deadline deadline = soon();
    while (others == 0 && !deadline.expired()) (void)hub.turn();
    EXPECT_EQ(others, 1);
    end.quench();
    while (hub.turn() != 0 && !deadline.expired()) {
    }
    EXPECT_EQ(hub.turn(), 0U) << "an end that is quiet is left alone";
}

TEST(Hub, CallsNoEndThatWasRemovedWhileItWasActive) {
    Hub hub;
    const Lamp one, two;
    one.light();
    two.light();
    std::optional<Hub::Id> first, second;
    int calls = 0;
    first = hub.add_end(one.descriptor(), [&] {
        if (++calls == 3) {
            hub.remove(*first);
            hub.remove(*second);
        }
    });
    int of_second = 0;
    second = hub.add_end(two.descriptor(), [&] { ++of_second; });
    const base::Deadline deadline = soon();
    while (calls != 3 && !deadline.expired()) (void)hub.turn();
    const int then = of_second;
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(hub.turn(), 0U);
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(of_second, then);
}

TEST(Hub, RemovesWhatIsDueAndItself) {
    Hub hub;
    Lamp one, other;
    std::optional<Hub::Id> id_of_one, id_of_other;
    int calls = 0;
    const auto call = [&] {
        ++calls;
        EXPECT_TRUE(hub.remove(*id_of_one));
        EXPECT_TRUE(hub.remove(*id_of_other));
    };
    id_of_one = hub.add(one.descriptor(), call);
    id_of_other = hub.add(other.descriptor(), call);
    one.light();
    other.light();
    while (hub.turn() != 0) {
    }
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(hub.size(), 0U);
    EXPECT_FALSE(hub.remove(*id_of_one));
    // The number of a descriptor may be another's by now.
    hub.add(one.descriptor(), [&] { one.quench(); });
    EXPECT_EQ(hub.turn(), 1U);
}

TEST(Hub, CallsTimersInOrderAndNotBefore) {
    Hub hub;
    std::vector<int> order;
    const auto start = Clock::now();
    hub.after(20ms, [&] {
        order.push_back(2);
        EXPECT_GE(Clock::now() - start, 20ms);
        hub.stop();
    });
    hub.after(5ms, [&] { order.push_back(1); });
    const Hub::Id never = hub.after(1ms, [&] { order.push_back(0); });
    EXPECT_TRUE(hub.remove(never));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Hub, RepeatsTimersUntilTheyAreRemoved) {
    Hub hub;
    int calls = 0;
    std::optional<Hub::Id> id;
    id = hub.every(1ms, [&] {
        if (++calls != 5) return;
        EXPECT_TRUE(hub.remove(*id));
        hub.stop();
    });
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(calls, 5);
    EXPECT_EQ(hub.run(base::Deadline::after(5ms)), Status::timed_out);
    EXPECT_EQ(calls, 5);
}

TEST(Hub, MakesTheCallsOfOtherThreadsInTheirOrderAndWakesForThem) {
    Hub hub{{.wait = base::WaitPolicy::blocking()}};
    constexpr int count = 2000;
    std::vector<int> next(2);
    const auto thread = std::this_thread::get_id();
    const auto send = [&](std::size_t who) {
        for (int i = 0; i < count; ++i) {
            hub.post([&, who, i] {
                EXPECT_EQ(std::this_thread::get_id(), thread);
                EXPECT_EQ(next[who]++, i);
            });
            if (i % 64 == 0) std::this_thread::sleep_for(50us);
        }
    };
    std::thread one{send, 0}, other{send, 1};
    const base::Deadline deadline = soon();
    while ((next[0] != count || next[1] != count) && !deadline.expired()) {
        if (hub.turn() == 0) (void)hub.rest(deadline);
    }
    one.join();
    other.join();
    EXPECT_EQ(next, (std::vector<int>{count, count}));
}

TEST(Hub, IsStoppedFromElsewhereOnceAndAtOnce) {
    Hub hub;
    for (int i = 0; i < 20; ++i) {
        std::thread other{[&] {
            std::this_thread::sleep_for(std::chrono::microseconds{300 * i});
            hub.stop();
        }};
        EXPECT_EQ(hub.run(soon()), Status::closed);
        other.join();
    }
    EXPECT_EQ(hub.run(base::Deadline::after(1ms)), Status::timed_out);
    base::Cancellation cancellation;
    cancellation.request();
    EXPECT_EQ(hub.run(soon().cancelled_by(cancellation)), Status::cancelled);
}

TEST(Hub, SleepsOnceWhateverTheTimeUntilItIsCancelled) {
    Hub hub{{.wait = base::WaitPolicy::blocking()}};
    base::Cancellation cancellation;
    const auto sleeps_until = [&](Status how, const base::Deadline& deadline, const auto& end) {
        std::uint64_t sleeps = 0;
        // Where the end comes before this thread sleeps, once more.
        for (int tries = 0; sleeps == 0 && tries < 20; ++tries) {
            cancellation.reset();
            const std::uint64_t before = hub.stats().sleeps;
            std::thread other{[&] {
                std::this_thread::sleep_for(300ms);
                end();
            }};
            EXPECT_EQ(hub.rest(deadline), how);
            other.join();
            sleeps = hub.stats().sleeps - before;
        }
        return sleeps;
    };
    EXPECT_EQ(sleeps_until(Status::cancelled, base::Deadline::never().cancelled_by(cancellation),
                           [&] { cancellation.request(); }),
              1U);
    // Without one, it sleeps until it is stopped.
    EXPECT_EQ(sleeps_until(Status::closed, base::Deadline::never(), [&] { hub.stop(); }), 1U);
}

TEST(Hub, NamesTheMistakeOfAWrongThread) {
    Hub hub;
    Lamp lamp;
    std::thread other{[&] {
        for (const base::Error& error :
             {test::error_of([&] { hub.add(lamp.descriptor(), [] {}); }),
              test::error_of([&] { (void)hub.turn(); }),
              test::error_of([&] { (void)hub.remove(Hub::Id{2}); }),
              test::error_of([&] { (void)hub.size(); }),
              test::error_of([&] { (void)hub.rest(base::Deadline::now()); })}) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_THAT(error.what(), testing::HasSubstr("it belongs to another thread"));
        }
        hub.adopt();
        hub.add(lamp.descriptor(), [&] { lamp.quench(); });
        lamp.light();
        EXPECT_EQ(hub.turn(), 1U);
    }};
    other.join();
    EXPECT_THROW((void)hub.turn(), base::Error);
    hub.adopt();
    EXPECT_EQ(hub.turn(), 0U);
}

TEST(Hub, KeepsAStopThoughAnotherThreadTriesToRunIt) {
    Hub hub;
    hub.stop();
    std::jthread{[&] { EXPECT_THROW((void)hub.run(base::Deadline::now()), base::Error); }}.join();
    EXPECT_EQ(hub.run(base::Deadline::now()), Status::closed);
}

TEST(Hub, RefusesWhatCannotBeWaitedFor) {
    Hub hub;
    Lamp lamp;
    hub.add(lamp.descriptor(), [] {});
    EXPECT_THAT(test::error_of([&] { hub.add(lamp.descriptor(), [] {}); }).what(),
                testing::HasSubstr("in this hub already"));
    EXPECT_EQ(test::error_of([&] { hub.add(-1, [] {}); }).code(),
              base::ErrorCode::invalid_argument);
    EXPECT_EQ(test::error_of([&] { hub.every(0ns, [] {}); }).code(),
              base::ErrorCode::invalid_argument);
    EXPECT_EQ(hub.size(), 1U);
}

TEST(Hub, SaysSoWhereTheKernelEndsNesting) {
    // As connections to one peer are, whose end is an event for each of them.
    Lamp lamp;
    Hub hub;
    std::vector<int> epolls;
    const auto around = [&](int descriptor) {
        epolls.push_back(epoll_create1(EPOLL_CLOEXEC));
        epoll_event event{.events = EPOLLIN, .data = {}};
        EXPECT_EQ(epoll_ctl(epolls.back(), EPOLL_CTL_ADD, descriptor, &event), 0);
        return epolls.back();
    };
    const base::Error error = test::error_of([&] {
        for (int i = 0; i < 110; ++i) hub.add(around(around(lamp.descriptor())), [] {});
    });
    for (const int epoll : epolls) close(epoll);
    EXPECT_EQ(hub.size(), 100U);
    EXPECT_EQ(error.code(), base::ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(), testing::HasSubstr("fewer descriptors into each"));
}

TEST(Hub, MovesItsMembersToAnother) {
    Hub one, other;
    Lamp lamp;
    int calls = 0;
    int alarms = 0;
    const Hub::Id id = one.add(lamp.descriptor(), [&] { lamp.quench(), ++calls; });
    const Hub::Id timer = one.after(20ms, [&] { ++alarms; });
    lamp.light();
    const Hub::Id moved = one.move_to(other, id);
    one.move_to(other, timer);
    EXPECT_EQ(one.size(), 0U);
    EXPECT_EQ(one.turn(), 0U);
    const base::Deadline deadline = soon();
    std::size_t made = 0;
    while (calls + alarms != 2 && !deadline.expired()) {
        EXPECT_EQ(other.rest(deadline), Status::ok);
        made += other.turn();
    }
    EXPECT_EQ(made, 2U);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(alarms, 1);
    EXPECT_EQ(one.turn(), 0U);
    EXPECT_TRUE(other.remove(moved));
    EXPECT_EQ(test::error_of([&] { one.move_to(other, id); }).code(), base::ErrorCode::not_found);
}

TEST(Hub, GoesOnBehindACallThatThrows) {
    Hub hub;
    Lamp lamp;
    lamp.light();
    int calls = 0;
    hub.add(lamp.descriptor(), [&] {
        lamp.quench();
        if (++calls == 1) throw std::runtime_error{"first"};
    });
    hub.post([] { throw std::runtime_error{"posted"}; });
    EXPECT_THROW((void)hub.turn(), std::runtime_error);
    EXPECT_THROW((void)hub.turn(), std::runtime_error);
    lamp.light();
    EXPECT_EQ(hub.turn(), 1U);
    EXPECT_EQ(calls, 2);
}

TEST(Hub, ServesItsMembersWithinAnotherLoop) {
    Hub hub;
    Lamp lamp;
    int calls = 0;
    hub.add(lamp.descriptor(), [&] { lamp.quench(), ++calls; });
    const int descriptor = hub.descriptor();
    EXPECT_FALSE(millrace::test::is_readable(descriptor));
    const auto serve = [&] {
        ASSERT_TRUE(becomes_readable(descriptor, 20s));
        (void)hub.turn();
    };
    lamp.light();
    serve();
    EXPECT_EQ(calls, 1);
    std::thread other{[&] { hub.post([&] { ++calls; }); }};
    while (calls != 2) ASSERT_NO_FATAL_FAILURE(serve());
    other.join();
    hub.after(2ms, [&] { ++calls; });
    (void)hub.turn();
    while (calls != 3) ASSERT_NO_FATAL_FAILURE(serve());
    for (int i = 0; i < 10; ++i) hub.post([&] { ++calls; });
    (void)hub.turn(3);
    while (calls != 13) ASSERT_NO_FATAL_FAILURE(serve());
}

TEST(Hub, WithinAnotherLoopTellsOfTimersThatWereSetSince) {
    Hub hub;
    const int descriptor = hub.descriptor();
    int calls = 0;
    // The outer loop makes other calls, too, and those set timers.
    hub.after(2ms, [&] { ++calls; });
    while (calls != 1) {
        ASSERT_TRUE(becomes_readable(descriptor, 20s));
        (void)hub.turn();
    }
    Hub other;
    const Hub::Id moved = other.after(2ms, [&] { ++calls; });
    other.move_to(hub, moved);
    while (calls != 2) {
        ASSERT_TRUE(becomes_readable(descriptor, 20s));
        (void)hub.turn();
    }
}

TEST(Hub, WithinAnotherLoopGoesOnBehindACallThatThrows) {
    Hub hub;
    const int descriptor = hub.descriptor();
    int calls = 0;
    hub.after(2ms, [&] { ++calls; });
    hub.post([&] { ++calls; });
    hub.post([] { throw std::runtime_error{"second"}; });
    hub.post([&] { ++calls; });
    int thrown = 0;
    while (calls != 3) {
        ASSERT_TRUE(becomes_readable(descriptor, 20s)) << calls << " calls, " << thrown;
        try {
            (void)hub.turn();
        } catch (const std::runtime_error&) {
            ++thrown;
        }
    }
    EXPECT_EQ(thrown, 1);
}

TEST(Hub, LetsWhatItsCallsHoldTakeLeave) {
    // As a session does that its calls keep alive, and that takes all of them back when it goes.
    struct Session {
        explicit Session(Hub& its) : hub{&its} {}
        ~Session() {
            for (const Hub::Id id : ids) hub->remove(id);
        }
        Hub* hub;
        std::vector<Hub::Id> ids;
    };
    const auto begin = [](Hub& hub, std::size_t timers) {
        auto session = std::make_shared<Session>(hub);
        for (std::size_t i = 0; i < timers; ++i) {
            session->ids.push_back(hub.after(1h, [session] {}));
        }
        hub.post([session] {});
        return session->ids;
    };
    Hub hub;
    const auto ids = begin(hub, 3);
    (void)hub.turn();
    for (const Hub::Id id : ids) EXPECT_TRUE(hub.remove(id));
    EXPECT_EQ(hub.size(), 0U);
    // The last of them goes with the hub.
    const auto dying = std::make_unique<Hub>();
    for (int i = 0; i < 20; ++i) (void)begin(*dying, 5);
    EXPECT_EQ(dying->size(), 100U);
}

TEST(Hub, TakesTimesThatNeverComeForNever) {
    Hub hub;
    int calls = 0;
    hub.after(std::chrono::nanoseconds::max(), [&] { ++calls; });
    hub.at(Clock::time_point::max(), [&] { ++calls; });
    hub.every(std::chrono::nanoseconds::max(), [&] { ++calls; });
    EXPECT_EQ(hub.turn(), 0U);
    EXPECT_EQ(hub.run(base::Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(calls, 0);
}

TEST(Hub, AcceptsLinksAndHearsTheirEnd) {
    Hub hub;
    Listener listener = Listener::listen(test::fresh_address());
    std::vector<Link> links;
    int gone = 0;
    constexpr int count = 10;
    hub.add(listener.descriptor(), [&] {
        while (std::optional<Link> link = listener.try_accept()) links.push_back(std::move(*link));
    });
    std::vector<Link> others;
    std::thread crowd{[&] {
        for (int i = 0; i < count; ++i) others.push_back(connect(listener.address(), {}, soon()));
    }};
    const base::Deadline deadline = soon();
    while (links.size() != count && !deadline.expired()) {
        if (hub.turn() == 0) (void)hub.rest(deadline);
    }
    crowd.join();
    ASSERT_EQ(links.size(), count);
    for (Link& link : links) {
        hub.add(link.socket(), [&] {
            if (link.peer_now() == PeerState::alive) return;
            if (++gone == count) hub.stop();
        });
    }
    EXPECT_EQ(hub.run(base::Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(gone, 0);
    others.clear();
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_GE(gone, count);
}

}  // namespace
}  // namespace millrace::connect
