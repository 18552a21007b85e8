// Tasks in a hub: what they give and throw, how they wait, and how they end in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "millrace/connect/coroutine.hpp"
#include "millrace/connect/hub.hpp"
#include "peers.hpp"
#include "support/lamp.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using base::Clock;
using base::Deadline;
using base::Status;
using base::Task;
using millrace::test::Lamp;
using test::soon;

/// Says when it is destroyed.
struct Witness {
    explicit Witness(int& count) : gone{&count} {}
    Witness(const Witness&) = delete;
    ~Witness() { ++*gone; }
    int* gone;
};

/// Spawns it, and runs the hub until it has ended.
void run(Hub& hub, Task<> task) {
    const auto all = [](Hub& in, Task<> one) -> Task<> {
        struct Stop {
            Hub& hub;
            ~Stop() { hub.stop(); }
        } stop{in};
        co_await std::move(one);
    };
    base::spawn(hub, all(hub, std::move(task)));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

Task<int> seven() { co_return 7; }
Task<std::unique_ptr<int>> owned(int number) { co_return std::make_unique<int>(number); }
Task<int> failing() {
    throw std::runtime_error{"on purpose"};
    co_return 0;
}

TEST(Task, GivesItsResultToWhoAwaitsIt) {
    Hub hub;
    int sum = 0;
    run(hub, [](int& into) -> Task<> {
        into += co_await seven();
        into += *co_await owned(30);
    }(sum));
    EXPECT_EQ(sum, 37);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, BeginsWhenItIsAwaitedAndNotBefore) {
    Hub hub;
    std::vector<int> order;
    const auto step = [](std::vector<int>& into, int number) -> Task<> {
        into.push_back(number);
        co_return;
    };
    run(hub, [](std::vector<int>& into, const auto& make) -> Task<> {
        Task<> later = make(into, 2);
        into.push_back(1);
        co_await std::move(later);
        into.push_back(3);
    }(order, step));
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
    int gone = 0;
    {
        const Task<> never = [](std::unique_ptr<Witness>) -> Task<> {
            ADD_FAILURE() << "nobody awaits it";
            co_return;
        }(std::make_unique<Witness>(gone));
    }
    EXPECT_EQ(gone, 1);
}

TEST(Task, HandsExceptionsUp) {
    Hub hub;
    std::string caught;
    run(hub, [](std::string& into) -> Task<> {
        try {
            (void)co_await failing();
        } catch (const std::runtime_error& error) {
            into = error.what();
        }
        // The task goes on.
        co_await base::sleep_for(1ms);
        into += " and on";
    }(caught));
    EXPECT_EQ(caught, "on purpose and on");
}

TEST(Task, ThrowsOutOfTheHubWhatNobodyCatchesAndTheHubGoesOn) {
    Hub hub;
    int gone = 0;
    base::spawn(hub, [](int& count) -> Task<> {
        const Witness witness{count};
        co_await base::sleep_for(1ms);
        (void)co_await failing();
    }(gone));
    EXPECT_THROW((void)hub.run(soon()), std::runtime_error);
    EXPECT_EQ(gone, 1);
    EXPECT_EQ(hub.size(), 0U);
    bool ran = false;
    run(hub, [](bool& into) -> Task<> {
        into = true;
        co_return;
    }(ran));
    EXPECT_TRUE(ran);
}

Task<int> depth(int levels) {
    if (levels == 0) co_return 0;
    co_return 1 + co_await depth(levels - 1);
}

TEST(Task, AwaitsTasksOneInTheOther) {
    Hub hub;
    int result = 0;
    run(hub, [](int& into) -> Task<> {
        into = co_await depth(100);
        for (int i = 0; i < 1000; ++i) into += co_await seven();
    }(result));
    EXPECT_EQ(result, 7100);
}

TEST(Task, SleepsSideBySideWithOthers) {
    Hub hub;
    std::vector<base::Clock::time_point> order;  // of those that are awake, when each was due
    const auto sleeper = [](std::vector<base::Clock::time_point>& into, auto time) -> Task<> {
        const auto due = base::Clock::now() + time;
        (void)co_await base::sleep_until(Deadline::at(due));
        EXPECT_GE(base::Clock::now(), due);
        into.push_back(due);
    };
    const base::Executor::Id longest = base::spawn(hub, sleeper(order, 1h));
    base::spawn(hub, sleeper(order, 20ms));
    base::spawn(hub, sleeper(order, 5ms));
    run(hub, sleeper(order, 60ms));
    // However late each of them began, the last one's end is the last.
    EXPECT_EQ(order.size(), 3U);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    EXPECT_TRUE(hub.remove(longest));
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, WaitsForADescriptorUntilTheDeadline) {
    Hub hub;
    Lamp lamp;
    std::vector<Status> answers;
    run(hub, [](const Lamp& one, std::vector<Status>& into) -> Task<> {
        into.push_back(co_await base::readable(one.descriptor(), Deadline::after(5ms)));
        into.push_back(co_await base::readable(one.descriptor(), Deadline::now()));
        one.light();
        into.push_back(co_await base::readable(one.descriptor(), soon()));
        into.push_back(co_await base::readable(one.descriptor(), Deadline::never()));
        one.quench();
        base::Cancellation cancellation;
        const auto until_cancelled = Deadline::never().cancelled_by(cancellation);
        cancellation.request();
        into.push_back(co_await base::readable(one.descriptor(), until_cancelled));
        into.push_back(co_await base::sleep_until(until_cancelled));
    }(lamp, answers));
    EXPECT_EQ(answers, (std::vector<Status>{Status::timed_out, Status::timed_out, Status::ok,
                                            Status::ok, Status::cancelled, Status::cancelled}));
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, IsCancelledFromAnotherThread) {
    Hub hub;
    Lamp lamp;
    base::Cancellation cancellation;
    std::optional<Status> answer;
    std::thread other;
    run(hub,
        [](const Lamp& one, const base::Cancellation& flag, std::optional<Status>& into,
           std::thread& thread, base::Cancellation& to_request) -> Task<> {
            thread = std::thread{[&to_request] { to_request.request(); }};
            into = co_await base::readable(one.descriptor(), Deadline::never().cancelled_by(flag));
        }(lamp, cancellation, answer, other, cancellation));
    other.join();
    EXPECT_EQ(answer, Status::cancelled);
}

/// A hub that counts what is asked of it.
class CountingExecutor final : public base::Executor {
  public:
    explicit CountingExecutor(Hub& hub) : hub_{&hub} {}
    void post(Call call) override { hub_->post(std::move(call)); }
    Id at(Clock::time_point time, Call call) override {
        if (time != Clock::time_point::max()) ++timers;
        return hub_->at(time, std::move(call));
    }
    Id add(int descriptor, Call call) override {
        ++descriptors;
        return hub_->add(descriptor, std::move(call));
    }
    bool remove(Id id) override { return hub_->remove(id); }
    [[nodiscard]] bool is_current() const noexcept override { return hub_->is_current(); }

    int timers = 0;
    int descriptors = 0;

  private:
    Hub* hub_;
};

TEST(Task, AsksForNoTimerToBeCancelledAndSharesOneDescriptorWithOthers) {
    Hub hub;
    CountingExecutor executor{hub};
    Lamp lamp;
    base::Cancellation cancellation;
    constexpr int tasks = 10;
    int cancelled = 0;
    for (int i = 0; i < tasks; ++i) {
        base::spawn(executor, [](const Lamp& one, const base::Cancellation& flag, int number,
                                 int& count) -> Task<> {
            const auto until = Deadline::never().cancelled_by(flag);
            const Status answer = number == 0 ? co_await base::readable(one.descriptor(), until)
                                              : co_await base::sleep_until(until);
            if (answer == Status::cancelled) ++count;
            // It stands: whoever waits again does not begin to.
            if (co_await base::sleep_until(until) == Status::cancelled) ++count;
        }(lamp, cancellation, i, cancelled));
    }
    while (hub.turn() != 0) {
    }
    EXPECT_EQ(executor.timers, 0);
    EXPECT_EQ(executor.descriptors, 2);  // the lamp's, the cancellation's
    EXPECT_EQ(cancelled, 0);
    std::thread other{[&] { cancellation.request(); }};
    EXPECT_EQ(hub.rest(soon()), Status::ok);
    other.join();
    (void)hub.turn();
    EXPECT_EQ(cancelled, 2 * tasks);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, LeavesNothingBehindOfACancellationThatNobodyWaitsForAnyMore) {
    Hub hub;
    for (int i = 0; i < 100; ++i) {
        base::Cancellation cancellation;
        const auto id = base::spawn(hub, [](const base::Cancellation& flag) -> Task<> {
            (void)co_await base::sleep_until(Deadline::never().cancelled_by(flag));
        }(cancellation));
        (void)hub.turn();
        EXPECT_TRUE(hub.remove(id));
        EXPECT_EQ(hub.size(), 0U);
    }
}

TEST(Task, SaysWhichDescriptorCannotBeWaitedFor) {
    Hub hub;
    std::string caught;
    run(hub, [](std::string& into) -> Task<> {
        try {
            (void)co_await base::readable(9'999, soon());
        } catch (const base::Error& error) {
            into = error.what();
        }
    }(caught));
    EXPECT_THAT(caught, testing::HasSubstr("descriptor 9999"));
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, WaitsForADescriptorThatOthersWaitForToo) {
    Hub hub;
    Lamp lamp;
    int woken = 0;
    for (int i = 0; i < 3; ++i) {
        base::spawn(hub, [](const Lamp& one, int& count) -> Task<> {
            EXPECT_EQ(co_await base::readable(one.descriptor(), soon()), Status::ok);
            ++count;
        }(lamp, woken));
    }
    run(hub, [](const Lamp& one) -> Task<> {
        co_await base::sleep_for(5ms);
        one.light();
        EXPECT_EQ(co_await base::readable(one.descriptor(), soon()), Status::ok);
        co_await base::sleep_for(5ms);
    }(lamp));
    EXPECT_EQ(woken, 3);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, IsTakenBackWhileItIsSuspended) {
    Hub hub;
    Lamp lamp;
    int gone = 0;
    const auto inner = [](const Lamp& one, int& count) -> Task<> {
        const Witness witness{count};
        (void)co_await base::readable(one.descriptor(), soon());
        ADD_FAILURE() << "it was taken back";
    };
    const base::Executor::Id id =
        base::spawn(hub, [](const auto& make, const Lamp& one, int& count) -> Task<> {
            const Witness witness{count};
            co_await make(one, count);
        }(inner, lamp, gone));
    while (hub.turn() != 0) {
    }
    EXPECT_EQ(gone, 0);
    EXPECT_GT(hub.size(), 1U);
    lamp.light();
    EXPECT_TRUE(hub.remove(id));
    EXPECT_EQ(gone, 2);
    EXPECT_EQ(hub.size(), 0U) << "what it waited for is taken back";
    EXPECT_EQ(hub.turn(), 0U);
    EXPECT_FALSE(hub.remove(id));
}

TEST(Task, IsTakenBackBeforeItBegins) {
    Hub hub;
    int gone = 0;
    const base::Executor::Id id = base::spawn(hub, [](std::unique_ptr<Witness>) -> Task<> {
        ADD_FAILURE() << "it was taken back";
        co_return;
    }(std::make_unique<Witness>(gone)));
    EXPECT_TRUE(hub.remove(id));
    EXPECT_EQ(gone, 1);
    (void)hub.turn();
}

TEST(Task, TakesItselfBack) {
    Hub hub;
    int gone = 0;
    bool went_on = false;
    std::optional<base::Executor::Id> id;
    id = base::spawn(
        hub,
        [](Hub& in, std::optional<base::Executor::Id>& own, int& count, bool& further) -> Task<> {
            const Witness witness{count};
            EXPECT_TRUE(in.remove(*own));
            further = true;  // to where it is suspended next
            co_await base::sleep_for(1ms);
            ADD_FAILURE() << "it has taken itself back";
        }(hub, id, gone, went_on));
    while (hub.turn() != 0) {
    }
    EXPECT_TRUE(went_on);
    EXPECT_EQ(gone, 1);
    EXPECT_EQ(hub.size(), 0U);
    // And one that ends without being suspended again.
    id = base::spawn(hub, [](Hub& in, std::optional<base::Executor::Id>& own) -> Task<> {
        EXPECT_TRUE(in.remove(*own));
        co_return;
    }(hub, id));
    while (hub.turn() != 0) {
    }
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, TakesAnotherOneBackThatIsDueAtTheSameTime) {
    Hub hub;
    Lamp lamp;
    std::vector<base::Executor::Id> ids(2);
    int went_on = 0;
    for (std::size_t i = 0; i < 2; ++i) {
        ids[i] = base::spawn(
            hub,
            [](Hub& in, const Lamp& one, const base::Executor::Id& other, int& count) -> Task<> {
                EXPECT_EQ(co_await base::readable(one.descriptor(), soon()), Status::ok);
                ++count;
                EXPECT_TRUE(in.remove(other));
            }(hub, lamp, ids[1 - i], went_on));
    }
    while (hub.turn() != 0) {
    }
    lamp.light();
    EXPECT_EQ(hub.rest(soon()), Status::ok);
    while (hub.turn() != 0) {
    }
    EXPECT_EQ(went_on, 1);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, GoesWithItsHub) {
    int gone = 0;
    Lamp lamp;
    {
        Hub hub;
        for (int i = 0; i < 10; ++i) {
            base::spawn(hub, [](const Lamp& one, int& count) -> Task<> {
                const Witness witness{count};
                (void)co_await base::readable(one.descriptor(), soon());
            }(lamp, gone));
            base::spawn(hub, [](int& count) -> Task<> {
                const Witness witness{count};
                co_await base::sleep_for(1h);
            }(gone));
        }
        while (hub.turn() != 0) {
        }
        // And some that have not begun.
        base::spawn(hub, [](std::unique_ptr<Witness>) -> Task<> {
            co_return;
        }(std::make_unique<Witness>(gone)));
        EXPECT_EQ(gone, 0);
    }
    EXPECT_EQ(gone, 21);
}

TEST(Task, GoesWithItsHubInAnotherThread) {
    int gone = 0;
    auto hub = std::make_unique<Hub>();
    base::spawn(*hub, [](int& count) -> Task<> {
        const Witness witness{count};
        co_await base::sleep_for(1h);
    }(gone));
    while (hub->turn() != 0) {
    }
    std::thread{[&] { hub.reset(); }}.join();
    EXPECT_EQ(gone, 1);
}

TEST(Task, IsOneOfMany) {
    constexpr int count = 2000;
    Hub hub;
    int done = 0;
    for (int i = 0; i < count; ++i) {
        base::spawn(hub, [](Hub& in, int number, int& ended) -> Task<> {
            for (int round = 0; round < 3; ++round) {
                co_await base::sleep_for(std::chrono::microseconds{number % 7 * 100});
            }
            if (++ended == count) in.stop();
        }(hub, i, done));
    }
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(done, count);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(Task, AcceptsLinks) {
    Hub hub;
    Listener listener = Listener::listen(test::fresh_address());
    std::vector<std::future<Link>> connecting;
    std::vector<Link> links;
    run(hub,
        [](Listener& from, std::vector<std::future<Link>>& others,
           std::vector<Link>& into) -> Task<> {
            const Accepted<Link> nobody = co_await accept(from, Deadline::after(2ms));
            EXPECT_EQ(nobody.status, Status::timed_out);
            EXPECT_FALSE(nobody.end.has_value());
            for (int i = 0; i < 3; ++i) {
                others.push_back(std::async(
                    std::launch::async, [&from] { return connect(from.address(), {}, soon()); }));
            }
            for (int i = 0; i < 3; ++i) {
                Accepted<Link> accepted = co_await accept(from, soon());
                EXPECT_EQ(accepted.status, Status::ok);
                if (accepted.end.has_value()) into.push_back(std::move(*accepted.end));
            }
        }(listener, connecting, links));
    EXPECT_EQ(links.size(), 3U);
    for (auto& one : connecting) EXPECT_EQ(one.get().peer_now(), PeerState::alive);
}

}  // namespace
}  // namespace millrace::connect
