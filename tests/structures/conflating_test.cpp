// The newest item of each key waits while the consumer has no room.
#include "millrace/flow/conflating.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <cstdint>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "crowd.hpp"
#include "millrace/flow/any_producer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared.hpp"
#include "rpc/allocations.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;

struct Quoted {
    std::uint32_t instrument = 0;
    std::uint32_t version = 0;
};
template <class End>
using Quotes = ConflatingProducer<End, std::uint32_t Quoted::*>;

template <class Queue>
auto quotes_to(Queue& ends, std::uint32_t keys) {
    return ConflatingProducer{std::move(*ends.producer), &Quoted::instrument, {.keys = keys}};
}
std::vector<Quoted> taken(Consumer<Quoted>& consumer) {
    std::vector<Quoted> items;
    Quoted one;
    while (consumer.try_dequeue(one) == Status::ok) items.push_back(one);
    return items;
}
/// Until something has to wait, as nothing more can go into the consumer's ring.
template <class Conflating>
void fill(Conflating& producer, std::uint32_t instrument) {
    std::uint32_t version = 0;
    do {
        while (producer.waiting() == 0) {
            ASSERT_EQ(producer.try_enqueue({instrument, ++version}), Status::ok);
        }
    } while (producer.flush(Deadline::after(10ms)) != Status::timed_out || producer.waiting() == 0);
}

TEST(Conflating, KeysThatAlternateAreNeverFull) {
    QueueEnds<Quoted> ends{small(4)};
    auto producer = quotes_to(ends, 2);
    for (std::uint32_t i = 1; i <= 1000; ++i) {
        ASSERT_EQ(producer.try_enqueue({i % 2, i}), Status::ok) << i;
    }
    EXPECT_EQ(producer.waiting(), 2U);
    EXPECT_GT(producer.stats().folded, 900U);
    EXPECT_EQ(producer.try_send(), Status::full);
    auto closing = std::async(std::launch::async, [&] { return producer.close(soon()); });
    std::map<std::uint32_t, std::uint32_t> newest;
    std::uint64_t items = 0;
    Quoted one;
    while (ends.consumer->dequeue(one, soon()) == Status::ok) {
        EXPECT_GT(one.version, std::exchange(newest[one.instrument], one.version));
        ++items;
    }
    EXPECT_EQ(closing.get(), Status::ok);
    EXPECT_EQ(newest[0], 1000U);
    EXPECT_EQ(newest[1], 999U);
    const KeyedStats stats = producer.stats();
    EXPECT_EQ(stats.taken, 1000U);
    EXPECT_EQ(stats.sent, items);
    EXPECT_EQ(stats.sent + stats.folded, 1000U);
}

TEST(Conflating, AKeyThatChangesOftenDoesNotPassThoseThatWait) {
    QueueEnds<Quoted> ends{small(4)};
    auto producer = quotes_to(ends, 8);
    fill(producer, 0);
    for (std::uint32_t i = 0; i != 100; ++i) {
        for (const std::uint32_t often : {3U, 0U, 3U}) {
            ASSERT_EQ(producer.try_enqueue({often, 1000 + i}), Status::ok);
        }
        if (i == 50) {
            ASSERT_EQ(producer.try_enqueue({2, 1}), Status::ok);
            ASSERT_EQ(producer.try_enqueue({1, 1}), Status::ok);
        }
    }
    std::vector<std::uint32_t> order;
    std::map<std::uint32_t, std::uint32_t> newest;
    const Deadline deadline = soon();
    while (order.size() < 4 && !deadline.expired()) {
        for (const Quoted& one : taken(*ends.consumer)) {
            if (one.version < 1000 && one.instrument == 0) continue;  // that were there before
            order.push_back(one.instrument);
            newest[one.instrument] = one.version;
        }
        (void)producer.flush(Deadline::now());
    }
    EXPECT_THAT(order, ElementsAre(0, 3, 2, 1));
    EXPECT_EQ(newest[3], 1099U);
    EXPECT_EQ(newest[0], 1099U);
}

TEST(Conflating, IsFullOfKeysAtItsBoundAndLosesNothing) {
    QueueEnds<Quoted> ends{small(4)};
    auto producer = quotes_to(ends, 3);
    fill(producer, 0);
    for (const std::uint32_t instrument : {1U, 2U}) {
        ASSERT_EQ(producer.try_enqueue({instrument, 1}), Status::ok);
    }
    EXPECT_EQ(producer.try_enqueue({3, 1}), Status::full);
    EXPECT_EQ(producer.try_enqueue({2, 2}), Status::ok) << "it waits already";
    EXPECT_EQ(producer.enqueue({3, 2}, Deadline::after(10ms)), Status::timed_out);
    EXPECT_GE(producer.stats().crowded, 2U);
    auto taking = std::async(std::launch::async, [&] {
        std::map<std::uint32_t, std::uint32_t> newest;
        Quoted one;
        while (ends.consumer->dequeue(one, soon()) == Status::ok) {
            newest[one.instrument] = one.version;
        }
        return newest;
    });
    EXPECT_EQ(producer.enqueue({3, 3}, soon()), Status::ok);
    EXPECT_EQ(producer.close(soon()), Status::ok);
    const auto newest = taking.get();
    EXPECT_EQ(newest.at(1), 1U);
    EXPECT_EQ(newest.at(2), 2U);
    EXPECT_EQ(newest.at(3), 3U) << "neither what was answered otherwise, nor nothing";
}

TEST(Conflating, OfAnyHistoryTheConsumerSeesAPartInOrderAndTheLast) {
    const bool held = rc::check([] {
        const auto capacity = *rc::gen::inRange<std::uint64_t>(1, 6);
        const auto keys = *rc::gen::inRange<std::uint32_t>(1, 6);
        QueueEnds<Quoted> ends{small(capacity)};
        auto producer = quotes_to(ends, keys);
        std::map<std::uint32_t, std::uint32_t> put, seen;
        const auto see = [&] {
            for (const Quoted& one : taken(*ends.consumer)) {
                RC_ASSERT(one.version > seen[one.instrument]);
                seen[one.instrument] = one.version;
            }
        };
        std::uint32_t version = 0;
        // 0 to 7: an item of that key; 8, 9: the consumer takes all that there is.
        for (const auto step : *rc::gen::container<std::vector<std::uint32_t>>(
                 rc::gen::inRange<std::uint32_t>(0, 10))) {
            if (step >= 8) {
                see();
                continue;
            }
            const Status status = producer.try_enqueue({step, ++version});
            RC_ASSERT(status == Status::ok ||
                      (status == Status::full && producer.waiting() == keys));
            if (status == Status::ok) put[step] = version;
        }
        const Deadline deadline = soon();
        while (producer.flush(Deadline::now()) != Status::ok && !deadline.expired()) see();
        see();
        std::erase_if(seen, [](const auto& one) { return one.second == 0; });
        RC_ASSERT(seen == put);
    });
    EXPECT_TRUE(held);
}

TEST(Conflating, MayFoldWhatItWouldReplace) {
    QueueEnds<Quoted> ends{small(4)};
    ConflatingProducer producer{
        std::move(*ends.producer),
        &Quoted::instrument,
        {.keys = 3},
        [](Quoted& waiting, const Quoted& one) { waiting.version += one.version; }};
    for (std::uint32_t i = 0; i != 999; ++i) {
        ASSERT_EQ(producer.try_enqueue({i % 3, 2}), Status::ok);
    }
    EXPECT_THAT(producer.explain(), HasSubstr("folded"));
    std::map<std::uint32_t, std::uint32_t> sums;
    auto closing = std::async(std::launch::async, [&] { return producer.close(soon()); });
    Quoted one;
    while (ends.consumer->dequeue(one, soon()) == Status::ok) sums[one.instrument] += one.version;
    EXPECT_EQ(closing.get(), Status::ok);
    for (const auto& [instrument, sum] : sums) EXPECT_EQ(sum, 666U) << instrument;
    EXPECT_EQ(sums.size(), 3U);
}

TEST(Conflating, TakesItsMemoryWhenItIsMade) {
    QueueEnds<Quoted> ends{small(8)};
    auto producer = quotes_to(ends, 100);
    Quoted one;
    // What is made by the first call is not made by others.
    ASSERT_EQ(producer.try_enqueue({0, 1}), Status::ok);
    ASSERT_EQ(producer.flush(soon()), Status::ok);
    ASSERT_EQ(ends.consumer->try_dequeue(one), Status::ok);
    const std::uint64_t before = rpc::allocations();
    for (std::uint32_t i = 0; i != 10'000; ++i) {
        if (producer.try_enqueue({i * 7919 % 100, i}) != Status::ok) break;
        if (i % 10 == 0) (void)ends.consumer->try_dequeue(one);
    }
    // The device tidies up now and then, with a list of its peers.
    EXPECT_LT(rpc::allocations() - before, 100U);
    EXPECT_EQ(producer.stats().taken, 10'001U);
}

TEST(Conflating, TellsThatItsConsumerIsGone) {
    QueueEnds<Quoted> ends{small(4)};
    auto producer = quotes_to(ends, 4);
    fill(producer, 1);
    ends.consumer.reset();
    const Deadline deadline = soon();
    Status status;
    while ((status = producer.try_enqueue({2, 1})) == Status::ok && !deadline.expired()) {
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_EQ(producer.try_send(), Status::peer_lost);
    EXPECT_EQ(producer.enqueue({2, 1}, soon()), Status::peer_lost);
    EXPECT_EQ(producer.flush(soon()), Status::peer_lost);
}

TEST(Conflating, RefusesATableOfNoKeys) {
    QueueEnds<Quoted> ends;
    const base::Error error = error_of([&] { (void)quotes_to(ends, 0); });
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("0 keys"));
}

TEST(Conflating, KnowsKeysOfAnyKind) {
    struct Named {
        std::array<char, 8> name{};
        std::uint32_t version = 0;
    };
    QueueEnds<Named> ends{small(2)};
    ConflatingProducer producer{std::move(*ends.producer),
                                [](const Named& one) { return std::string{one.name.data()}; },
                                {.keys = 4}};
    for (std::uint32_t i = 1; i <= 300; ++i) {
        const std::array<char, 8> name{'k', static_cast<char>('0' + i % 3)};
        ASSERT_EQ(producer.try_enqueue({name, i}), Status::ok);
    }
    EXPECT_EQ(producer.waiting(), 3U);
}

// --- over other ends than a Producer

TEST(Conflating, OverAReplicatorFollowsTheSlowestOfItsConsumers) {
    auto replicator = Replicator<Quoted>::listen(fresh_address(), {.queue = small(4)});
    std::vector<Consumer<Quoted>> consumers;
    for (int i = 0; i != 2; ++i) {
        auto connecting = std::async(std::launch::async, [&] {
            return Consumer<Quoted>::connect(replicator.address(), small(4), soon());
        });
        while (replicator.look_around() != consumers.size() + 1) {
        }
        consumers.push_back(connecting.get());
    }
    Quotes<Replicator<Quoted>> producer{std::move(replicator), &Quoted::instrument, {.keys = 2}};
    std::array<std::vector<std::uint32_t>, 2> seen;
    const auto see = [&](std::size_t at) {
        for (const Quoted& one : taken(consumers[at])) seen[at].push_back(one.version);
    };
    for (std::uint32_t i = 1; i <= 100; ++i) {
        ASSERT_EQ(producer.try_enqueue({i % 2, i}), Status::ok);
        see(0);
    }
    const Deadline deadline = soon();
    while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) {
        see(0);
        see(1);
    }
    see(0);
    see(1);
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_LT(seen[0].size(), 100U);
    EXPECT_EQ(seen[0].back(), 100U);
}

TEST(Conflating, OverAFanOutSendsAKeyToItsPartition) {
    std::vector<Listener> listeners;
    std::vector<connect::Address> addresses;
    for (int i = 0; i != 3; ++i) {
        listeners.push_back(Listener::listen(fresh_address(), small(4)));
        addresses.push_back(listeners.back().address());
    }
    auto connecting = std::async(std::launch::async, [&] {
        return FanOut<Quoted>::connect(addresses, {.queue = small(4)}, soon());
    });
    std::vector<Consumer<Quoted>> consumers;
    for (Listener& one : listeners) consumers.push_back(Consumer<Quoted>::accept(one, soon()));
    Quotes<FanOut<Quoted>> producer{connecting.get(), &Quoted::instrument, {.keys = 64}};
    for (std::uint32_t i = 0; i != 1000; ++i) {
        ASSERT_EQ(producer.try_enqueue({i % 64, i}), Status::ok);
    }
    std::map<std::uint32_t, std::uint32_t> newest;
    const auto see = [&] {
        for (std::size_t at = 0; at != consumers.size(); ++at) {
            for (const Quoted& one : taken(consumers[at])) {
                EXPECT_EQ(partition_of(one.instrument, 3), at);
                newest[one.instrument] = one.version;
            }
        }
    };
    const Deadline deadline = soon();
    while (producer.close(Deadline::now()) != Status::ok && !deadline.expired()) see();
    see();
    ASSERT_EQ(newest.size(), 64U);
    for (const auto& [instrument, version] : newest) {
        EXPECT_EQ(version % 64, instrument);
        EXPECT_GE(version, 1000U - 64);
    }
}

TEST(Conflating, OverAnyDesignAndForManyThreads) {
    auto fan_in = FanIn<Quoted>::listen(fresh_address(), {.queue = small(4), .expected = 1});
    auto connecting = std::async(std::launch::async, [&] {
        auto end = AnyProducer<Quoted>::connect(ring::design_2, fan_in.address(), small(4), soon());
        Shared shared{
            Quotes<AnyProducer<Quoted>>{std::move(end), &Quoted::instrument, {.keys = 4}}};
        std::vector<std::jthread> threads;
        for (std::uint32_t t = 0; t != 3; ++t) {
            threads.emplace_back([&, t] {
                for (std::uint32_t i = 1; i <= 500; ++i) {
                    EXPECT_EQ(shared.enqueue(Quoted{t, i}, soon()), Status::ok);
                }
            });
        }
        threads.clear();
        return shared.close(soon());
    });
    std::map<std::uint32_t, std::uint32_t> newest;
    Quoted one;
    while (fan_in.dequeue(one, soon()) == Status::ok) {
        EXPECT_GT(one.version, std::exchange(newest[one.instrument], one.version));
    }
    EXPECT_EQ(connecting.get(), Status::ok);
    for (std::uint32_t t = 0; t != 3; ++t) EXPECT_EQ(newest[t], 500U);
}

}  // namespace
}  // namespace millrace::flow
