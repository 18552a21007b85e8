// One producer, many consumers that all get everything.
#include "millrace/flow/replicate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "crowd.hpp"
#include "millrace/flow/consumer.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::say;

template <class T, ring::Design D = ring::design_2>
struct Copies {
    explicit Copies(std::size_t count, ReplicatorOptions options = {.queue = small()}) {
        std::vector<Listener> listeners;
        std::vector<connect::Address> addresses;
        for (std::size_t i = 0; i != count; ++i) {
            listeners.push_back(Listener::listen(fresh_address(), options.queue));
            addresses.push_back(listeners.back().address());
        }
        auto connecting = std::async(std::launch::async, [&] {
            return Replicator<T, D>::connect(addresses, options, soon());
        });
        for (Listener& listener : listeners) {
            consumers.push_back(Consumer<T, D>::accept(listener, soon()));
        }
        producer.emplace(connecting.get());
    }
    std::vector<Consumer<T, D>> consumers;
    std::optional<Replicator<T, D>> producer;
};

/// A thread for each consumer, which takes so many items, all of them, in order.
std::vector<std::jthread> take_all_of(Copies<Tagged>& copies, std::uint64_t count) {
    std::vector<std::jthread> threads;
    for (auto& consumer : copies.consumers) {
        threads.emplace_back([&consumer, count] {
            InOrder seen{1};
            take_all(consumer, seen);
            EXPECT_EQ(seen.total(), count);
        });
    }
    return threads;
}

TEST(Replicator, GivesEveryItemToEveryConsumer) {
    Copies<Tagged> copies{3};
    constexpr std::uint64_t count = 2000;
    const std::vector<std::jthread> threads = take_all_of(copies, count);
    for (std::uint64_t i = 0; i != count; ++i) {
        ASSERT_EQ(copies.producer->enqueue(Tagged::make(0, i), soon()), Status::ok);
    }
    EXPECT_EQ(copies.producer->close(soon()), Status::ok);
    EXPECT_EQ(copies.producer->stats().items, count);
    EXPECT_EQ(copies.producer->try_enqueue({}), Status::closed);
}

TEST(Replicator, GoesOnWhereItsCloseByAnotherThreadWasRefused) {
    auto producer = Replicator<Tagged>::listen(fresh_address(), {.queue = small()});
    std::jthread{[&] { EXPECT_THROW((void)producer.close(soon()), base::Error); }}.join();
    EXPECT_EQ(producer.try_enqueue(Tagged::make(0, 0)), Status::ok);
    EXPECT_EQ(producer.close(soon()), Status::ok);
    EXPECT_EQ(producer.try_enqueue(Tagged::make(0, 1)), Status::closed);
}

TEST(Replicator, OfBytesGivesItemsOfAnyLength) {
    ReplicatorOptions options;
    options.queue.ring.capacity = 1024;
    Copies<Bytes> copies{2, options};
    EXPECT_EQ(copies.producer->try_enqueue(std::vector<std::byte>(4096)), Status::too_large);
    std::jthread sender{[&] {
        for (std::size_t i = 0; i != 300; ++i) {
            const std::vector<std::byte> item(i % 200, std::byte(i));
            ASSERT_EQ(copies.producer->enqueue(item, soon()), Status::ok);
        }
        ASSERT_EQ(copies.producer->close(soon()), Status::ok);
    }};
    std::jthread second{[&] {
        std::vector<std::byte> item;
        for (std::size_t i = 0; i != 300; ++i) {
            ASSERT_EQ(copies.consumers[1].dequeue(item, soon()), Status::ok);
            EXPECT_EQ(item, std::vector<std::byte>(i % 200, std::byte(i)));
        }
    }};
    std::vector<std::byte> item;
    for (std::size_t i = 0; i != 300; ++i) {
        ASSERT_EQ(copies.consumers[0].dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item, std::vector<std::byte>(i % 200, std::byte(i)));
    }
}

TEST(Replicator, SendsBatchesWholeOrTheirFrontToAll) {
    Copies<Tagged> copies{3, {.queue = small(16)}};
    constexpr std::size_t count = 2000;
    std::vector<Tagged> items;
    for (std::uint64_t i = 0; i != count; ++i) items.push_back(Tagged::make(0, i));
    const std::vector<std::jthread> threads = take_all_of(copies, count);
    const Deadline deadline = soon();
    for (std::span<const Tagged> left = items; !left.empty() && !deadline.expired();) {
        const BatchResult sent =
            copies.producer->try_enqueue_batch(left.first(std::min<std::size_t>(left.size(), 37)));
        EXPECT_TRUE(sent.status == Status::ok || sent.status == Status::full);
        left = left.subspan(sent.count);
        if (sent.status == Status::full) std::this_thread::yield();
    }
    EXPECT_EQ(copies.producer->close(soon()), Status::ok);
    EXPECT_EQ(copies.producer->stats().items, count);
    EXPECT_EQ(copies.producer->try_enqueue_batch(items).status, Status::closed);
}

TEST(Replicator, SendsNoPartOfABatchToOneAlone) {
    Copies<Tagged> copies{2, {.queue = small(4)}};
    Replicator<Tagged>& producer = *copies.producer;
    std::vector<Tagged> items;
    for (std::uint64_t i = 0; i != 64; ++i) items.push_back(Tagged::make(0, i));
    std::size_t sent = 0;
    // Whatever room there is comes and goes at one of them alone.
    Tagged item;
    std::uint64_t next = 0;
    const Deadline deadline = soon();
    while (sent != items.size() && !deadline.expired()) {
        const BatchResult result = producer.try_enqueue_batch(std::span{items}.subspan(sent));
        sent += result.count;
        (void)producer.flush(Deadline::now());
        while (copies.consumers[1].try_dequeue(item) == Status::ok) {
            EXPECT_EQ(item, Tagged::make(0, next++));
            EXPECT_LE(next, sent);
        }
        if (copies.consumers[0].try_dequeue(item) == Status::ok) {
            EXPECT_LT(item.number, sent);
        }
    }
    EXPECT_EQ(sent, items.size());
}

TEST(Replicator, InALoopIsReadableWhenAllMayHaveRoom) {
    Copies<Tagged> copies{2, {.queue = small(4)}};
    Replicator<Tagged>& producer = *copies.producer;
    const int descriptor = producer.descriptor();
    std::uint64_t sent = 0;
    const auto send = [&] {
        while (producer.try_enqueue(Tagged::make(0, sent)) == Status::ok) ++sent;
    };
    EXPECT_TRUE(millrace::test::is_readable(descriptor))
        << "whether there is room nobody has asked";
    ASSERT_TRUE(millrace::test::goes_quiet(descriptor, send));
    constexpr std::uint64_t count = 500;
    std::vector<std::jthread> threads;
    for (auto& consumer : copies.consumers) {
        threads.emplace_back([&] {
            Tagged item;
            for (std::uint64_t i = 0; i != count; ++i) {
                ASSERT_EQ(consumer.dequeue(item, soon()), Status::ok);
                EXPECT_EQ(item, Tagged::make(0, i));
            }
        });
    }
    while (sent < count) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s)) << sent;
        if (producer.try_enqueue(Tagged::make(0, sent)) == Status::ok) ++sent;
    }
    EXPECT_EQ(producer.flush(soon()), Status::ok);
}

TEST(Replicator, InALoopIsReadableWhenSomebodyComesLeavesOrLags) {
    auto producer = Replicator<Tagged>::listen(
        fresh_address(), {.queue = small(4), .lagging = Lagging::leaves, .patience = 50ms});
    const int descriptor = producer.descriptor();
    std::optional<Consumer<Tagged>> consumer;
    std::jthread joining{
        [&] { consumer.emplace(Consumer<Tagged>::connect(producer.address(), small(4), soon())); }};
    while (producer.consumers() == 0) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s));
        (void)producer.look_around();
    }
    joining.join();
    Status how = Status::ok;
    producer.on_change([&](const Replica&, Status changed) { how = changed; });
    // It takes nothing, and is told apart by the clock alone.
    while (producer.consumers() != 0) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s));
        (void)producer.try_enqueue(Tagged::make(0, 0));
    }
    EXPECT_EQ(how, Status::full);
    EXPECT_EQ(producer.try_enqueue(Tagged::make(0, 0)), Status::ok) << "that nobody waits for";
}

TEST(Replicator, GivesToAllOrToNobody) {
    Copies<Tagged> copies{2, {.queue = small(4)}};
    Replicator<Tagged>& producer = *copies.producer;
    std::uint64_t sent = 0;
    // Until nothing moves any more, be it that a request was lost on the way and is sent again.
    while (producer.enqueue(Tagged::make(0, sent), Deadline::after(200ms)) == Status::ok) ++sent;
    EXPECT_GE(sent, 4U);
    EXPECT_EQ(producer.enqueue({}, Deadline::after(10ms)), Status::timed_out);
    // One has room by now, and must not get what the other one does not.
    Tagged item;
    for (std::uint64_t i = 0; i != sent; ++i) {
        ASSERT_EQ(take(copies.consumers[0], producer, item), Status::ok);
        EXPECT_EQ(item, Tagged::make(0, i));
    }
    EXPECT_EQ(producer.enqueue({}, Deadline::after(10ms)), Status::timed_out);
    EXPECT_EQ(copies.consumers[0].dequeue(item, Deadline::after(10ms)), Status::timed_out);
    EXPECT_GT(producer.stats().full, 0U);
    for (std::uint64_t i = 0; i != sent; ++i) {
        ASSERT_EQ(take(copies.consumers[1], producer, item), Status::ok);
    }
    ASSERT_EQ(producer.enqueue(Tagged::make(0, sent), soon()), Status::ok);
    for (auto& consumer : copies.consumers) {
        ASSERT_EQ(take(consumer, producer, item), Status::ok);
        EXPECT_EQ(item, Tagged::make(0, sent));
    }
}

TEST(Replicator, DropsWhoLagsWhereItMay) {
    Copies<Tagged> copies{2, {.queue = small(4), .lagging = Lagging::leaves, .patience = 1s}};
    Replicator<Tagged>& producer = *copies.producer;
    std::vector<Status> changes;
    producer.on_change([&](const Replica& replica, Status how) {
        EXPECT_EQ(replica.number, 2U);
        changes.push_back(how);
    });
    InOrder seen{1};
    Tagged item;
    const auto read_first = [&] {
        while (copies.consumers[0].try_dequeue(item) == Status::ok) seen.see(item);
    };
    const Deadline deadline = soon();
    for (std::uint64_t i = 0; i != 50 && !deadline.expired();) {
        const Status status = producer.try_enqueue(Tagged::make(0, i));
        if (status == Status::ok) ++i;
        read_first();
    }
    EXPECT_EQ(producer.consumers(), 1U);
    EXPECT_EQ(changes, std::vector<Status>{Status::full});
    EXPECT_EQ(producer.stats().dropped, 1U);
    auto closing = std::async(std::launch::async, [&] { return producer.close(soon()); });
    Status status;
    while ((status = copies.consumers[0].dequeue(item, soon())) == Status::ok) seen.see(item);
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(closing.get(), Status::ok);
    EXPECT_EQ(seen.total(), 50U);
    // What it was sent it has; then it is told.
    InOrder seen_by_second{1};
    while ((status = copies.consumers[1].dequeue(item, soon())) == Status::ok) {
        seen_by_second.see(item);
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_GE(seen_by_second.total(), 1U);
}

TEST(Replicator, GoesOnWithoutTheDeadDownToItsQuorum) {
    Copies<Tagged> copies{3, {.queue = small(64), .quorum = 2}};
    copies.consumers.pop_back();
    const Deadline deadline = soon();
    Tagged item;
    std::uint64_t sent = 0;
    while (copies.producer->consumers() != 2 && !deadline.expired()) {
        if (copies.producer->enqueue(Tagged::make(0, sent), soon()) == Status::ok) ++sent;
        while (copies.consumers[0].try_dequeue(item) == Status::ok) {
        }
        while (copies.consumers[1].try_dequeue(item) == Status::ok) {
        }
    }
    EXPECT_EQ(copies.producer->consumers(), 2U);
    copies.consumers[1].close();
    Status status = Status::ok;
    while (status == Status::ok && !deadline.expired()) {
        status = copies.producer->enqueue({}, soon());
        while (copies.consumers[0].try_dequeue(item) == Status::ok) {
        }
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_EQ(copies.producer->consumers(), 1U);
}

/// Items that wait for a batch to be complete, unless they are flushed.
TEST(Replicator, WaitsUntilAllHaveIt) {
    constexpr ring::Design in_batches = with(ring::design_1, ring::Batching::fixed);
    Copies<Tagged, in_batches> copies{2, {.queue = small(64)}};
    for (std::uint64_t i = 0; i != 5; ++i) {
        ASSERT_EQ(copies.producer->enqueue(Tagged::make(0, i), soon()), Status::ok);
    }
    Tagged item;
    for (auto& consumer : copies.consumers) EXPECT_EQ(consumer.try_dequeue(item), Status::empty);
    ASSERT_EQ(copies.producer->flush(soon()), Status::ok);
    // Behind a flush nothing is on its way, and nothing needs the producer any more.
    for (auto& consumer : copies.consumers) {
        for (std::uint64_t i = 0; i != 5; ++i) {
            ASSERT_EQ(consumer.try_dequeue(item), Status::ok);
            EXPECT_EQ(item, Tagged::make(0, i));
        }
    }
}

TEST(Replicator, ThatListensServesWhoeverIsThere) {
    auto producer = Replicator<Tagged>::listen(fresh_address(), {.queue = small(1024)});
    ASSERT_EQ(producer.try_enqueue(Tagged::make(0, 0)), Status::ok) << "nobody's";
    const auto join = [&](std::uint32_t label) {
        Options options = small(1024);
        options.ring.label = label;
        const std::size_t before = producer.consumers();
        auto connecting = std::async(std::launch::async, [&, options] {
            return Consumer<Tagged>::connect(producer.address(), options, soon());
        });
        const Deadline deadline = soon();
        while (producer.look_around() != before + 1 && !deadline.expired()) {
            std::this_thread::yield();
        }
        return connecting.get();
    };
    std::vector<std::uint64_t> from;
    producer.on_change([&](const Replica& replica, Status how) {
        if (how == Status::ok) from.push_back(replica.from);
        EXPECT_EQ(replica.label, 6 + replica.number);
    });
    auto first = join(7);
    ASSERT_EQ(producer.enqueue(Tagged::make(0, 1), soon()), Status::ok);
    auto second = join(8);
    ASSERT_EQ(producer.enqueue(Tagged::make(0, 2), soon()), Status::ok);
    EXPECT_EQ(from, (std::vector<std::uint64_t>{1, 2}));
    Tagged item;
    ASSERT_EQ(first.dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 1)) << "from when it joined";
    ASSERT_EQ(first.dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 2));
    ASSERT_EQ(second.dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 2));
    EXPECT_EQ(producer.close(soon()), Status::ok);
    EXPECT_EQ(second.dequeue(item, soon()), Status::closed);
}

MILLRACE_CHILD(replica) {
    auto consumer = Consumer<Tagged>::connect(arguments[0], small(256), soon());
    say("connected");
    std::uint64_t next = 0;
    bool has_begun = false;
    Tagged item;
    Status status;
    while ((status = consumer.dequeue(item, soon())) == Status::ok) {
        if (!item.is_whole() || (has_begun && item.number != next)) return 1;
        has_begun = true;
        next = item.number + 1;
    }
    say(std::to_string(next) + " " + std::string{name_of(status)});
    return 0;
}

TEST(ReplicatorBetweenProcesses, LosesOnlyTheKilled) {
    auto producer = Replicator<Tagged>::listen(fresh_address(), {.queue = small(256)});
    std::vector<ChildProcess> children;
    for (int i = 0; i != 3; ++i) {
        children.push_back(ChildProcess::start("replica", {producer.address().to_string()}));
    }
    const Deadline deadline = soon();
    while (producer.look_around() != 3 && !deadline.expired()) std::this_thread::yield();
    std::uint64_t sent = 0;
    const auto send = [&](std::uint64_t count) {
        for (const std::uint64_t until = sent + count; sent != until; ++sent) {
            ASSERT_EQ(producer.enqueue(Tagged::make(0, sent), soon()), Status::ok);
        }
    };
    send(5000);
    children[1].kill();
    send(5000);
    while (producer.consumers() != 2 && !deadline.expired()) send(1);
    EXPECT_EQ(producer.close(soon()), Status::ok);
    for (const std::size_t i : {0U, 2U}) {
        EXPECT_EQ(children[i].read_line(), "connected");
        EXPECT_EQ(children[i].read_line(), std::to_string(sent) + " closed");
        EXPECT_TRUE(children[i].wait().success());
    }
}

}  // namespace
}  // namespace millrace::flow
