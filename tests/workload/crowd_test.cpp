// Crowds of callers: they begin together, end together when one fails, and miss no delay.
#include "workload/crowd.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.hpp"

namespace millrace::workload {
namespace {

using namespace std::chrono_literals;
using base::Clock;
using Kind = CrowdOptions::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

class Crowds : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Of, Crowds, testing::Values(Kind::threads, Kind::processes),
                         [](const auto& kind) {
                             return kind.param == Kind::threads ? "threads" : "processes";
                         });

TEST_P(Crowds, HaveTheCallsOfAllTheirMembers) {
    const CrowdFigures figures = run_crowd({.members = 4, .kind = GetParam()}, [](CrowdMember& me) {
        (void)me.begin();
        for (std::size_t i = 0; i <= me.number(); ++i) {
            me.record(base::ticks() - base::ticks_in(1ms));
        }
    });
    EXPECT_THAT(figures.per_member, ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(figures.calls(), 10U);
    EXPECT_GE(figures.ns->least(), 990'000U);
    EXPECT_DOUBLE_EQ(figures.least_to_mean(), 0.4);
    EXPECT_GT(figures.seconds, 0);
}

TEST_P(Crowds, TellWhatTheirFirstFailureWasAndLeaveNobodyWaiting) {
    try {
        (void)run_crowd({.members = 3, .kind = GetParam()}, [](CrowdMember& me) {
            if (me.number() == 1) throw std::runtime_error{"the door is shut"};
            (void)me.begin();
        });
        FAIL() << "it has failed";
    } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("the door is shut"));
    }
}

TEST(CrowdOfThreads, BeginsAtOneTimeBehindTheLastThatIsReady) {
    std::mutex lock;
    std::set<Clock::time_point> starts;
    Clock::time_point ready{};
    (void)run_crowd({.members = 3}, [&](CrowdMember& me) {
        if (me.number() == 2) {
            std::this_thread::sleep_for(20ms);
            ready = Clock::now();
        }
        const auto start = me.begin();
        const std::lock_guard guard{lock};
        starts.insert(start);
    });
    ASSERT_EQ(starts.size(), 1U);
    EXPECT_GE(*starts.begin(), ready - 1ms);  // clocks of two threads
}

TEST(CrowdOfProcesses, TellsOfAMemberThatDied) {
    try {
        (void)run_crowd({.members = 2, .kind = Kind::processes}, [](CrowdMember& me) {
            if (me.number() == 1) (void)raise(SIGKILL);
            (void)me.begin();
        });
        FAIL() << "one has died";
    } catch (const base::Error& error) {
        // The other one may have told of that before, which is no cause.
        EXPECT_THAT(error.what(), HasSubstr("killed by signal 9"));
    }
}

TEST(CrowdOfProcesses, KillsMembersThatAreNotDoneInTime) {
    try {
        (void)run_crowd({.members = 2, .kind = Kind::processes, .patience = 1s},
                        [](CrowdMember& me) {
                            (void)me.begin();
                            for (;;) pause();
                        });
        FAIL() << "they never end";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("not done in time"));
    }
}

// A closed loop would have one call that took long: the others are not made meanwhile.
TEST(CrowdLoad, CountsInAnOpenLoopFromWhenACallWasDue) {
    bool is_first = true;
    const CrowdFigures figures = run_crowd({.members = 1}, [&](CrowdMember& me) {
        call_in_turn(me, {.duration = 200ms, .offered_per_second = 1000}, [&] {
            if (std::exchange(is_first, false)) std::this_thread::sleep_for(100ms);
        });
    });
    EXPECT_GE(figures.calls(), 150U);
    EXPECT_GE(figures.ns->quantile(0.8), 40'000'000U);
}

TEST(CrowdLoad, LeavesItsWarmUpOutOfTheFigures) {
    const auto before = Clock::now();
    std::uint64_t may_count = 0;
    const CrowdFigures figures = run_crowd({.members = 1}, [&](CrowdMember& me) {
        call_in_turn(me, {.warm_up = 50ms, .duration = 50ms}, [&] {
            std::this_thread::sleep_for(1ms);
            if (Clock::now() >= before + 50ms) ++may_count;
        });
    });
    EXPECT_LE(figures.calls(), may_count);
}

/// Answers in the order of the calls, with room for so many.
class Answering {
  public:
    explicit Answering(std::size_t room) : room_{room} {}
    bool send(std::uint64_t) {
        if (outstanding_ == room_) return false;
        most_ = std::max(most_, ++outstanding_);
        ++sent;
        return true;
    }
    bool poll() {
        if (outstanding_ == 0) return false;
        --outstanding_;
        return true;
    }
    bool take(const base::Deadline&) { return poll(); }
    void await() {
        if (!poll()) throw std::logic_error{"nothing is on its way"};
    }
    [[nodiscard]] std::size_t outstanding() const { return outstanding_; }
    [[nodiscard]] std::size_t most() const { return most_; }
    std::uint64_t sent = 0;

  private:
    std::size_t room_;
    std::size_t outstanding_ = 0;
    std::size_t most_ = 0;
};

TEST(CrowdCaller, KeepsAsManyOnTheirWayAsItMayAndTakesAllAnswers) {
    for (const std::size_t room : {100U, 3U}) {
        Answering caller{room};
        EXPECT_EQ(keep_calling(caller, 8, [](std::uint64_t sent) { return sent == 100; }), 100U);
        EXPECT_EQ(caller.most(), std::min<std::size_t>(room, 8));
        EXPECT_EQ(caller.outstanding(), 0U);
    }
}

std::uint64_t calls_due(Clock::time_point start, Clock::time_point end) {
    std::uint64_t due = 0;
    for (Pace pace{2000, 5, start}; pace.due() < end; pace.next()) ++due;
    return due;
}

TEST(CrowdCaller, MakesEveryCallThatIsDueWhateverTheRoom) {
    const auto start = Clock::now();
    const auto end = start + 50ms;
    const std::uint64_t due = calls_due(start, end);
    Answering caller{1};
    EXPECT_EQ(call_when_due(caller, 4, Pace{2000, 5, start}, end), due);
    EXPECT_EQ(caller.sent, due);
    EXPECT_EQ(caller.outstanding(), 0U);
}

/// Some of them, for one thread.
struct Driven {
    explicit Driven(std::size_t room) : callers(3, Answering{room}) {
        for (Answering& caller : callers) each.push_back(&caller);
    }
    std::vector<Answering> callers;
    std::vector<Answering*> each;
};

TEST(CrowdCaller, IsDrivenWithOthersByOneThread) {
    Driven driven{2};
    const std::span<Answering* const> all{driven.each};
    EXPECT_EQ(drive(all, 4, [](std::uint64_t sent) { return sent == 100; }), 100U);
    for (const Answering& caller : driven.callers) {
        EXPECT_GE(caller.sent, 32U);
        EXPECT_EQ(caller.most(), 2U);
        EXPECT_EQ(caller.outstanding(), 0U);
    }
}

TEST(CrowdCaller, IsDrivenWithOthersWhenItsCallsAreDue) {
    const auto start = Clock::now();
    const auto end = start + 50ms;
    const std::uint64_t due = calls_due(start, end);
    Driven driven{1};
    const std::span<Answering* const> all{driven.each};
    EXPECT_EQ(drive_when_due(all, 4, Pace{2000, 5, start}, end), due);
    for (const Answering& caller : driven.callers) {
        EXPECT_NEAR(static_cast<double>(caller.sent), static_cast<double>(due) / 3, 1);
        EXPECT_EQ(caller.outstanding(), 0U);
    }
}

/// Gives no answer by itself.
class Silent : public Answering {
  public:
    using Answering::Answering;
    bool poll() { return false; }
    void await() { throw std::runtime_error{"it is silent"}; }
};

TEST(CrowdCaller, ThatIsSilentEndsTheLoopOfItsThread) {
    Silent one{2};
    Silent* const each[] = {&one};
    const std::span<Silent* const> all{each};
    EXPECT_THROW((void)drive(all, 1, [](std::uint64_t) { return false; }), std::runtime_error);
}

}  // namespace
}  // namespace millrace::workload
