// Queues with an active mover: what the thread does, and that it is one for all of them.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "flow/ends.hpp"
#include "millrace/ring/detail/data_mover.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using test::Ends;

constexpr ring::Design basic = ring::design_1;
constexpr ring::Design moved = with(ring::design_1, ring::Batching::dynamic, ring::Mover::active);

/// Threads of this process that are data movers.
int movers() {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
        std::ifstream file{task.path() / "comm"};
        std::string name;
        std::getline(file, name);
        if (name == "millrace-mover") ++count;
    }
    return count;
}

/// Until `done` says true, at most 40 s.
template <class Done>
bool soon(Done&& done) {
    base::NapParker parker;
    return base::wait_until(done, Deadline::after(40s), base::WaitPolicy{}, parker) == Status::ok;
}

TEST(DataMover, LivesAsLongAsAQueueThatNeedsItAndIsOneForAll) {
    EXPECT_EQ(movers(), 0);
    {
        Ends<std::uint64_t, basic> passive{{}};
        EXPECT_EQ(movers(), 0);
        Ends<std::uint64_t, moved> one{{}};
        Ends<std::uint64_t, moved> other{{}};
        EXPECT_TRUE(soon([] { return movers() == 1; }));
        std::uint64_t number = 0;
        for (Ends<std::uint64_t, moved>* ends : {&one, &other}) {
            ASSERT_EQ(ends->producer().enqueue(7, Deadline::after(40s)), Status::ok);
            ASSERT_EQ(ends->consumer().dequeue(number, Deadline::after(40s)), Status::ok);
            EXPECT_EQ(number, 7U);
        }
        EXPECT_EQ(movers(), 1);
    }
    // The kernel lists a thread for a moment longer than it can be joined.
    EXPECT_TRUE(soon([] { return movers() == 0; }));
}

TEST(DataMover, LeavesNoItemStrandedThatAPassiveProducerWould) {
    constexpr std::uint64_t capacity = 8;
    const Options options{.ring = {.capacity = capacity, .carrier = ring::Carrier::post}};
    const auto fill = [](auto& ends) {
        // A mover that has no processor moves nothing for a while.
        for (std::uint64_t sent = 0; sent < 2 * capacity; ++sent) {
            EXPECT_EQ(ends.producer().enqueue(sent, Deadline::after(40s)), Status::ok) << sent;
        }
        EXPECT_EQ(ends.producer().enqueue(2 * capacity, Deadline::after(20ms)), Status::timed_out);
    };
    std::uint64_t number = 0;
    Ends<std::uint64_t, basic> passive{options};
    fill(passive);
    for (std::uint64_t i = 0; i < capacity; ++i) {
        ASSERT_EQ(passive.consumer().try_dequeue(number), Status::ok);
    }
    EXPECT_EQ(passive.consumer().dequeue(number, Deadline::after(50ms)), Status::timed_out);

    Ends<std::uint64_t, moved> active{options};
    fill(active);
    for (std::uint64_t i = 0; i < 2 * capacity; ++i) {
        ASSERT_EQ(active.consumer().dequeue(number, Deadline::after(40s)), Status::ok) << i;
        EXPECT_EQ(number, i);
    }
}

/// Pulled data, by a mover.
template <ring::TransferNotification Transfer, ring::SpaceNotification Space>
struct Pulled {
    static constexpr ring::Design value{ring::DataFlow::pull, Transfer, Space, ring::Batching::none,
                                        ring::Mover::active};
};
template <class D>
class PulledByAMover : public testing::Test {};
using Transfers = ring::TransferNotification;
using Spaces = ring::SpaceNotification;
using EveryPulled =
    testing::Types<Pulled<Transfers::watermark, Spaces::push>,
                   Pulled<Transfers::watermark, Spaces::pull>,
                   Pulled<Transfers::push, Spaces::push>, Pulled<Transfers::push, Spaces::pull>,
                   Pulled<Transfers::pull, Spaces::push>, Pulled<Transfers::pull, Spaces::pull>>;
TYPED_TEST_SUITE(PulledByAMover, EveryPulled);

TYPED_TEST(PulledByAMover, DataComeThoughTheConsumerMakesNoCall) {
    constexpr std::uint64_t capacity = 8;
    Ends<std::uint64_t, TypeParam::value> ends{{.ring = {.capacity = capacity}}};
    // The producer's ring has room again: what lay there is in the consumer's.
    for (std::uint64_t sent = 0; sent < 2 * capacity; ++sent) {
        ASSERT_EQ(ends.producer().enqueue(sent, Deadline::after(40s)), Status::ok) << sent;
    }
    // Both rings are full, and nobody takes.
    EXPECT_EQ(ends.producer().enqueue(2 * capacity, Deadline::after(20ms)), Status::timed_out);
    std::uint64_t number = 0;
    for (std::uint64_t i = 0; i < 2 * capacity; ++i) {
        ASSERT_EQ(ends.consumer().dequeue(number, Deadline::after(40s)), Status::ok) << i;
        EXPECT_EQ(number, i);
    }
    EXPECT_NE(ends.consumer().explain().find("1 READ by the mover"), std::string::npos)
        << ends.consumer().explain();
    EXPECT_GT(ends.consumer().stats().ring.data_reads, 0U);
    EXPECT_GT(ends.consumer().stats().ring.work_requests, 0U);
}

TYPED_TEST(PulledByAMover, ManyLapsArriveInOrder) {
    Ends<std::uint64_t, TypeParam::value> ends{{.ring = {.capacity = 64}}};
    constexpr std::uint64_t items = 5000;
    std::thread producer{[&] {
        for (std::uint64_t i = 0; i < items; ++i) {
            EXPECT_EQ(ends.producer().enqueue(i, Deadline::after(40s)), Status::ok);
        }
        EXPECT_EQ(ends.producer().close(Deadline::after(40s)), Status::ok);
    }};
    std::uint64_t number = 0;
    for (std::uint64_t i = 0; i < items; ++i) {
        ASSERT_EQ(ends.consumer().dequeue(number, Deadline::after(40s)), Status::ok) << i;
        ASSERT_EQ(number, i);
    }
    EXPECT_EQ(ends.consumer().dequeue(number, Deadline::after(40s)), Status::closed);
    producer.join();
}

TEST(DataMover, SleepsWhileThereIsNothingToMove) {
    const auto mover = ring::detail::DataMover::of_this_process();
    Ends<std::uint64_t, moved> ends{{}};
    std::uint64_t number = 0;
    for (std::uint64_t i = 0; i < 3; ++i) {
        const std::uint64_t before = mover->sleeps();
        EXPECT_TRUE(soon([&] { return mover->sleeps() > before; }));
        ASSERT_EQ(ends.producer().try_enqueue(i), Status::ok);
        ASSERT_EQ(ends.consumer().dequeue(number, Deadline::after(40s)), Status::ok);
        EXPECT_EQ(number, i);
    }
}

TEST(DataMover, LeavesSignalsToTheProgramsThreads) {
    Ends<std::uint64_t, moved> ends{{}};
    int seen = 0;
    for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
        std::ifstream status{task.path() / "status"};
        std::string name;
        for (std::string line; std::getline(status, line);) {
            if (line.starts_with("Name:")) name = line.substr(line.find_last_of('\t') + 1);
            if (name != "millrace-mover" || !line.starts_with("SigBlk:")) continue;
            const std::uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
            for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) {
                EXPECT_NE(blocked & (std::uint64_t{1} << (signal - 1)), 0U) << signal;
            }
            ++seen;
        }
    }
    EXPECT_EQ(seen, 1);
}

TEST(DataMover, TellsTheProducerThatItsConsumerIsGone) {
    std::optional<Ends<std::uint64_t, moved>> ends;
    ends.emplace(Options{.ring = {.capacity = 8}});
    ends->consumer().close();
    Status status = Status::ok;
    for (int i = 0; i < 100 && status == Status::ok; ++i) {
        status = ends->producer().enqueue(1, Deadline::after(40s));
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(ends->producer().close(Deadline::after(40s)), Status::closed);
}

TEST(DataMover, IsNamedByExplain) {
    Ends<std::uint64_t, moved> ends{{}};
    const std::string text = ends.producer().explain();
    EXPECT_NE(text.find("design 1 (push1/watermark/pull+dynamic+mover)"), std::string::npos)
        << text;
    EXPECT_NE(text.find("mover: active"), std::string::npos) << text;
    EXPECT_NE(text.find("batching: dynamic"), std::string::npos) << text;
}

TEST(DataMover, StopsWithItsQueueClosedInGoodOrder) {
    Ends<std::uint64_t, moved> ends{{.ring = {.capacity = 8}}};
    for (std::uint64_t i = 0; i < 5; ++i) {
        ASSERT_EQ(ends.producer().try_enqueue(i), Status::ok);
    }
    ASSERT_EQ(ends.producer().close(Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.producer().try_enqueue(9), Status::closed);
    EXPECT_EQ(ends.producer().flush(Deadline::after(40s)), Status::closed);
    EXPECT_EQ(ends.producer().close(Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.producer().stats().items, 5U);
    std::uint64_t number = 0;
    for (std::uint64_t i = 0; i < 5; ++i) {
        ASSERT_EQ(ends.consumer().dequeue(number, Deadline::after(40s)), Status::ok);
        EXPECT_EQ(number, i);
    }
    EXPECT_EQ(ends.consumer().dequeue(number, Deadline::after(40s)), Status::closed);
}

}  // namespace
}  // namespace millrace::flow
