// One producer, many consumers that share the items; and the shuffle of several of both.
#include "millrace/flow/fan_out.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "crowd.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

/// A fan-out, and all its consumers in this process.
struct Fan {
    explicit Fan(std::size_t count, FanOutOptions options = {.queue = small()}) {
        std::vector<Listener> listeners;
        std::vector<connect::Address> addresses;
        for (std::size_t i = 0; i != count; ++i) {
            listeners.push_back(Listener::listen(fresh_address(), options.queue));
            addresses.push_back(listeners.back().address());
        }
        auto connecting = std::async(std::launch::async, [&] {
            return FanOut<Tagged>::connect(addresses, options, soon());
        });
        for (Listener& listener : listeners) {
            consumers.push_back(Consumer<Tagged>::accept(listener, soon()));
        }
        out.emplace(connecting.get());
    }
    std::vector<Consumer<Tagged>> consumers;
    std::optional<FanOut<Tagged>> out;
};

/// Takes what is on its way to a consumer, while calls of the producer send what is stranded there.
std::size_t drain(Fan& fan, std::size_t consumer) {
    std::size_t count = 0;
    Tagged item;
    const Deadline deadline = soon();
    while (!deadline.expired()) {
        const Status flushed = fan.out->to(consumer).flush(Deadline::now());
        Status status;
        while ((status = fan.consumers[consumer].try_dequeue(item)) == Status::ok) {
            EXPECT_TRUE(item.is_whole());
            ++count;
        }
        if (flushed != Status::timed_out) break;
    }
    return count;
}

/// Until nothing moves any more, be it that a request was lost on the way and is sent again.
void fill(FanOut<Tagged>& out) {
    while (out.enqueue(Tagged::make(0, 0), Deadline::after(200ms)) == Status::ok) {
    }
}

TEST(Partition, IsTheSameForAllAndAboutEvenForAnyKeys) {
    EXPECT_EQ(partition_of(42, 1), 0U);
    // Written down, as what one release has placed another one looks for.
    EXPECT_EQ(partition_of(0, 7), 0U);
    EXPECT_EQ(partition_of(1, 7), 4U);
    EXPECT_EQ(partition_of(2, 7), 1U);
    EXPECT_EQ(partition_of(0xffffffffffffffff, 7), 2U);
    for (const std::uint64_t step : {1ULL, 8ULL, 4096ULL, 1ULL << 40}) {
        for (const std::size_t parts : {2U, 3U, 16U, 100U}) {
            std::vector<std::size_t> held(parts);
            const std::size_t keys = 1000 * parts;
            for (std::size_t i = 0; i != keys; ++i) {
                const std::size_t part = partition_of(i * step, parts);
                ASSERT_LT(part, parts);
                ++held[part];
            }
            EXPECT_GT(*std::ranges::min_element(held), 800U) << step << " " << parts;
            EXPECT_LT(*std::ranges::max_element(held), 1200U) << step << " " << parts;
        }
    }
}

TEST(FanOut, GoesInTurn) {
    Fan fan{3, {.queue = small(), .routing = Routing::in_turn}};
    for (std::uint64_t i = 0; i != 9; ++i) {
        ASSERT_EQ(fan.out->try_enqueue(Tagged::make(0, i)), Status::ok);
        EXPECT_EQ(fan.out->last(), i % 3);
    }
    for (std::size_t c = 0; c != 3; ++c) {
        for (std::uint64_t i = 0; i != 3; ++i) {
            Tagged item;
            ASSERT_EQ(fan.consumers[c].dequeue(item, soon()), Status::ok);
            EXPECT_EQ(item, Tagged::make(0, 3 * i + c));
        }
    }
}

TEST(FanOut, InTurnWaitsForTheOneWhoseTurnItIs) {
    Fan fan{2, {.queue = small(4), .routing = Routing::in_turn}};
    fill(*fan.out);
    const std::size_t turn = (fan.out->last() + 1) % 2;
    EXPECT_EQ(fan.out->try_enqueue({}), Status::full);
    // Room at the other one is no help.
    EXPECT_GT(drain(fan, 1 - turn), 0U);
    EXPECT_EQ(fan.out->try_enqueue({}), Status::full);
    EXPECT_GT(drain(fan, turn), 0U);
    EXPECT_EQ(fan.out->enqueue({}, soon()), Status::ok);
    EXPECT_EQ(fan.out->last(), turn);
}

TEST(FanOut, InTurnGoesOnWithTheOthersWhenTheOneThatItWaitsForDies) {
    Fan fan{3, {.queue = small(4), .routing = Routing::in_turn}};
    fill(*fan.out);
    const std::size_t turn = (fan.out->last() + 1) % 3;
    std::optional<Consumer<Tagged>> dies;
    for (std::size_t c = 0; c != 3; ++c) {
        if (c != turn) {
            EXPECT_GT(drain(fan, c), 0U);
        } else {
            dies.emplace(std::move(fan.consumers[c]));
        }
    }
    EXPECT_EQ(fan.out->try_enqueue({}), Status::full);
    std::jthread dying{[&] { dies.reset(); }};
    EXPECT_EQ(fan.out->enqueue(Tagged::make(0, 0), soon()), Status::ok);
    EXPECT_NE(fan.out->last(), turn);
    EXPECT_EQ(fan.out->enqueue(Tagged::make(0, 0), soon()), Status::ok);
    EXPECT_NE(fan.out->last(), turn);
}

TEST(FanOut, GivesToWhoeverHasRoom) {
    Fan fan{2, {.queue = small(4)}};
    fill(*fan.out);
    EXPECT_GT(drain(fan, 1), 0U);
    ASSERT_EQ(fan.out->enqueue(Tagged::make(0, 1), soon()), Status::ok);
    EXPECT_EQ(fan.out->last(), 1U);
}

TEST(FanOut, SleepsUntilOneOfThemHasRoom) {
    Options blocking = small(4);
    blocking.wait = base::WaitPolicy::blocking();
    Fan fan{3, {.queue = blocking}};
    fill(*fan.out);
    for (std::size_t c : {2U, 0U, 1U, 1U}) {
        std::jthread other{[&] {
            std::this_thread::sleep_for(5ms);
            Tagged item;
            ASSERT_EQ(fan.consumers[c].dequeue(item, soon()), Status::ok);
            while (fan.consumers[c].try_dequeue(item) == Status::ok) {
            }
        }};
        ASSERT_EQ(fan.out->enqueue(Tagged::make(0, 1), soon()), Status::ok);
        other.join();
        while (fan.out->try_enqueue(Tagged::make(0, 0)) == Status::ok) {
        }
    }
}

/// Sends by the descriptor alone while both consumers take everything.
void send_in_loop(Fan& fan) {
    const int descriptor = fan.out->descriptor();
    EXPECT_TRUE(millrace::test::is_readable(descriptor))
        << "whether there is room nobody has asked";
    std::uint64_t sent = 0;
    const auto send = [&] {
        while (fan.out->try_enqueue(Tagged::make(0, sent)) == Status::ok) ++sent;
    };
    ASSERT_TRUE(millrace::test::goes_quiet(descriptor, send));
    std::atomic<std::uint64_t> taken = 0;
    std::vector<std::jthread> threads;
    for (auto& consumer : fan.consumers) {
        threads.emplace_back([&] {
            Tagged item;
            Status status;
            while ((status = consumer.dequeue(item, soon())) == Status::ok) ++taken;
            EXPECT_EQ(status, Status::closed);
        });
    }
    while (sent < 500) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s)) << sent;
        if (fan.out->try_enqueue(Tagged::make(0, sent)) == Status::ok) ++sent;
    }
    EXPECT_EQ(fan.out->close(soon()), Status::ok);
    threads.clear();
    EXPECT_EQ(taken, sent);
}

TEST(FanOut, InALoopIsReadableWhenSomebodyMayHaveRoom) {
    Fan fan{2, {.queue = small(4)}};
    send_in_loop(fan);
}

TEST(FanOut, InALoopIsReadableWhenTheOneWhoseTurnItIsMayHaveRoom) {
    Fan fan{2, {.queue = small(4), .routing = Routing::in_turn}};
    send_in_loop(fan);
}

TEST(FanOut, InALoopIsNotReadableForAnotherThanTheOneWhoseTurnItIs) {
    Fan fan{2, {.queue = small(4), .routing = Routing::in_turn}};
    const int descriptor = fan.out->descriptor();
    fill(*fan.out);
    const std::size_t turn = (fan.out->last() + 1) % 2;
    EXPECT_GT(drain(fan, 1 - turn), 0U);
    EXPECT_TRUE(millrace::test::goes_quiet(
        descriptor, [&] { EXPECT_EQ(fan.out->try_enqueue({}), Status::full); }));
    std::optional<Consumer<Tagged>> dies{std::move(fan.consumers[turn])};
    dies.reset();
    Status status;
    while ((status = fan.out->try_enqueue({})) == Status::full) {
        ASSERT_TRUE(millrace::test::becomes_readable(descriptor, 20s)) << "its consumer is gone";
    }
    EXPECT_EQ(status, Status::ok);
    EXPECT_NE(fan.out->last(), turn);
}

TEST(FanOut, PassesOverConsumersThatAreGoneUntilNobodyIsLeft) {
    for (const Routing routing : {Routing::in_turn, Routing::whoever_has_room}) {
        Fan fan{3, {.queue = small(4), .routing = routing}};
        fan.consumers[1].close();
        fan.consumers.erase(fan.consumers.begin());  // the first dies
        // What the ends of consumers are found by is looked at now and then.
        Status status = Status::ok;
        const Deadline deadline = soon();
        for (int to_last = 0; to_last < 20 && !deadline.expired();) {
            status = fan.out->enqueue(Tagged::make(0, 0), soon());
            ASSERT_EQ(status, Status::ok);
            to_last = fan.out->last() == 2 ? to_last + 1 : 0;
            Tagged item;
            for (auto& consumer : fan.consumers) {
                while (consumer.try_dequeue(item) == Status::ok) {
                }
            }
        }
        EXPECT_EQ(fan.out->last(), 2U);
        fan.consumers.clear();
        while (status == Status::ok) status = fan.out->enqueue({}, soon());
        EXPECT_EQ(status, Status::peer_lost);
    }
}

TEST(FanOut, SendsAllItemsOfAKeyToOneConsumer) {
    Fan fan{4, {.queue = small(1000)}};
    for (std::uint64_t key = 0; key != 100; ++key) {
        for (std::uint64_t i = 0; i != 3; ++i) {
            ASSERT_EQ(fan.out->enqueue_keyed(key, Tagged::make(key, i), soon()), Status::ok);
        }
    }
    ASSERT_EQ(fan.out->close(soon()), Status::ok);
    std::set<std::uint64_t> keys;
    for (std::size_t c = 0; c != 4; ++c) {
        std::set<std::uint64_t> own;
        std::size_t items = 0;
        Tagged item;
        for (; fan.consumers[c].dequeue(item, soon()) == Status::ok; ++items) {
            EXPECT_EQ(partition_of(item.producer, 4), c);
            own.insert(item.producer);
        }
        EXPECT_EQ(items, 3 * own.size());
        EXPECT_FALSE(own.empty());
        keys.insert(own.begin(), own.end());
    }
    EXPECT_EQ(keys.size(), 100U);
}

TEST(FanOut, OfAKeyWhoseConsumerIsGoneSaysSo) {
    Fan fan{2, {.queue = small()}};
    std::uint64_t key = 0;
    while (partition_of(key, 2) != 1) ++key;
    fan.consumers.pop_back();
    Status status = Status::ok;
    while (status == Status::ok) status = fan.out->enqueue_keyed(key, {}, soon());
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_FALSE(fan.out->to(1).failure().empty() && fan.out->to(1).peer().empty());
    EXPECT_EQ(fan.out->enqueue_to(0, {}, soon()), Status::ok) << "the other one goes on";
}

TEST(FanOut, NeedsAnAddress) {
    EXPECT_EQ(error_of([] {
                  (void)FanOut<Tagged>::connect(std::span<const connect::Address>{}, {}, soon());
              }).code(),
              base::ErrorCode::invalid_argument);
}

// --- shuffle

/// Every row of every producer comes to the consumer of its key, once, in the producer's order.
TEST(Shuffle, BringsEveryRowToTheConsumerOfItsKey) {
    constexpr std::size_t producers = 3;
    constexpr std::size_t consumers = 4;
    constexpr std::uint64_t rows = 2000;
    std::vector<FanIn<Tagged>> ins;
    std::vector<connect::Address> addresses;
    for (std::size_t c = 0; c != consumers; ++c) {
        ins.push_back(
            FanIn<Tagged>::listen(fresh_address(), {.queue = small(16), .expected = producers}));
        addresses.push_back(ins.back().address());
    }
    std::vector<std::future<void>> sending;
    for (std::size_t p = 0; p != producers; ++p) {
        sending.push_back(std::async(std::launch::async, [&, p] {
            auto out = FanOut<Tagged>::connect(addresses, {.queue = small(16)}, soon());
            for (std::uint64_t row = 0; row != rows; ++row) {
                ASSERT_EQ(out.enqueue_keyed(row % 97, Tagged::make(p, row), soon()), Status::ok);
            }
            ASSERT_EQ(out.close(soon()), Status::ok);
        }));
    }
    std::vector<std::future<std::uint64_t>> taking;
    for (std::size_t c = 0; c != consumers; ++c) {
        taking.push_back(std::async(std::launch::async, [&, c] {
            FanIn<Tagged>& in = ins[c];
            in.adopt();
            std::vector<std::uint64_t> last(producers, 0);
            std::uint64_t count = 0;
            Tagged item;
            Status status;
            while ((status = in.dequeue(item, soon())) == Status::ok) {
                EXPECT_TRUE(item.is_whole());
                EXPECT_EQ(partition_of(item.number % 97, consumers), c);
                EXPECT_GE(item.number, last[item.producer]);
                last[item.producer] = item.number + 1;
                ++count;
            }
            EXPECT_EQ(status, Status::closed);
            return count;
        }));
    }
    for (auto& one : sending) one.get();
    std::uint64_t total = 0;
    for (auto& one : taking) total += one.get();
    EXPECT_EQ(total, producers * rows);
}

MILLRACE_CHILD(shuffle_consumer) {
    auto in = FanIn<Tagged>::listen("unix:@" + arguments[0], {.expected = 2});
    say("listening");
    std::uint64_t count = 0;
    Tagged item;
    Status status;
    while ((status = in.dequeue(item, soon())) == Status::ok) ++count;
    say(std::to_string(count) + " " + std::string{name_of(status)});
    return 0;
}
MILLRACE_CHILD(shuffle_producer) {
    std::vector<connect::Address> addresses;
    for (const std::string& name : arguments) {
        addresses.push_back(connect::Address::parse("unix:@" + name));
    }
    auto out = FanOut<Tagged>::connect(addresses, {}, soon());
    for (std::uint64_t row = 0; row != 20'000; ++row) {
        if (out.enqueue_keyed(row, Tagged::make(0, row), soon()) != Status::ok) return 1;
    }
    return out.close(soon()) == Status::ok ? 0 : 2;
}

TEST(Shuffle, RunsBetweenProcesses) {
    const std::string name = fresh_address().substr(6);
    std::vector<std::string> names{name + "a", name + "b"};
    std::vector<ChildProcess> consumers;
    for (const std::string& one : names) {
        consumers.push_back(ChildProcess::start("shuffle_consumer", {one}));
        ASSERT_EQ(consumers.back().read_line(), "listening");
    }
    std::vector<ChildProcess> producers;
    for (int i = 0; i != 2; ++i)
        producers.push_back(ChildProcess::start("shuffle_producer", names));
    std::uint64_t total = 0;
    for (ChildProcess& consumer : consumers) {
        const auto line = consumer.read_line(40s);
        ASSERT_TRUE(line.has_value());
        EXPECT_NE(line->find(" closed"), std::string::npos) << *line;
        total += std::stoull(*line);
    }
    EXPECT_EQ(total, 40'000U);
    for (ChildProcess& producer : producers) EXPECT_TRUE(producer.wait().success());
}

}  // namespace
}  // namespace millrace::flow
