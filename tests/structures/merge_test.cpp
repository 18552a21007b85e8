// Many producers, one order: what comes out of a merge is a stable sort of what went in, whoever is
// silent, late or dead.
#include "millrace/flow/merge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "crowd.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using std::chrono::nanoseconds;
using testing::ElementsAre;
using testing::HasSubstr;

struct Stamped {
    std::uint64_t time = 0;
    std::uint32_t producer = 0;
    std::uint32_t number = 0;  ///< of that producer's, from 1; 0: a heartbeat

    friend bool operator==(const Stamped&, const Stamped&) = default;
};
constexpr auto beats = [](const Stamped& item) { return item.number == 0; };
template <ring::Design D = ring::design_2>
using Ordered = Merge<Stamped, &Stamped::time, beats, D>;

/// A merge, and producers that have joined one after the other.
struct Merged {
    explicit Merged(std::size_t count, MergeOptions options = {}, std::uint64_t capacity = 8) {
        options.queue = small(capacity);
        if (options.expected == 0) options.expected = static_cast<std::uint32_t>(count);
        merge.emplace(Ordered<>::listen(fresh_address(), options));
        for (std::size_t i = 0; i != count; ++i) {
            auto connecting = std::async(std::launch::async, [&] {
                return Producer<Stamped>::connect(merge->address(), small(capacity), soon());
            });
            const Deadline deadline = soon();
            while (merge->look_around() != i + 1 && !deadline.expired()) {
            }
            producers.emplace_back(connecting.get());
            sent.push_back(0);
        }
    }
    /// If there is room for it.
    Status try_put(std::size_t producer, std::uint64_t time) {
        const Status status = producers[producer]->try_enqueue(
            {time, static_cast<std::uint32_t>(producer), sent[producer] + 1});
        if (status == Status::ok) ++sent[producer];
        return status;
    }
    /// It has arrived.
    Status put(std::size_t producer, std::uint64_t time) {
        const Status status = try_put(producer, time);
        return status == Status::ok ? producers[producer]->flush(soon()) : status;
    }
    Status try_beat(std::size_t producer, std::uint64_t time) {
        return producers[producer]->try_enqueue({time, static_cast<std::uint32_t>(producer), 0});
    }
    Status beat(std::size_t producer, std::uint64_t time) {
        const Status status = try_beat(producer, time);
        return status == Status::ok ? producers[producer]->flush(soon()) : status;
    }
    /// The times of all that is handed out now.
    std::vector<std::uint64_t> times() {
        std::vector<std::uint64_t> seen;
        for (Stamped item; merge->try_dequeue(item) == Status::ok;) seen.push_back(item.time);
        return seen;
    }
    /// The same, until there are so many.
    std::vector<std::uint64_t> times(std::size_t count) {
        std::vector<std::uint64_t> seen;
        const Deadline deadline = soon();
        while (seen.size() < count && !deadline.expired()) {
            for (const std::uint64_t time : times()) seen.push_back(time);
        }
        return seen;
    }

    std::optional<Ordered<>> merge;
    std::vector<std::optional<Producer<Stamped>>> producers;
    std::vector<std::uint32_t> sent;
};

TEST(Merge, HandsOutTheSmallestOfThoseInFront) {
    Merged all{3};
    for (const std::uint64_t time : {1, 4, 7}) ASSERT_EQ(all.put(0, time), Status::ok);
    for (const std::uint64_t time : {2, 4, 5}) ASSERT_EQ(all.put(1, time), Status::ok);
    EXPECT_TRUE(all.times().empty()) << "the third may send something smaller still";
    for (const std::uint64_t time : {3, 4, 6}) ASSERT_EQ(all.put(2, time), Status::ok);
    Stamped item;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> seen;
    while (seen.size() != 7 && all.merge->dequeue(item, soon()) == Status::ok) {
        seen.emplace_back(item.time, item.producer);
        EXPECT_EQ(all.merge->last().number, item.producer + 1);
    }
    EXPECT_TRUE(all.times().empty()) << "the third may send a 6 once more";
    EXPECT_THAT(seen, ElementsAre(std::pair{1U, 0U}, std::pair{2U, 1U}, std::pair{3U, 2U},
                                  std::pair{4U, 0U}, std::pair{4U, 1U}, std::pair{4U, 2U},
                                  std::pair{5U, 1U}));
    EXPECT_THAT(all.merge->explain(), HasSubstr("silent: 1 of them"));
}

TEST(Merge, LetsEqualKeysPassThoseThatJoinedLater) {
    Merged all{2};
    // Both have sent a 5. The second may send another one, which comes after all of the first.
    ASSERT_EQ(all.put(1, 5), Status::ok);
    ASSERT_EQ(all.put(0, 5), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(5));
    ASSERT_EQ(all.put(0, 5), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(5));
    ASSERT_EQ(all.put(0, 6), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(5));
    EXPECT_EQ(all.merge->last().number, 2U);
}

TEST(Merge, AHeartbeatSaysHowFarASilentProducerIs) {
    Merged all{2};
    ASSERT_EQ(all.put(0, 10), Status::ok);
    ASSERT_EQ(all.put(0, 20), Status::ok);
    ASSERT_EQ(all.beat(1, 9), Status::ok);
    EXPECT_TRUE(all.times().empty());
    ASSERT_EQ(all.beat(1, 10), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(10)) << "a 10 of the second would come after it";
    ASSERT_EQ(all.beat(1, 21), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(20));
    EXPECT_EQ(all.merge->stats().heartbeats, 3U);
    EXPECT_EQ(all.merge->stats().sources.items, 2U);
}

TEST(Merge, WaitsNoLongerForOneThatHasClosedOrDied) {
    for (const bool closes : {true, false}) {
        Merged all{3};
        std::vector<Status> left;
        all.merge->on_change([&](const FanInSource&, Status how) { left.push_back(how); });
        ASSERT_EQ(all.put(0, 1), Status::ok);
        ASSERT_EQ(all.put(1, 2), Status::ok);
        ASSERT_EQ(all.put(2, 1), Status::ok);
        EXPECT_THAT(all.times(1), ElementsAre(1));
        for (const std::size_t one : {0, 2}) {
            if (closes) {
                EXPECT_EQ(all.producers[one]->close(soon()), Status::ok);
            }
            all.producers[one].reset();
        }
        EXPECT_THAT(all.times(2), ElementsAre(1, 2));
        EXPECT_THAT(left, ElementsAre(closes ? Status::closed : Status::peer_lost,
                                      closes ? Status::closed : Status::peer_lost));
        EXPECT_EQ(all.producers[1]->close(soon()), Status::ok);
        Stamped item;
        EXPECT_EQ(all.merge->dequeue(item, soon()), Status::closed);
    }
}

TEST(Merge, HandsOutWhatADeadProducerHasSentInItsPlace) {
    Merged all{2};
    for (const std::uint64_t time : {1, 3, 5}) ASSERT_EQ(all.put(0, time), Status::ok);
    all.producers[0].reset();
    ASSERT_EQ(all.put(1, 2), Status::ok);
    EXPECT_THAT(all.times(2), ElementsAre(1, 2));
    ASSERT_EQ(all.put(1, 4), Status::ok);
    EXPECT_THAT(all.times(2), ElementsAre(3, 4));
    EXPECT_EQ(all.producers[1]->close(soon()), Status::ok);
    Stamped item;
    EXPECT_EQ(all.merge->dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item.time, 5U);
    EXPECT_EQ(all.merge->dequeue(item, soon()), Status::closed);
    EXPECT_EQ(all.merge->stats().sources.lost, 1U);
}

TEST(Merge, PassesASilentProducerWhenItsPatienceIsOverAndTellsWhatIsLate) {
    nanoseconds now{0};
    Merged all{2, {.patience = 100ns, .clock = [&] { return now; }}};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> late;
    all.merge->on_late([&](const FanInSource& source, const Stamped& item) {
        late.emplace_back(source.number, item.time);
    });
    ASSERT_EQ(all.put(0, 10), Status::ok);
    now = 99ns;
    EXPECT_TRUE(all.times().empty());
    now = 100ns;
    EXPECT_THAT(all.times(1), ElementsAre(10));
    EXPECT_EQ(all.merge->stats().passed, 1U);
    // While it goes on being silent, nobody waits for it.
    ASSERT_EQ(all.put(0, 20), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(20));
    EXPECT_EQ(all.merge->stats().passed, 1U);
    // What it sends then may be late; from then on it is waited for again.
    for (const std::uint64_t time : {5, 19, 20, 21}) ASSERT_EQ(all.put(1, time), Status::ok);
    ASSERT_EQ(all.put(0, 22), Status::ok);
    EXPECT_THAT(all.times(2), ElementsAre(20, 21));
    EXPECT_THAT(late, ElementsAre(std::pair{2U, 5U}, std::pair{2U, 19U}));
    EXPECT_EQ(all.merge->stats().late, 2U);
    now = 199ns;
    EXPECT_TRUE(all.times().empty());
    now = 200ns;
    EXPECT_THAT(all.times(1), ElementsAre(22));
    EXPECT_EQ(all.merge->stats().passed, 2U);
}

TEST(Merge, CountsSilenceFromWhenTheLastItemWasHandedOut) {
    nanoseconds now{0};
    Merged all{2, {.patience = 100ns, .clock = [&] { return now; }}};
    ASSERT_EQ(all.put(1, 5), Status::ok);
    EXPECT_TRUE(all.times().empty());
    now = 90ns;
    ASSERT_EQ(all.put(0, 6), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(5));
    now = 189ns;
    EXPECT_TRUE(all.times().empty());
    now = 190ns;
    EXPECT_THAT(all.times(1), ElementsAre(6));
}

TEST(Merge, DoesNotHandOutWhatAProducerSendsOutOfOrder) {
    Merged all{1};
    for (const std::uint64_t time : {3, 1, 4}) ASSERT_EQ(all.put(0, time), Status::ok);
    EXPECT_THAT(all.times(2), ElementsAre(3, 4));
    EXPECT_EQ(all.merge->stats().late, 1U);
    EXPECT_EQ(all.merge->stats().sources.items, 2U);
}

TEST(Merge, HandsOutNothingBeforeAllThatAreExpectedHaveJoined) {
    Merged all{1, {.expected = 2}};
    ASSERT_EQ(all.put(0, 1), Status::ok);
    EXPECT_TRUE(all.times().empty());
    auto connecting = std::async(std::launch::async, [&] {
        return Producer<Stamped>::connect(all.merge->address(), small(), soon());
    });
    const Deadline deadline = soon();
    while (all.merge->look_around() != 2 && !deadline.expired()) {
    }
    auto second = connecting.get();
    ASSERT_EQ(second.enqueue({0, 1, 1}, soon()), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(0));
    EXPECT_EQ(second.close(soon()), Status::ok);
    EXPECT_THAT(all.times(1), ElementsAre(1));

    nanoseconds now{0};
    Merged impatient{1, {.expected = 2, .patience = 10ns, .clock = [&] { return now; }}};
    ASSERT_EQ(impatient.put(0, 1), Status::ok);
    EXPECT_TRUE(impatient.times().empty());
    now = 10ns;
    EXPECT_THAT(impatient.times(), ElementsAre(1));
}

TEST(Merge, OfAnyHistoryEqualsAStableSort) {
    const bool held = rc::check([] {
        const auto count = *rc::gen::inRange<std::size_t>(1, 5);
        Merged all{count, {}, *rc::gen::inRange<std::uint64_t>(1, 5)};
        std::vector<std::uint64_t> time(count, 0);
        std::vector<Stamped> in, out;
        const auto see = [&] {
            for (Stamped item; all.merge->try_dequeue(item) == Status::ok;) out.push_back(item);
        };
        // An item of a producer, equal to its last or later; a heartbeat; or all is taken.
        const auto steps = *rc::gen::container<std::vector<std::pair<std::size_t, int>>>(
            rc::gen::pair(rc::gen::inRange<std::size_t>(0, 5), rc::gen::inRange(0, 5)));
        for (const auto& [producer, what] : steps) {
            if (producer >= count) {
                see();
            } else if (what == 4) {
                (void)all.try_beat(producer, ++time[producer]);
            } else {
                time[producer] += static_cast<std::uint64_t>(what / 2);
                const Status status = all.try_put(producer, time[producer]);
                RC_ASSERT(status == Status::ok || status == Status::full);
                if (status == Status::ok) {
                    in.push_back(
                        {time[producer], static_cast<std::uint32_t>(producer), all.sent[producer]});
                }
            }
        }
        const Deadline deadline = soon();
        // All at once: what one has left may have to wait for another that is silent.
        const auto all_closed = [&] {
            bool closed = true;
            for (auto& producer : all.producers) {
                closed &= producer->close(Deadline::now()) == Status::ok;
            }
            return closed;
        };
        while (!all_closed() && !deadline.expired()) see();
        while (!deadline.expired()) {
            Stamped item;
            const Status status = all.merge->try_dequeue(item);
            if (status == Status::closed) break;
            if (status == Status::ok) out.push_back(item);
        }
        std::ranges::stable_sort(in, {}, &Stamped::producer);
        std::ranges::stable_sort(in, {}, &Stamped::time);
        RC_ASSERT(in == out);
        RC_ASSERT(all.merge->stats().late == 0U);
    });
    EXPECT_TRUE(held);
}

TEST(Merge, WhoeverIsPassedNothingGoesBackOrIsLostUntold) {
    const bool held = rc::check([] {
        nanoseconds now{0};
        const auto count = *rc::gen::inRange<std::size_t>(1, 4);
        Merged all{count, {.patience = 10ns, .clock = [&] { return now; }}};
        std::vector<Stamped> in, out, late;
        std::uint64_t reached = 0;
        all.merge->on_late([&](const FanInSource&, const Stamped& item) {
            RC_ASSERT(item.time < reached);
            late.push_back(item);
        });
        const auto see = [&] {
            for (Stamped item; all.merge->try_dequeue(item) == Status::ok;) {
                RC_ASSERT(item.time >= std::exchange(reached, item.time));
                out.push_back(item);
            }
        };
        const auto steps =
            *rc::gen::container<std::vector<std::pair<std::size_t, std::uint64_t>>>(rc::gen::pair(
                rc::gen::inRange<std::size_t>(0, 6), rc::gen::inRange<std::uint64_t>(0, 20)));
        for (const auto& [producer, time] : steps) {
            if (producer >= 4) {
                now += 4ns;
                see();
            } else if (producer < count && all.try_put(producer, time) == Status::ok) {
                in.push_back({time, static_cast<std::uint32_t>(producer), all.sent[producer]});
            }
        }
        const Deadline deadline = soon();
        while (out.size() + late.size() != in.size() && !deadline.expired()) {
            now += 4ns;
            for (auto& producer : all.producers) (void)producer->flush(Deadline::now());
            see();
        }
        out.insert(out.end(), late.begin(), late.end());
        const auto by_all = [](const Stamped& a, const Stamped& b) {
            return std::tie(a.producer, a.number) < std::tie(b.producer, b.number);
        };
        std::ranges::sort(in, by_all);
        std::ranges::sort(out, by_all);
        RC_ASSERT(in == out);
    });
    EXPECT_TRUE(held);
}

// --- over designs, threads and processes

template <class Design>
class MergeOver : public testing::Test {};
template <ring::Design D>
struct MergedBy {
    static constexpr ring::Design value = D;
};
constexpr ring::Design merged_by_reads{.data = ring::DataFlow::pull,
                                       .transfer = ring::TransferNotification::push,
                                       .space = ring::SpaceNotification::push};
constexpr ring::Design merged_by_sends{.data = ring::DataFlow::push2,
                                       .transfer = ring::TransferNotification::event,
                                       .space = ring::SpaceNotification::push};
using MergeDesigns = testing::Types<MergedBy<ring::design_1>, MergedBy<ring::design_2>,
                                    MergedBy<merged_by_reads>, MergedBy<merged_by_sends>>;
TYPED_TEST_SUITE(MergeOver, MergeDesigns);

TYPED_TEST(MergeOver, PutsTheItemsOfManyThreadsInOrder) {
    constexpr std::uint32_t producers = 5, count = 400;
    constexpr ring::Design design = TypeParam::value;
    for (const base::WaitPolicy policy : {base::WaitPolicy{}, base::WaitPolicy::blocking()}) {
        Options queue = small();
        queue.wait = policy;
        auto merge =
            Ordered<design>::listen(fresh_address(), {.queue = queue, .expected = producers});
        const connect::Address address = merge.address();
        std::vector<std::jthread> threads;
        for (std::uint32_t p = 0; p != producers; ++p) {
            threads.emplace_back([&, p] {
                auto end = Producer<Stamped, design>::connect(address, queue, soon());
                for (std::uint32_t i = 1; i <= count; ++i) {
                    ASSERT_EQ(end.enqueue({std::uint64_t{i} * (p + 1) / 2, p, i}, soon()),
                              Status::ok);
                }
                ASSERT_EQ(end.close(soon()), Status::ok);
            });
        }
        std::vector<std::uint32_t> next(producers, 0);
        std::uint64_t time = 0;
        Stamped item;
        Status status;
        while ((status = merge.dequeue(item, soon())) == Status::ok) {
            ASSERT_GE(item.time, std::exchange(time, item.time));
            ASSERT_EQ(item.number, ++next.at(item.producer));
        }
        EXPECT_EQ(status, Status::closed);
        EXPECT_EQ(merge.stats().sources.items, std::uint64_t{producers} * count);
        EXPECT_EQ(merge.stats().late, 0U);
    }
}

TEST(Merge, WakesUpWhenAPatienceIsOver) {
    Merged all{2, {.patience = 20ms}};
    ASSERT_EQ(all.put(0, 1), Status::ok);
    Stamped item;
    EXPECT_EQ(all.merge->dequeue(item, soon()), Status::ok);
    EXPECT_EQ(all.merge->stats().passed, 1U);
}

TEST(Merge, ItsDescriptorIsReadableWhenAPatienceIsOver) {
    Merged all{2, {.patience = 20ms}};
    const int descriptor = all.merge->descriptor();
    ASSERT_EQ(all.put(0, 1), Status::ok);
    Stamped item;
    Status status;
    const Deadline deadline = soon();
    while ((status = all.merge->try_dequeue(item)) == Status::empty && !deadline.expired()) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s));
    }
    EXPECT_EQ(status, Status::ok);
}

TEST(Merge, ItsDescriptorIsQuietWhileASilentProducerHoldsUpTheOthers) {
    Merged all{2};
    const int descriptor = all.merge->descriptor();
    std::vector<std::uint64_t> seen;
    const auto take = [&] {
        for (const std::uint64_t time : all.times()) seen.push_back(time);
    };
    for (std::uint64_t round = 0; round != 3; ++round) {
        const std::uint64_t time = 10 * round + 10;
        ASSERT_EQ(all.put(0, time), Status::ok);
        ASSERT_TRUE(millrace::test::goes_quiet(descriptor, take));
        EXPECT_EQ(seen.size(), 2 * round) << "it is in front, and may not be handed out";
        ASSERT_EQ(all.put(1, time + 1), Status::ok);
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s));
        ASSERT_TRUE(millrace::test::goes_quiet(descriptor, take));
        EXPECT_EQ(seen.size(), 2 * round + 1);
        ASSERT_EQ(all.beat(0, time + 2), Status::ok);
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s)) << "it is watched again";
        ASSERT_TRUE(millrace::test::goes_quiet(descriptor, take));
        EXPECT_EQ(seen.size(), 2 * round + 2);
    }
}

TEST(Merge, TakesItemsInPlaceAndFrames) {
    constexpr auto first_byte = [](std::span<const std::byte> item) { return item.front(); };
    auto merge = Merge<Bytes, first_byte>::listen(fresh_address(), {.expected = 2});
    const connect::Address address = merge.address();
    std::vector<std::jthread> threads;
    for (const std::uint8_t start : {std::uint8_t{1}, std::uint8_t{2}}) {
        threads.emplace_back([&, start] {
            auto end = Producer<Bytes>::connect(address, {}, soon());
            for (std::uint8_t i = start; i < 20; i += 2) {
                const std::vector<std::byte> item(i, std::byte{i});
                ASSERT_EQ(end.enqueue(item, soon()), Status::ok);
            }
            ASSERT_EQ(end.close(soon()), Status::ok);
        });
    }
    std::span<const std::byte> item;
    std::uint8_t next = 1;
    while (merge.peek(item, soon()) == Status::ok) {
        EXPECT_EQ(item.size(), next);
        EXPECT_EQ(item.front(), std::byte{next++});
        merge.release();
    }
    EXPECT_EQ(next, 20);
}

/// The first sends 3000 items; the others do not end.
MILLRACE_CHILD(merge_producer) {
    const auto producer = static_cast<std::uint32_t>(std::stoul(arguments[1]));
    auto end = Producer<Stamped>::connect(arguments[0], small(16), soon());
    for (std::uint32_t i = 1; producer != 0 || i <= 3000; ++i) {
        if (end.enqueue({i, producer, i}, soon()) != Status::ok) return 1;
    }
    return end.close(soon()) == Status::ok ? 0 : 1;
}

TEST(Merge, GoesOnInOrderWhereProducersAreKilled) {
    constexpr std::uint32_t producers = 4;
    const std::string address = fresh_address();
    auto merge = Ordered<>::listen(address, {.queue = small(16), .expected = producers});
    std::vector<ChildProcess> children;
    for (std::uint32_t p = 0; p != producers; ++p) {
        children.push_back(ChildProcess::start("merge_producer", {address, std::to_string(p)}));
    }
    std::vector<std::uint32_t> next(producers, 0);
    std::uint64_t time = 0;
    std::uint32_t killed = 0;
    Stamped item;
    Status status;
    while ((status = merge.dequeue(item, soon())) == Status::ok) {
        ASSERT_GE(item.time, std::exchange(time, item.time));
        ASSERT_EQ(item.number, ++next.at(item.producer));
        if (item.producer == 0 && item.number % 500 == 0 && killed + 1 != producers) {
            children[++killed].kill();
        }
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(next[0], 3000U);
    EXPECT_EQ(merge.stats().sources.lost, producers - 1);
    EXPECT_EQ(merge.stats().sources.closed, 1U);
    EXPECT_EQ(merge.stats().late, 0U);
}

TEST(Merge, RefusesAPatienceOfNothing) {
    const base::Error error =
        error_of([] { (void)Ordered<>::listen(fresh_address(), {.patience = 0ns}); });
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    EXPECT_THAT(
        error_of([] { (void)Ordered<>::listen(fresh_address(), {.max_producers = 0}); }).what(),
        HasSubstr("make a merge"));
}

}  // namespace
}  // namespace millrace::flow
