// Many producers, one consumer: nothing is lost, doubled or out of order, nobody starves, nobody's
// end disturbs the others.
#include "millrace/flow/fan_in.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "crowd.hpp"
#include "millrace/flow/coroutine.hpp"
#include "millrace/flow/priority.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;
using testing::HasSubstr;

template <ring::Design D>
void produce(const std::string& address, std::uint64_t producer, std::uint64_t count,
             Options options) {
    auto end = Producer<Tagged, D>::connect(address, std::move(options), soon());
    for (std::uint64_t i = 0; i != count; ++i) {
        ASSERT_EQ(end.enqueue(Tagged::make(producer, i), soon()), Status::ok);
    }
    ASSERT_EQ(end.close(soon()), Status::ok);
}

template <class Design>
class FanInOver : public testing::Test {};
template <ring::Design D>
struct Of {
    static constexpr ring::Design value = D;
};
constexpr ring::Design pulled{.data = ring::DataFlow::pull,
                              .transfer = ring::TransferNotification::push,
                              .space = ring::SpaceNotification::push};
constexpr ring::Design sent{.data = ring::DataFlow::push2,
                            .transfer = ring::TransferNotification::event,
                            .space = ring::SpaceNotification::push};
using Designs = testing::Types<Of<ring::design_1>, Of<ring::design_2>, Of<pulled>, Of<sent>>;
TYPED_TEST_SUITE(FanInOver, Designs);

TEST(FanIn, GoesOnWhereItsCloseByAnotherThreadWasRefused) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(), .expected = 1});
    std::jthread producer{
        [&] { produce<ring::design_2>(fan_in.address().to_string(), 0, 10, small()); }};
    Tagged item;
    ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
    std::jthread{[&] { EXPECT_THROW(fan_in.close(), base::Error); }}.join();
    for (std::uint64_t i = 1; i != 10; ++i) EXPECT_EQ(fan_in.dequeue(item, soon()), Status::ok);
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::closed);
}

TYPED_TEST(FanInOver, TakesAllItemsOfAllProducersInTheirOrders) {
    constexpr std::size_t producers = 7;
    constexpr std::uint64_t count = 500;
    constexpr ring::Design design = TypeParam::value;
    for (const base::WaitPolicy policy : {base::WaitPolicy{}, base::WaitPolicy::blocking()}) {
        Options queue = small();
        queue.wait = policy;
        auto fan_in =
            FanIn<Tagged, design>::listen(fresh_address(), {.queue = queue, .expected = producers});
        const std::string address = fan_in.address().to_string();
        std::vector<std::jthread> threads;
        for (std::size_t p = 0; p != producers; ++p) {
            threads.emplace_back([&, p] { produce<design>(address, p, count, queue); });
        }
        InOrder seen{producers};
        ASSERT_NO_FATAL_FAILURE(take_all(fan_in, seen));
        EXPECT_EQ(seen.total(), producers * count);
        const FanInStats stats = fan_in.stats();
        EXPECT_EQ(stats.items, producers * count);
        EXPECT_EQ(stats.joined, producers);
        EXPECT_EQ(stats.closed, producers);
        EXPECT_EQ(stats.producers, 0U);
        EXPECT_EQ(stats.lost, 0U);
    }
}

TEST(FanIn, SaysWhoseAnItemIs) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    std::vector<Producer<Tagged>> producers;
    for (std::uint32_t i = 0; i != 3; ++i) {
        Options options;
        options.ring.label = 100 + i;
        auto connecting = std::async(std::launch::async, [&] {
            return Producer<Tagged>::connect(fan_in.address(), options, soon());
        });
        Tagged none;
        while (connecting.wait_for(0s) != std::future_status::ready) {
            EXPECT_EQ(fan_in.try_dequeue(none), Status::empty);
        }
        producers.push_back(connecting.get());
        EXPECT_EQ(producers.back().peer_label(), 0U);
    }
    for (std::uint32_t i = 0; i != 3; ++i) {
        ASSERT_EQ(producers[i].enqueue(Tagged::make(i, 0), soon()), Status::ok);
    }
    std::map<std::uint32_t, std::uint64_t> from;
    for (int i = 0; i != 3; ++i) {
        Tagged item;
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        EXPECT_EQ(fan_in.last().label, 100 + item.producer);
        EXPECT_EQ(fan_in.last().items, 1U);
        EXPECT_THAT(fan_in.last().peer, HasSubstr("pid " + std::to_string(getpid())));
        from[fan_in.last().label] = fan_in.last().number;
    }
    EXPECT_EQ(from.size(), 3U);
    EXPECT_EQ(fan_in.producers(), 3U);
    EXPECT_THAT(fan_in.explain(), HasSubstr("3 producers"));
}

/// Takes the first item of each of `count` producers, which says that all have joined: whose set-up
/// has been begun only is a producer already, and its items are not to be seen yet.
void hear_of(FanIn<Tagged>& fan_in, std::size_t count) {
    for (std::size_t i = 0; i != count; ++i) {
        Tagged item;
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item, Tagged{});
    }
}

/// Producers that have all joined.
std::vector<Producer<Tagged>> join_all(FanIn<Tagged>& fan_in, std::size_t count, Options options) {
    auto connecting = std::async(std::launch::async, [&, count] {
        std::vector<Producer<Tagged>> made;
        for (std::size_t i = 0; i != count; ++i) {
            made.push_back(Producer<Tagged>::connect(fan_in.address(), options, soon()));
            EXPECT_EQ(made.back().enqueue({}, soon()), Status::ok);
            EXPECT_EQ(made.back().flush(soon()), Status::ok);
        }
        return made;
    });
    hear_of(fan_in, count);
    return connecting.get();
}

TEST(FanIn, ServesNobodyBeyondItsBurstWhileOthersWait) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(64), .burst = 4});
    auto producers = join_all(fan_in, 3, small(64));
    for (std::size_t p = 0; p != producers.size(); ++p) {
        for (std::uint64_t i = 0; i != 32; ++i) {
            ASSERT_EQ(producers[p].enqueue(Tagged::make(p, i), soon()), Status::ok);
        }
        ASSERT_EQ(producers[p].flush(soon()), Status::ok);
    }
    std::vector<std::uint64_t> order;
    Tagged item;
    while (order.size() != 96) {
        ASSERT_EQ(fan_in.try_dequeue(item), Status::ok);
        order.push_back(item.producer);
    }
    // Each lap serves all three, four items each.
    for (std::size_t lap = 0; lap != 8; ++lap) {
        std::map<std::uint64_t, int> served;
        for (std::size_t i = 0; i != 12; ++i) ++served[order[lap * 12 + i]];
        for (const auto& [producer, times] : served) EXPECT_EQ(times, 4) << producer;
        EXPECT_EQ(served.size(), 3U);
    }
}

TEST(Levels, EachServesNobodyBeyondItsBurstAndUpToIt) {
    for (std::uint32_t level = 0; level != 3; ++level) {
        Options queue = small(64);
        auto fan_in =
            FanIn<Tagged>::listen(fresh_address(), {.queue = queue, .levels = 3, .burst = 4});
        queue.ring.label = level;
        auto producers = join_all(fan_in, 2, queue);
        for (std::size_t p = 0; p != 2; ++p) {
            for (std::uint64_t i = 0; i != 32; ++i) {
                ASSERT_EQ(producers[p].enqueue(Tagged::make(p, i), soon()), Status::ok);
            }
            ASSERT_EQ(producers[p].flush(soon()), Status::ok);
        }
        std::vector<int> bursts{0};
        Tagged item;
        std::uint64_t last = 0;
        for (int i = 0; i != 64; ++i) {
            ASSERT_EQ(fan_in.try_dequeue(item), Status::ok);
            if (std::exchange(last, item.producer) != item.producer) bursts.push_back(0);
            ++bursts.back();
        }
        // The first one may have begun with the items by which they joined.
        ASSERT_GT(bursts.size(), 3U);
        for (std::size_t i = 0; i != bursts.size(); ++i) {
            const bool is_whole = i > 1 && i + 1 != bursts.size();
            EXPECT_TRUE(is_whole ? bursts[i] == 4 : bursts[i] <= 4)
                << bursts[i] << " at once, burst " << i << " of level " << level;
        }
    }
}

TEST(FanIn, TakesBatchesAndHandsItemsOutInPlace) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(64), .burst = 8});
    auto producers = join_all(fan_in, 2, small(64));
    for (std::size_t p = 0; p != 2; ++p) {
        for (std::uint64_t i = 0; i != 20; ++i) {
            ASSERT_EQ(producers[p].enqueue(Tagged::make(p, i), soon()), Status::ok);
        }
        ASSERT_EQ(producers[p].flush(soon()), Status::ok);
    }
    InOrder seen{2};
    const Tagged* front = nullptr;
    ASSERT_EQ(fan_in.peek(front), Status::ok);
    const Tagged* again = nullptr;
    ASSERT_EQ(fan_in.peek(again), Status::ok);
    EXPECT_EQ(front, again) << "it stays in front";
    seen.see(*front);
    fan_in.release();
    std::vector<Tagged> batch(50);
    const BatchResult result = fan_in.try_dequeue_batch(batch);
    EXPECT_EQ(result.count, 39U);
    EXPECT_EQ(result.status, Status::empty);
    for (std::size_t i = 0; i != result.count; ++i) seen.see(batch[i]);
    EXPECT_EQ(fan_in.stats().items, 2 + 40U);
    fan_in.release();  // of nothing: no harm
}

TEST(FanIn, SaysWhoseAnItemIsThatIsPeekedAt) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(64), .burst = 1});
    auto producers = join_all(fan_in, 2, small(64));
    for (std::size_t p = 0; p != 2; ++p) {
        ASSERT_EQ(producers[p].enqueue(Tagged::make(p, 0), soon()), Status::ok);
        ASSERT_EQ(producers[p].flush(soon()), Status::ok);
    }
    for (int i = 0; i != 2; ++i) {
        const Tagged* front = nullptr;
        ASSERT_EQ(fan_in.peek(front), Status::ok);
        EXPECT_EQ(fan_in.last().number, front->producer + 1);
        EXPECT_EQ(fan_in.last().items, 1U) << "it is not taken yet";
        fan_in.release();
        EXPECT_EQ(fan_in.last().items, 2U);
    }
}

TEST(FanIn, OfBytesTakesItemsOfAnyLength) {
    auto fan_in = FanIn<Bytes>::listen(fresh_address(), {.expected = 2});
    const std::string address = fan_in.address().to_string();
    std::vector<std::jthread> threads;
    for (std::size_t p = 0; p != 2; ++p) {
        threads.emplace_back([&, p] {
            auto end = Producer<Bytes>::connect(address, {}, soon());
            for (std::size_t i = 0; i != 300; ++i) {
                const std::vector<std::byte> item(i % 70, std::byte(p));
                ASSERT_EQ(end.enqueue(item, soon()), Status::ok);
            }
            ASSERT_EQ(end.close(soon()), Status::ok);
        });
    }
    std::vector<std::byte> item;
    std::map<std::byte, std::size_t> bytes;
    std::size_t items = 0;
    Status status;
    while ((status = fan_in.dequeue(item, soon())) == Status::ok) {
        ++items;
        for (const std::byte byte : item) ++bytes[byte];
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(items, 600U);
    EXPECT_EQ(bytes[std::byte{0}], bytes[std::byte{1}]);
}

TEST(FanIn, TellsOfWhoJoinsAndLeaves) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    std::vector<std::pair<std::uint64_t, Status>> changes;
    fan_in.on_change(
        [&](const FanInSource& source, Status how) { changes.emplace_back(source.number, how); });
    {
        auto producers = join_all(fan_in, 2, {});
        ASSERT_EQ(producers[0].enqueue(Tagged::make(0, 0), soon()), Status::ok);
        auto closing = std::async(std::launch::async, [&] { return producers[0].close(soon()); });
        Tagged item;
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        const Deadline deadline = soon();
        while (changes.size() != 3 && !deadline.expired()) {
            EXPECT_EQ(fan_in.try_dequeue(item), Status::empty);
        }
        EXPECT_EQ(closing.get(), Status::ok);
        // The other one goes without a goodbye.
    }
    Tagged item;
    const Deadline deadline = soon();
    while (changes.size() != 4 && !deadline.expired()) {
        EXPECT_EQ(fan_in.try_dequeue(item), Status::empty);
    }
    ASSERT_EQ(changes.size(), 4U);
    EXPECT_EQ(changes[0], (std::pair<std::uint64_t, Status>{1, Status::ok}));
    EXPECT_EQ(changes[1], (std::pair<std::uint64_t, Status>{2, Status::ok}));
    EXPECT_EQ(changes[2], (std::pair<std::uint64_t, Status>{1, Status::closed}));
    EXPECT_EQ(changes[3], (std::pair<std::uint64_t, Status>{2, Status::peer_lost}));
    EXPECT_EQ(fan_in.stats().closed, 1U);
    EXPECT_EQ(fan_in.stats().lost, 1U);
}

TEST(FanIn, WaitsNoLongerThanItsDeadlineWithAndWithoutProducers) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    Tagged item;
    EXPECT_EQ(fan_in.dequeue(item, Deadline::after(20ms)), Status::timed_out);
    auto producers = join_all(fan_in, 3, {});
    EXPECT_EQ(fan_in.dequeue(item, Deadline::after(20ms)), Status::timed_out);
    ASSERT_EQ(producers[1].enqueue(Tagged::make(1, 0), soon()), Status::ok);
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::ok);
}

TEST(FanIn, SleepsAndIsWokenByWhoeverSends) {
    Options blocking;
    blocking.wait = base::WaitPolicy::blocking();
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = blocking});
    auto producers = join_all(fan_in, 5, blocking);
    const std::uint64_t before = fan_in.stats().sleeps;
    const auto has_slept = [&] { return fan_in.stats().sleeps != before; };
    InOrder seen{5};
    // Nothing makes a busy machine's threads meet, so again until they have.
    const Deadline deadline = soon();
    for (std::uint64_t first = 0; !has_slept() && !deadline.expired(); first += 60) {
        std::jthread sender{[&] {
            for (std::uint64_t i = first; i != first + 60; ++i) {
                std::this_thread::sleep_for(std::chrono::microseconds{i % 5 * 300});
                auto& producer = producers[i % 5];
                if (producer.enqueue(Tagged::make(i % 5, i / 5), soon()) != Status::ok) return;
            }
        }};
        for (int i = 0; i != 60; ++i) {
            Tagged item;
            ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok) << i;
            seen.see(item);
        }
    }
    EXPECT_TRUE(has_slept());
}

TEST(FanIn, CanBeInAProgramsOwnLoop) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.expected = 3});
    const std::string address = fan_in.address().to_string();
    const int descriptor = fan_in.descriptor();
    std::vector<std::jthread> threads;
    for (std::size_t p = 0; p != 3; ++p) {
        threads.emplace_back([&, p] {
            auto end = Producer<Tagged>::connect(address, small(), soon());
            for (std::uint64_t i = 0; i != 200; ++i) {
                if (i % 50 == 49) std::this_thread::sleep_for(1ms);
                ASSERT_EQ(end.enqueue(Tagged::make(p, i), soon()), Status::ok);
            }
            ASSERT_EQ(end.close(soon()), Status::ok);
        });
    }
    InOrder seen{3};
    Status status = Status::empty;
    while (status != Status::closed) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s)) << seen.total();
        Tagged item;
        status = fan_in.try_dequeue(item);
        if (status == Status::ok) seen.see(item);
    }
    EXPECT_EQ(seen.total(), 600U);
}

TEST(FanIn, GoesQuietInALoopWhenNobodySends) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    const int descriptor = fan_in.descriptor();
    auto producers = join_all(fan_in, 4, {});
    Tagged item;
    EXPECT_TRUE(millrace::test::goes_quiet(descriptor, [&] { (void)fan_in.try_dequeue(item); }));
    for (std::uint64_t i = 0; i != 4; ++i) {
        ASSERT_EQ(producers[i].enqueue(Tagged::make(i, 0), soon()), Status::ok);
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s));
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item.producer, i);
        EXPECT_TRUE(
            millrace::test::goes_quiet(descriptor, [&] { (void)fan_in.try_dequeue(item); }));
    }
}

TEST(FanIn, RefusesMoreProducersThanItsBudget) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.max_producers = 2});
    auto producers = join_all(fan_in, 2, {});
    auto third = std::async(std::launch::async, [&] {
        return error_of([&] { (void)Producer<Tagged>::connect(fan_in.address(), {}, soon()); });
    });
    Tagged item;
    while (third.wait_for(0s) != std::future_status::ready) (void)fan_in.try_dequeue(item);
    EXPECT_EQ(third.get().code(), base::ErrorCode::refused);
    // Who leaves makes room.
    producers.pop_back();
    while (fan_in.producers() != 1) (void)fan_in.try_dequeue(item);
    auto fourth = join_all(fan_in, 1, {});
    EXPECT_EQ(fan_in.producers(), 2U);
}

TEST(FanIn, LetsNobodyInBehindThoseItExpects) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.expected = 1});
    auto producers = join_all(fan_in, 1, {});
    EXPECT_THROW((void)Producer<Tagged>::connect(fan_in.address(), {}, Deadline::after(200ms)),
                 base::Error);
    auto closing = std::async(std::launch::async, [&] { return producers[0].close(soon()); });
    Tagged item;
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::closed);
    EXPECT_EQ(closing.get(), Status::ok);
    EXPECT_EQ(fan_in.try_dequeue(item), Status::closed);
}

TEST(FanIn, ThatIsClosedHasNothingPeekedAtAnyMore) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    auto producers = join_all(fan_in, 1, {});
    ASSERT_EQ(producers[0].enqueue(Tagged::make(0, 0), soon()), Status::ok);
    const Tagged* item = nullptr;
    ASSERT_EQ(fan_in.peek(item, soon()), Status::ok);
    fan_in.close();
    fan_in.release();
    EXPECT_EQ(fan_in.peek(item), Status::closed);
    EXPECT_EQ(fan_in.stats().items, 1U) << "the first one, by which it joined";
}

TEST(FanIn, ClosesAllItsQueues) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    auto producers = join_all(fan_in, 3, {});
    fan_in.close();
    Tagged item;
    EXPECT_EQ(fan_in.try_dequeue(item), Status::closed);
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::closed);
    for (auto& producer : producers) {
        Status status;
        while ((status = producer.enqueue({}, soon())) == Status::ok) {
        }
        EXPECT_EQ(status, Status::closed);
    }
}

TEST(FanIn, MayBeEndedByAnotherThreadThanItBelongsTo) {
    std::optional<FanIn<Tagged>> fan_in{FanIn<Tagged>::listen(fresh_address())};
    auto producers = join_all(*fan_in, 2, {});
    std::jthread{[&] { fan_in.reset(); }}.join();
    Status status = Status::ok;
    const Deadline deadline = soon();
    while (status == Status::ok && !deadline.expired()) status = producers[0].enqueue({}, soon());
    EXPECT_EQ(status, Status::peer_lost);
}

TEST(FanIn, SaysToAnotherThreadWhoseItIsAndWhatToDo) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    const auto told_elsewhere = [&](auto&& call) {
        std::string text;
        std::jthread{[&] {
            // At the latest when a look is due.
            const Deadline deadline = soon();
            while (text.empty() && !deadline.expired()) {
                try {
                    call();
                } catch (const base::Error& error) {
                    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
                    text = error.what();
                }
            }
        }}.join();
        return text;
    };
    const std::string whose = "a fan-in at " + fan_in.address().to_string();
    Tagged item;
    const auto is_told = [&](const char* what) {
        return testing::AllOf(HasSubstr(what), HasSubstr(whose),
                              HasSubstr("it belongs to another thread"), HasSubstr("adopt()"),
                              testing::Not(HasSubstr("a hub")));
    };
    EXPECT_THAT(told_elsewhere([&] { (void)fan_in.try_dequeue(item); }), is_told("take items"));
    EXPECT_THAT(told_elsewhere([&] { (void)fan_in.dequeue(item, Deadline::after(1ms)); }),
                HasSubstr(whose));
    EXPECT_THAT(told_elsewhere([&] { (void)fan_in.look_around(); }), is_told("take items"));
    EXPECT_THAT(told_elsewhere([&] { (void)fan_in.descriptor(); }), is_told("put into a loop"));
    EXPECT_THAT(told_elsewhere([&] { fan_in.stop_accepting(); }), is_told("stop accepting"));
    EXPECT_THAT(told_elsewhere([&] { fan_in.close(); }), is_told("close"));
    EXPECT_EQ(fan_in.try_dequeue(item), Status::empty) << "it is as it was";
}

TEST(FanIn, RefusesOptionsThatCannotWork) {
    EXPECT_EQ(
        error_of([] { (void)FanIn<Tagged>::listen(fresh_address(), {.max_producers = 0}); }).code(),
        base::ErrorCode::invalid_argument);
    EXPECT_EQ(error_of([] { (void)FanIn<Tagged>::listen(fresh_address(), {.levels = 0}); }).code(),
              base::ErrorCode::invalid_argument);
    EXPECT_EQ(
        error_of([] { (void)FanIn<Tagged>::listen(fresh_address(), {.levels = 257}); }).code(),
        base::ErrorCode::invalid_argument);
    EXPECT_EQ(error_of([] { (void)FanIn<Tagged>::listen(fresh_address(), {.burst = 0}); }).code(),
              base::ErrorCode::invalid_argument);
}

// --- levels

PriorityProducer<Tagged> join_levels(FanIn<Tagged>& fan_in, std::uint32_t levels, Options options) {
    auto connecting = std::async(std::launch::async, [&, levels] {
        auto made = PriorityProducer<Tagged>::connect(fan_in.address(), levels, options, soon());
        for (std::size_t level = 0; level != levels; ++level) {
            EXPECT_EQ(made.enqueue(level, {}, soon()), Status::ok);
        }
        EXPECT_EQ(made.flush(soon()), Status::ok);
        return made;
    });
    hear_of(fan_in, levels);
    return connecting.get();
}

TEST(Levels, AreEmptiedInTheirOrder) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(64), .levels = 3});
    auto first = join_levels(fan_in, 3, small(64));
    auto second = join_levels(fan_in, 3, small(64));
    for (std::uint64_t i = 0; i != 20; ++i) {
        for (std::size_t level : {2U, 0U, 1U}) {
            ASSERT_EQ(first.enqueue(level, Tagged::make(level, i), soon()), Status::ok);
            ASSERT_EQ(second.enqueue(level, Tagged::make(3 + level, i), soon()), Status::ok);
        }
    }
    ASSERT_EQ(first.flush(soon()), Status::ok);
    ASSERT_EQ(second.flush(soon()), Status::ok);
    InOrder seen{6};
    for (std::size_t i = 0; i != 120; ++i) {
        Tagged item;
        ASSERT_EQ(fan_in.try_dequeue(item), Status::ok);
        EXPECT_EQ(item.producer % 3, i / 40) << i;
        EXPECT_EQ(fan_in.last().label, i / 40);
        seen.see(item);
    }
}

TEST(Levels, AnUrgentItemOvertakesWhatIsThereAlready) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(64), .levels = 2});
    auto producer = join_levels(fan_in, 2, small(64));
    for (std::uint64_t i = 0; i != 30; ++i) {
        ASSERT_EQ(producer.enqueue(1, Tagged::make(1, i), soon()), Status::ok);
    }
    ASSERT_EQ(producer.flush(soon()), Status::ok);
    for (std::uint64_t i = 0; i != 10; ++i) {
        Tagged item;
        ASSERT_EQ(fan_in.try_dequeue(item), Status::ok);
        EXPECT_EQ(item, Tagged::make(1, i));
        ASSERT_EQ(producer.enqueue(0, Tagged::make(0, i), soon()), Status::ok);
        ASSERT_EQ(producer.flush(soon()), Status::ok);
        ASSERT_EQ(fan_in.try_dequeue(item), Status::ok);
        EXPECT_EQ(item, Tagged::make(0, i)) << "the burst of a lower level ends at once";
    }
}

TEST(Levels, AFullOneHoldsUpNoOther) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(4), .levels = 2});
    auto producer = join_levels(fan_in, 2, small(4));
    Status status;
    while ((status = producer.enqueue(1, {}, Deadline::after(10ms))) == Status::ok) {
    }
    EXPECT_EQ(status, Status::timed_out);
    EXPECT_EQ(producer.enqueue(0, {}, soon()), Status::ok);
    auto closing = std::async(std::launch::async, [&] { return producer.close(soon()); });
    Tagged item;
    while (fan_in.producers() != 0) (void)fan_in.try_dequeue(item);
    EXPECT_EQ(closing.get(), Status::ok);
}

TEST(Levels, RefuseOneThatTheConsumerDoesNotHave) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.levels = 2});
    auto connecting = std::async(std::launch::async, [&] {
        return error_of(
            [&] { (void)PriorityProducer<Tagged>::connect(fan_in.address(), 3, {}, soon()); });
    });
    Tagged item;
    while (connecting.wait_for(0s) != std::future_status::ready) (void)fan_in.try_dequeue(item);
    const base::Error error = connecting.get();
    EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("label is 2"));
}

// --- processes

MILLRACE_CHILD(fan_in_producer) {
    const std::uint64_t number = std::stoull(arguments[1]);
    auto end = Producer<Tagged>::connect(arguments[0], small(), soon());
    say("connected");
    for (std::uint64_t i = 0;; ++i) {
        if (end.enqueue(Tagged::make(number, i), soon()) != Status::ok) return 1;
    }
}

TEST(FanInBetweenProcesses, LosesNothingOfOthersWhenProducersAreKilledOrStopped) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small()});
    const std::string address = fan_in.address().to_string();
    std::vector<ChildProcess> children;
    for (int i = 0; i != 4; ++i) {
        children.push_back(ChildProcess::start("fan_in_producer", {address, std::to_string(i)}));
    }
    InOrder seen{4};
    const auto take = [&](std::uint64_t count) {
        Tagged item;
        for (const std::uint64_t until = seen.total() + count; seen.total() < until;) {
            ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
            seen.see(item);
            ASSERT_FALSE(testing::Test::HasFatalFailure());
        }
    };
    while (fan_in.producers() != 4) take(1);
    take(2000);
    children[0].stop();
    children[1].kill();
    take(2000);
    const std::uint64_t others = seen.of(2) + seen.of(3);
    take(2000);
    EXPECT_GT(seen.of(2) + seen.of(3), others);
    children[0].resume();
    const std::uint64_t stopped = seen.of(0);
    const Deadline deadline = soon();
    while (seen.of(0) < stopped + 20 && !deadline.expired()) take(1);
    EXPECT_GE(seen.of(0), stopped + 20) << "it goes on";
    while (fan_in.stats().lost != 1 && !deadline.expired()) take(1);
    EXPECT_EQ(fan_in.stats().lost, 1U);
    EXPECT_EQ(fan_in.producers(), 3U);
    fan_in.close();
}

TEST(FanIn, ProducersComeAndGoAThousandTimes) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small()});
    const std::string address = fan_in.address().to_string();
    constexpr std::uint64_t rounds = 250;
    std::vector<std::jthread> threads;
    for (std::size_t p = 0; p != 4; ++p) {
        threads.emplace_back([&, p] {
            for (std::uint64_t round = 0; round != rounds; ++round) {
                auto end = Producer<Tagged>::connect(address, small(), soon());
                ASSERT_EQ(end.enqueue(Tagged::make(p, round), soon()), Status::ok);
                ASSERT_EQ(end.close(soon()), Status::ok);
            }
        });
    }
    // Each has a queue of its own, so only what is in one of them is in order.
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    Tagged item;
    const Deadline deadline = Deadline::after(100s);
    while (seen.size() != 4 * rounds && !deadline.expired()) {
        if (fan_in.dequeue(item, Deadline::after(100ms)) != Status::ok) continue;
        EXPECT_TRUE(item.is_whole());
        EXPECT_TRUE(seen.emplace(item.producer, item.number).second) << "twice";
    }
    EXPECT_EQ(seen.size(), 4 * rounds);
    while (fan_in.stats().closed != 4 * rounds && !deadline.expired()) {
        (void)fan_in.try_dequeue(item);
    }
    EXPECT_EQ(fan_in.stats().closed, 4 * rounds);
    EXPECT_EQ(fan_in.producers(), 0U);
}

}  // namespace
}  // namespace millrace::flow
