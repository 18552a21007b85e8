// What many values come to is sent in their place, by key.
#include "millrace/flow/aggregating.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "crowd.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "rpc/allocations.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using std::chrono::nanoseconds;
using testing::HasSubstr;

using Total = Keyed<std::uint32_t, Summary<std::int64_t>>;
using Totals = std::map<std::uint32_t, Summary<std::int64_t>>;

bool are_equal(const Totals& a, const Totals& b) {
    return std::ranges::equal(a, b, [](const auto& one, const auto& other) {
        return one.first == other.first && one.second.count == other.second.count &&
               one.second.sum == other.second.sum && one.second.min == other.second.min &&
               one.second.max == other.second.max;
    });
}
/// Joins what has come to what has; how many parts.
std::size_t join(Consumer<Total>& consumer, Totals& totals) {
    std::size_t parts = 0;
    for (Total one; consumer.try_dequeue(one) == Status::ok; ++parts) {
        totals[one.key].join(one.value);
    }
    return parts;
}
/// The same, after everything that was sent has arrived.
template <class Aggregating>
std::size_t join(Consumer<Total>& consumer, Totals& totals, Aggregating& producer) {
    EXPECT_EQ(producer.producer().flush(soon()), Status::ok);
    return join(consumer, totals);
}
AggregatingProducer<Producer<Total>> totals_to(QueueEnds<Total>& ends, AggregatingOptions options) {
    return {std::move(*ends.producer), std::move(options)};
}

TEST(Folds, AreWhatTheirValuesComeTo) {
    Sum<int> sum;
    Min<double> min;
    Max<unsigned> max;
    Count count;
    Folded<unsigned, std::bit_or<>> bits;
    const Folded<unsigned, std::bit_or<>> none;
    EXPECT_EQ(min.min, std::numeric_limits<double>::infinity());
    for (const int value : {5, 3, 8}) {
        sum.add(value);
        min.add(value);
        max.add(static_cast<unsigned>(value));
        count.add(value);
        bits.add(static_cast<unsigned>(value));
        bits.join(none);
    }
    EXPECT_EQ(sum.sum, 16);
    EXPECT_EQ(min.min, 3);
    EXPECT_EQ(max.max, 8U);
    EXPECT_EQ(count.count, 3U);
    EXPECT_EQ(bits.value, 15U);
    EXPECT_EQ(Summary<int>{}.mean(), 0.0);
}

TEST(Aggregating, SendsNothingBeforeOneOfItsRulesSaysSo) {
    QueueEnds<Total> ends;
    auto producer = totals_to(ends, {.items = 5});
    Totals totals;
    for (int i = 1; i <= 4; ++i) ASSERT_EQ(producer.try_enqueue(i % 2, i), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 0U);
    EXPECT_EQ(producer.try_send(), Status::ok) << "nothing is due";
    EXPECT_EQ(join(*ends.consumer, totals, producer), 0U);
    ASSERT_EQ(producer.try_enqueue(7, 70), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 3U);
    EXPECT_EQ(totals.at(0).sum, 6);
    EXPECT_EQ(totals.at(1).sum, 4);
    EXPECT_EQ(totals.at(7).sum, 70);
    ASSERT_EQ(producer.try_enqueue(7, 1), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 0U);
    EXPECT_EQ(producer.try_flush(), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 1U);
    EXPECT_EQ(totals.at(7).sum, 71);
}

TEST(Aggregating, GoesByTheBytesOfItsResults) {
    QueueEnds<Total> ends;
    auto producer = totals_to(ends, {.bytes = 3 * sizeof(Total)});
    Totals totals;
    for (int i = 0; i != 100; ++i) ASSERT_EQ(producer.try_enqueue(i % 2, i), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 0U);
    ASSERT_EQ(producer.try_enqueue(2, 1), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 3U);
}

TEST(Aggregating, GoesByTheClockThatItWasGiven) {
    QueueEnds<Total> ends;
    nanoseconds now{1'000'000};
    auto producer = totals_to(ends, {.after = 100ns, .clock = [&] { return now; }});
    Totals totals;
    EXPECT_EQ(producer.due_in(), nanoseconds::max());
    ASSERT_EQ(producer.try_enqueue(1, 1), Status::ok);
    now += 60ns;
    ASSERT_EQ(producer.try_enqueue(1, 2), Status::ok);
    EXPECT_EQ(producer.due_in(), 40ns);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 0U);
    now += 40ns;
    EXPECT_EQ(producer.due_in(), 0ns);
    EXPECT_EQ(producer.try_send(), Status::ok);
    EXPECT_EQ(join(*ends.consumer, totals, producer), 1U);
    EXPECT_EQ(totals.at(1).sum, 3);
    now += 1000ns;
    EXPECT_EQ(producer.try_send(), Status::ok);
    EXPECT_EQ(producer.due_in(), nanoseconds::max()) << "it begins with the next value";
    ASSERT_EQ(producer.try_enqueue(1, 4), Status::ok);
    EXPECT_EQ(producer.due_in(), 100ns);
}

TEST(Aggregating, FoldsOnWhileWhatIsDueFindsNoRoom) {
    QueueEnds<Total> ends{small(2)};
    auto producer = totals_to(ends, {.keys = 8, .items = 8});
    for (int i = 0; i != 8000; ++i) {
        ASSERT_EQ(producer.try_enqueue(i % 8, 1), Status::ok) << i;
    }
    EXPECT_EQ(producer.try_send(), Status::full);
    EXPECT_EQ(producer.due_in(), 0ns);
    Totals totals;
    const Deadline deadline = soon();
    while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) {
        (void)join(*ends.consumer, totals);
    }
    (void)join(*ends.consumer, totals);
    EXPECT_EQ(totals.size(), 8U);
    for (const auto& [key, total] : totals) EXPECT_EQ(total.count, 1000U) << key;
}

TEST(Aggregating, LetsTheOldestKeyLeaveEarlyAtItsBound) {
    QueueEnds<Total> ends{small(4)};
    auto producer = totals_to(ends, {.keys = 3});
    for (const std::uint32_t key : {5U, 6U, 7U, 5U, 8U}) {
        ASSERT_EQ(producer.try_enqueue(key, key), Status::ok);
    }
    ASSERT_EQ(producer.producer().flush(soon()), Status::ok);
    Total first;
    ASSERT_EQ(ends.consumer->try_dequeue(first), Status::ok);
    EXPECT_EQ(first.key, 5U);
    EXPECT_EQ(first.value.count, 2U);
    EXPECT_EQ(ends.consumer->try_dequeue(first), Status::empty);
    EXPECT_EQ(producer.stats().crowded, 1U);
    EXPECT_EQ(producer.stats().waiting, 3U);
}

TEST(Aggregating, OfAnyHistoryThePartsJoinToAPlainComputation) {
    const bool held = rc::check([] {
        nanoseconds now{0};
        AggregatingOptions options;
        options.keys = *rc::gen::inRange<std::uint32_t>(1, 6);
        options.items = *rc::gen::element<std::uint64_t>(0, 1, 3);
        options.bytes = *rc::gen::element<std::uint64_t>(0, 2 * sizeof(Total));
        options.after = *rc::gen::element(0ns, 5ns);
        options.clock = [&] { return now; };
        QueueEnds<Total> ends{small(*rc::gen::inRange<std::uint64_t>(1, 6))};
        auto producer = totals_to(ends, std::move(options));
        Totals plain, joined;
        // 0 to 7: a value of that key; 8: the consumer takes all; 9: everything is due; 10: time.
        for (const auto& [step, value] : *rc::gen::container<std::vector<std::pair<int, int>>>(
                 rc::gen::pair(rc::gen::inRange(0, 11), rc::gen::inRange(-100, 100)))) {
            if (step == 10) {
                now += 2ns;
            } else if (step == 9) {
                (void)producer.try_flush();
            } else if (step == 8) {
                (void)join(*ends.consumer, joined);
            } else {
                const auto key = static_cast<std::uint32_t>(step);
                const Status status = producer.try_enqueue(key, value);
                RC_ASSERT(status == Status::ok || status == Status::full);
                if (status == Status::ok) plain[key].add(value);
            }
        }
        const Deadline deadline = soon();
        while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) {
            (void)join(*ends.consumer, joined);
        }
        (void)join(*ends.consumer, joined);
        RC_ASSERT(are_equal(plain, joined));
    });
    EXPECT_TRUE(held);
}

TEST(Aggregating, TakesItsMemoryWhenItIsMade) {
    QueueEnds<Total> ends{small(8)};
    auto producer = totals_to(ends, {.keys = 20, .items = 30});
    Total one;
    ASSERT_EQ(producer.try_enqueue(1, 1), Status::ok);
    ASSERT_EQ(producer.flush(soon()), Status::ok);
    ASSERT_EQ(ends.consumer->try_dequeue(one), Status::ok);
    const std::uint64_t before = rpc::allocations();
    for (std::uint32_t i = 0; i != 10'000; ++i) {
        (void)producer.try_enqueue(i * 7919 % 100, 1);
        (void)ends.consumer->try_dequeue(one);
    }
    // The device tidies up now and then, with a list of its peers.
    EXPECT_LT(rpc::allocations() - before, 100U);
}

TEST(Aggregating, TellsThatItsConsumerIsGone) {
    QueueEnds<Total> ends{small(2)};
    auto producer = totals_to(ends, {.keys = 2, .items = 1});
    ends.consumer.reset();
    const Deadline deadline = soon();
    Status status;
    while ((status = producer.try_enqueue(1, 1)) == Status::ok && !deadline.expired()) {
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_EQ(producer.flush(soon()), Status::peer_lost);
}

TEST(Aggregating, BeforeAShuffleEachKeyIsJoinedByOneOfTheConsumers) {
    constexpr std::uint32_t producers = 3, consumers = 2, keys = 50, values = 2000;
    std::vector<FanIn<Total>> ins;
    std::vector<connect::Address> addresses;
    for (std::uint32_t i = 0; i != consumers; ++i) {
        ins.push_back(FanIn<Total>::listen(
            fresh_address(), {.queue = small(4), .expected = producers, .acceptor = {{}}}));
        addresses.push_back(ins.back().address());
    }
    std::vector<std::jthread> threads;
    for (std::uint32_t p = 0; p != producers; ++p) {
        threads.emplace_back([&] {
            AggregatingProducer producer{
                FanOut<Total>::connect(addresses, {.queue = small(4)}, soon()),
                {.keys = 64, .items = 500}};
            for (std::uint32_t i = 0; i != values; ++i) {
                ASSERT_EQ(producer.enqueue(i * 7 % keys, 1, soon()), Status::ok);
            }
            ASSERT_EQ(producer.close(soon()), Status::ok);
            EXPECT_LT(producer.stats().sent, producer.stats().taken);
        });
    }
    Totals totals;
    std::vector<bool> is_open(consumers, true);
    const Deadline deadline = soon();
    while (std::ranges::count(is_open, true) != 0 && !deadline.expired()) {
        for (std::uint32_t i = 0; i != consumers; ++i) {
            Total one;
            const Status status = ins[i].try_dequeue(one);
            if (status == Status::closed) is_open[i] = false;
            if (status != Status::ok) continue;
            EXPECT_EQ(partition_of(one.key, consumers), i);
            totals[one.key].join(one.value);
        }
    }
    EXPECT_EQ(totals.size(), keys);
    for (const auto& [key, total] : totals) {
        EXPECT_EQ(total.count, std::uint64_t{producers} * values / keys) << key;
    }
}

TEST(Aggregating, ExplainsWhatMakesItSend) {
    QueueEnds<Total> ends;
    const auto producer = totals_to(ends, {.items = 10, .bytes = 4096, .after = 5ms});
    const std::string text = producer.explain();
    for (const char* part : {"after 10 values", "4096 bytes", "5 ms after", "flow queue"}) {
        EXPECT_THAT(text, HasSubstr(part));
    }
    EXPECT_THAT(error_of([&] {
                    QueueEnds<Total> others;
                    (void)totals_to(others, {.after = -1ns});
                }).what(),
                HasSubstr("past"));
}

}  // namespace
}  // namespace millrace::flow
