// Many producers, one consumer, one ring: nothing is lost, doubled or out of order, whoever dies or
// stops, at whatever moment.
#include "millrace/flow/shared_fan_in.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>

#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "crowd.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "raw_shared_producer.hpp"
#include "support/child_process.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;
using testing::HasSubstr;

void produce(const connect::Address& address, std::uint64_t producer, std::uint64_t count,
             std::size_t batch) {
    auto end = SharedProducer<Tagged>::connect(address, {}, soon());
    std::vector<Tagged> items;
    for (std::uint64_t i = 0; i != count;) {
        items.clear();
        for (std::uint64_t j = i; j != std::min<std::uint64_t>(count, i + batch); ++j) {
            items.push_back(Tagged::make(producer, j));
        }
        if (batch == 1) {
            ASSERT_EQ(end.enqueue(items.front(), soon()), Status::ok);
            ++i;
            continue;
        }
        const BatchResult result = end.try_enqueue_batch(items);
        ASSERT_TRUE(result.status == Status::ok || result.status == Status::full);
        if (result.count == 0) std::this_thread::sleep_for(20us);
        i += result.count;
    }
    ASSERT_EQ(end.close(soon()), Status::ok) << end.failure();
}

TEST(SharedFanIn, TakesAllItemsOfAllProducersInTheirOrders) {
    constexpr std::size_t producers = 7;
    constexpr std::uint64_t count = 500;
    for (const std::uint64_t capacity : {1, 3, 64}) {
        for (const std::size_t batch : {std::size_t{1}, std::size_t{5}}) {
            auto fan_in = SharedFanIn<Tagged>::listen(
                fresh_address(), {.capacity = capacity, .expected = producers});
            std::vector<std::jthread> threads;
            for (std::size_t p = 0; p != producers; ++p) {
                threads.emplace_back([&, p] { produce(fan_in.address(), p, count, batch); });
            }
            InOrder seen{producers};
            ASSERT_NO_FATAL_FAILURE(take_all(fan_in, seen));
            EXPECT_EQ(seen.total(), producers * count);
            const SharedFanInStats stats = fan_in.stats();
            EXPECT_EQ(stats.producers.items, producers * count);
            EXPECT_EQ(stats.producers.joined, producers);
            EXPECT_EQ(stats.producers.closed, producers);
            EXPECT_EQ(stats.producers.lost, 0U);
            EXPECT_EQ(stats.tombstones, 0U);
            EXPECT_EQ(stats.moves, 0U);
        }
    }
}

/// Takes items until `seen` has so many of that producer.
void take_until(SharedFanIn<Tagged>& fan_in, InOrder& seen, std::size_t producer,
                std::uint64_t count) {
    Tagged item;
    while (seen.of(producer) < count) {
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        seen.see(item);
        ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
}

/// An end that connects while the consumer lets it in.
template <class Make>
auto connected(SharedFanIn<Tagged>& fan_in, Make&& make) {
    auto connecting = std::async(std::launch::async, std::forward<Make>(make));
    while (connecting.wait_for(0s) != std::future_status::ready) (void)fan_in.look_around();
    return connecting.get();
}
SharedProducer<Tagged> producer_of(SharedFanIn<Tagged>& fan_in, SharedOptions options = {}) {
    return connected(
        fan_in, [&] { return SharedProducer<Tagged>::connect(fan_in.address(), options, soon()); });
}

TEST(SharedFanIn, TakesManyWhoConnectWithoutWaitingInOneThread) {
    constexpr std::size_t count = 8;
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 4, .expected = count});
    std::vector<Connector<SharedProducer<Tagged>>> connectors;
    std::vector<std::optional<SharedProducer<Tagged>>> producers(count);
    for (std::size_t i = 0; i != count; ++i) connectors.emplace_back(fan_in.address());
    const Deadline deadline = soon();
    for (std::size_t connected = 0; connected != count;) {
        ASSERT_FALSE(deadline.expired()) << connected;
        for (std::size_t i = 0; i != count; ++i) {
            if (producers[i].has_value()) continue;
            producers[i] = connectors[i].try_connect();
            if (producers[i].has_value()) ++connected;
        }
        (void)fan_in.look_around();
    }
    InOrder seen{count};
    Tagged item;
    for (std::uint64_t number = 0; number != 5; ++number) {
        for (std::size_t p = 0; p != count; ++p) {
            ASSERT_EQ(producers[p]->enqueue(Tagged::make(p, number), soon()), Status::ok);
            ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
            seen.see(item);
        }
    }
    for (auto& one : producers) EXPECT_EQ(one->close(soon()), Status::ok);
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::closed);
    EXPECT_EQ(seen.total(), 5 * count);
}

TEST(SharedFanIn, IsNoPlaceForWhoHasOtherItems) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address());
    Connector<SharedProducer<std::uint64_t>> connector{fan_in.address()};
    const base::Error error = error_of([&] {
        for (const Deadline deadline = soon(); !deadline.expired();) {
            (void)fan_in.look_around();
            if (connector.try_connect().has_value()) break;
        }
    });
    EXPECT_EQ(error.code(), base::ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("use the same type at both ends"));
}

TEST(SharedFanIn, WakesWhoSleepsAndSaysWhoseAnItemIs) {
    SharedOptions asleep;
    asleep.wait = base::WaitPolicy::blocking();
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.shared = asleep, .capacity = 4});
    asleep.label = 17;
    auto one = producer_of(fan_in, asleep);
    asleep.label = 18;
    auto other = producer_of(fan_in, asleep);
    Tagged item;
    EXPECT_EQ(fan_in.dequeue(item, Deadline::after(20ms)), Status::timed_out);
    for (std::uint64_t i = 0; i != 20; ++i) {
        auto& from = i % 2 == 0 ? one : other;
        auto sending = std::async(std::launch::async, [&] {
            std::this_thread::sleep_for(2ms);
            return from.enqueue(Tagged::make(i % 2, i), soon());
        });
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item, Tagged::make(i % 2, i));
        EXPECT_EQ(fan_in.last().label, 17 + i % 2);
        EXPECT_EQ(sending.get(), Status::ok);
    }
    EXPECT_GT(fan_in.stats().producers.sleeps, 0U);
    EXPECT_THAT(fan_in.explain(), HasSubstr("2 producers of at most 1024"));
    EXPECT_THAT(one.explain(), HasSubstr("producer of a shared ring"));
}

TEST(SharedFanIn, IsFullForAllWhenItIsFull) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 4});
    auto one = producer_of(fan_in);
    auto other = producer_of(fan_in);
    const Deadline deadline = soon();
    std::uint64_t laid = 0;
    for (Status status = Status::ok; laid != 4 && !deadline.expired();) {
        status = one.try_enqueue(Tagged::make(0, laid));
        ASSERT_TRUE(status == Status::ok || status == Status::full);
        if (status == Status::ok) ++laid;
    }
    EXPECT_EQ(one.enqueue(Tagged::make(0, 4), Deadline::after(5ms)), Status::timed_out);
    EXPECT_EQ(other.enqueue(Tagged::make(1, 0), Deadline::after(5ms)), Status::timed_out);
    ASSERT_EQ(other.flush(soon()), Status::ok);
    InOrder seen{2};
    take_until(fan_in, seen, 0, 4);
    EXPECT_EQ(other.enqueue(Tagged::make(1, 0), soon()), Status::ok);
    take_until(fan_in, seen, 1, 1);
    EXPECT_EQ(fan_in.stats().tombstones, 0U);
}

TEST(SharedFanIn, GivesItemsInPlaceAndInBatches) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8});
    auto one = producer_of(fan_in);
    std::vector<Tagged> items;
    for (std::uint64_t i = 0; i != 6; ++i) items.push_back(Tagged::make(0, i));
    ASSERT_EQ(one.try_enqueue_batch(items).count, 6U);
    ASSERT_EQ(one.flush(soon()), Status::ok);
    const Tagged* seen = nullptr;
    ASSERT_EQ(fan_in.peek(seen, soon()), Status::ok);
    EXPECT_EQ(*seen, items[0]);
    ASSERT_EQ(fan_in.peek(seen), Status::ok);
    EXPECT_EQ(*seen, items[0]);
    fan_in.release();
    fan_in.release();
    std::vector<Tagged> taken(6);
    const BatchResult result = fan_in.try_dequeue_batch(taken);
    EXPECT_EQ(result.count, 5U);
    EXPECT_EQ(result.status, Status::empty);
    EXPECT_EQ(taken[0], items[1]);
    EXPECT_EQ(taken[4], items[5]);
    EXPECT_EQ(one.stats().items, 6U);
    EXPECT_EQ(one.stats().claims, 1U);
}

TEST(SharedFanIn, ThatClosesIsClosedToItsProducers) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8});
    auto one = producer_of(fan_in);
    fan_in.close();
    Tagged item;
    EXPECT_EQ(fan_in.try_dequeue(item), Status::closed);
    const Deadline deadline = soon();
    while (one.look_around() == Status::ok && !deadline.expired()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(one.try_enqueue(Tagged::make(0, 0)), Status::closed);
}

TEST(SharedFanIn, RefusesWhatCannotWork) {
    const auto refused = [](SharedFanInOptions options) {
        return error_of([&] { (void)SharedFanIn<Tagged>::listen(fresh_address(), options); })
            .code();
    };
    SharedOptions own_domains;
    own_domains.admission.own_domains = true;
    for (const SharedFanInOptions& options :
         {SharedFanInOptions{.capacity = 0}, SharedFanInOptions{.capacity = 1ULL << 40},
          SharedFanInOptions{.max_producers = 0}, SharedFanInOptions{.max_producers = 65'535},
          SharedFanInOptions{.patience = 0ns}, SharedFanInOptions{.shared = own_domains}}) {
        EXPECT_EQ(refused(options), base::ErrorCode::invalid_argument);
    }
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.max_producers = 1});
    const auto failed = [&](auto&& connect) {
        auto connecting = std::async(std::launch::async, [&] { return error_of(connect); });
        while (connecting.wait_for(0s) != std::future_status::ready) (void)fan_in.look_around();
        return std::string{connecting.get().what()};
    };
    EXPECT_THAT(
        failed([&] { (void)SharedProducer<std::uint64_t>::connect(fan_in.address(), {}, soon()); }),
        HasSubstr("use the same type at both ends"));
    EXPECT_THAT(failed([&] { (void)Producer<Tagged>::connect(fan_in.address(), {}, soon()); }),
                HasSubstr("shared ring"));
    auto one = producer_of(fan_in);
    EXPECT_THAT(
        failed([&] { (void)SharedProducer<Tagged>::connect(fan_in.address(), {}, soon()); }),
        HasSubstr("1 clients at most"));
}

TEST(SharedFanIn, CanBeInAProgramsOwnLoop) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 4, .expected = 1});
    std::jthread producer{[&] { produce(fan_in.address(), 0, 200, 1); }};
    InOrder seen{1};
    const Deadline deadline = soon();
    for (Status status = Status::empty; status != Status::closed && !deadline.expired();) {
        pollfd ready{fan_in.descriptor(), POLLIN, 0};
        ASSERT_GT(poll(&ready, 1, 10'000), 0);
        Tagged item;
        while ((status = fan_in.try_dequeue(item)) == Status::ok) seen.see(item);
    }
    EXPECT_EQ(seen.total(), 200U);
}

TEST(SharedFanIn, LetsProducersInByAThreadOfItsOwn) {
    auto fan_in = SharedFanIn<Tagged>::listen(
        fresh_address(), {.capacity = 4, .expected = 3, .acceptor = connect::AcceptorOptions{}});
    std::vector<std::jthread> threads;
    for (std::size_t p = 0; p != 3; ++p) {
        threads.emplace_back([&, p] { produce(fan_in.address(), p, 100, 1); });
    }
    InOrder seen{3};
    Tagged item;
    while (fan_in.dequeue(item, soon()) == Status::ok) seen.see(item);
    EXPECT_EQ(seen.total(), 300U);
}

// ---- who dies, stops or lies

/// Takes places, says so, and fills them when it is told to, if it still can.
MILLRACE_CHILD(shared_holder) {
    RawSharedProducer<Tagged> raw{connect::Address::parse(arguments.at(0))};
    const std::uint64_t count = std::stoull(arguments.at(1));
    const std::uint64_t position = raw.claim(count);
    // As where items are stored: by the processor, whatever has become of the connection.
    const auto here = raw.link().queue_pair().map_remote(raw.ring(), raw.shape().bytes());
    say("holds");
    (void)hear();
    for (std::uint64_t i = 0; i != count; ++i) {
        if (here == nullptr) {
            (void)raw.fill(position + i, Tagged::make(9, 9));
            continue;
        }
        std::byte* const at = here.get() + raw.shape().slot_at((position + i) % raw.facts.slots);
        std::memset(at, 0xee, sizeof(Tagged));
        ring::store_word(at + raw.shape().slot_bytes - ring::mark_bytes,
                         detail::shared_mark(raw.facts.owner, raw.facts.secret, position + i));
    }
    const Deadline deadline = soon();
    while (raw.link().peer_now() == connect::PeerState::alive && !deadline.expired()) {
        std::this_thread::sleep_for(1ms);
    }
    const bool reason = raw.link().last_words().size() == 16;
    say(reason ? "given up" : "no reason");
    return 0;
}

/// A child that has taken places and left them empty.
ChildProcess holder(SharedFanIn<Tagged>& fan_in, std::uint64_t count) {
    ChildProcess child =
        ChildProcess::start("shared_holder", {fan_in.address().to_string(), std::to_string(count)});
    auto says = std::async(std::launch::async, [&] { return child.read_line(); });
    while (says.wait_for(0s) != std::future_status::ready) (void)fan_in.look_around();
    EXPECT_EQ(says.get(), "holds");
    return child;
}

TEST(SharedFanInBetweenProcesses, PassesOverThePlacesOfWhoDied) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8, .patience = 1h});
    auto one = producer_of(fan_in);
    InOrder seen{1};
    std::uint64_t lost = 0;
    fan_in.on_change([&](const FanInSource&, Status how) { lost += how == Status::peer_lost; });
    for (std::uint64_t round = 0; round != 5; ++round) {
        ChildProcess child = holder(fan_in, 3);
        for (std::uint64_t i = 0; i != 4; ++i) {
            ASSERT_EQ(one.enqueue(Tagged::make(0, round * 4 + i), soon()), Status::ok);
        }
        Tagged item;
        EXPECT_EQ(fan_in.dequeue(item, Deadline::after(20ms)), Status::timed_out)
            << "it lives, and is waited for";
        child.kill();
        take_until(fan_in, seen, 0, round * 4 + 4);
        EXPECT_EQ(fan_in.stats().tombstones, 3 * (round + 1));
    }
    Tagged none;
    const Deadline deadline = soon();
    while (lost != 5 && !deadline.expired()) (void)fan_in.dequeue(none, Deadline::after(1ms));
    EXPECT_EQ(lost, 5U);
    EXPECT_EQ(fan_in.stats().moves, 0U);
    EXPECT_EQ(fan_in.producers(), 1U);
}

/// Takes places, fills all but the first, and says so.
MILLRACE_CHILD(shared_hole_maker) {
    RawSharedProducer<Tagged> raw{connect::Address::parse(arguments.at(0))};
    const std::uint64_t before = raw.claim(1);
    (void)raw.fill(before, Tagged::make(1, 0));
    const std::uint64_t position = raw.claim(3);
    for (std::uint64_t i = 1; i != 3; ++i) {
        (void)raw.fill(position + i, Tagged::make(1, 1 + i));
    }
    say("holds");
    (void)hear();
    return 0;
}

TEST(SharedFanInBetweenProcesses, TakesNothingOfTheDeadAfterWhatIsMissing) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8, .patience = 1h});
    auto one = producer_of(fan_in);
    ChildProcess child = ChildProcess::start("shared_hole_maker", {fan_in.address().to_string()});
    auto says = std::async(std::launch::async, [&] { return child.read_line(); });
    while (says.wait_for(0s) != std::future_status::ready) (void)fan_in.look_around();
    ASSERT_EQ(says.get(), "holds");
    for (std::uint64_t i = 0; i != 4; ++i) {
        ASSERT_EQ(one.enqueue(Tagged::make(0, i), soon()), Status::ok);
    }
    child.kill();
    InOrder seen{2};
    take_until(fan_in, seen, 0, 4);
    EXPECT_EQ(seen.of(1), 1U) << "of what it filled, the item before the gap alone";
    EXPECT_EQ(fan_in.stats().tombstones, 3U);
}

TEST(SharedFanInBetweenProcesses, GivesUpWhoStopsAndIsHitByNothingItStoresLater) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8, .patience = 100ms});
    auto one = producer_of(fan_in);
    auto other = producer_of(fan_in);
    InOrder seen{2};
    for (std::uint64_t round = 0; round != 3; ++round) {
        ChildProcess child = holder(fan_in, 2);
        child.stop();
        const std::uint64_t from = round * 40;
        std::vector<std::jthread> threads;
        for (SharedProducer<Tagged>* end : {&one, &other}) {
            threads.emplace_back([&, end] {
                for (std::uint64_t i = 0; i != 20; ++i) {
                    ASSERT_EQ(end->enqueue(Tagged::make(end == &one ? 0 : 1, from + i), soon()),
                              Status::ok)
                        << end->failure();
                }
            });
        }
        take_until(fan_in, seen, 0, from + 20);
        take_until(fan_in, seen, 1, from + 20);
        threads.clear();
        EXPECT_EQ(fan_in.stats().moves, round + 1);
        EXPECT_EQ(fan_in.producers(), 2U);
        // It goes on, and fills what was its own.
        child.resume();
        child.write_line("go on");
        EXPECT_EQ(child.read_line(), "given up");
        for (std::uint64_t i = 20; i != 40; ++i) {
            ASSERT_EQ(one.enqueue(Tagged::make(0, from + i), soon()), Status::ok);
            ASSERT_EQ(other.enqueue(Tagged::make(1, from + i), soon()), Status::ok);
            take_until(fan_in, seen, 0, from + i + 1);
            take_until(fan_in, seen, 1, from + i + 1);
        }
    }
    EXPECT_EQ(one.stats().moves, 3U);
}

MILLRACE_CHILD(shared_producer) {
    const auto address = connect::Address::parse(arguments.at(0));
    const std::uint64_t producer = std::stoull(arguments.at(1));
    auto end = SharedProducer<Tagged>::connect(address, {}, soon());
    for (std::uint64_t i = 0;;) {
        std::vector<Tagged> items;
        for (std::uint64_t j = 0; j != 1 + i % 5; ++j)
            items.push_back(Tagged::make(producer, i + j));
        const BatchResult result = end.try_enqueue_batch(items);
        i += result.count;
        if (result.status == Status::full) std::this_thread::sleep_for(10us);
        if (result.status != Status::ok && result.status != Status::full) return 3;
    }
}

TEST(SharedFanInBetweenProcesses, LosesNothingOfOthersWhenProducersAreKilledOrStopped) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 16, .patience = 30s});
    std::mt19937_64 chance{7};
    std::vector<ChildProcess> children;
    InOrder seen{40};
    std::uint64_t started = 0;
    const auto start = [&] {
        return ChildProcess::start("shared_producer",
                                   {fan_in.address().to_string(), std::to_string(started++)});
    };
    for (int i = 0; i != 3; ++i) children.push_back(start());
    const auto take = [&](std::uint64_t count) {
        Tagged item;
        for (const std::uint64_t until = seen.total() + count; seen.total() < until;) {
            ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
            seen.see(item);
            ASSERT_FALSE(testing::Test::HasFatalFailure());
        }
    };
    while (fan_in.producers() != 3) take(1);
    for (int round = 0; round != 20; ++round) {
        take(100 + chance() % 400);
        ChildProcess& child = children[chance() % children.size()];
        if (round % 2 == 0) {
            child.kill();
            child = start();
        } else {
            child.stop();
            // One that stops within a call holds the others up; they go on after it.
            Tagged item;
            for (int i = 0; i != 50 && fan_in.dequeue(item, Deadline::after(5ms)) == Status::ok;
                 ++i)
                seen.see(item);
            child.resume();
        }
    }
    take(500);
    // Who was killed before it had joined is nobody's loss.
    const Deadline deadline = soon();
    while (fan_in.producers() != 3 && !deadline.expired()) take(1);
    EXPECT_EQ(fan_in.producers(), 3U);
    EXPECT_EQ(fan_in.stats().producers.joined, 3 + fan_in.stats().producers.lost);
    EXPECT_EQ(fan_in.stats().moves, 0U);
    for (ChildProcess& child : children) child.kill();
    fan_in.close();
}

TEST(SharedFanIn, GivesUpWhoLeavesAPlaceEmptyAndTellsItWhy) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8, .patience = 50ms});
    auto raw = connected(
        fan_in, [&] { return std::make_unique<RawSharedProducer<Tagged>>(fan_in.address()); });
    auto one = producer_of(fan_in);
    (void)raw->claim(2);
    ASSERT_EQ(one.enqueue(Tagged::make(0, 0), soon()), Status::ok);
    InOrder seen{1};
    take_until(fan_in, seen, 0, 1);
    EXPECT_EQ(fan_in.stats().producers.lost, 1U);
    const Deadline deadline = soon();
    while (raw->link().peer_now() == connect::PeerState::alive && !deadline.expired()) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(raw->link().last_words().size(), 16U);
}

TEST(SharedFanIn, GivesNobodyUpWhoTriesForAPlaceOfAnotherAMomentTooLate) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8, .patience = 1s});
    std::vector<std::uint32_t> lost;
    fan_in.on_change([&](const FanInSource& source, Status how) {
        if (how == Status::peer_lost) lost.push_back(source.label);
    });
    const auto raw = [&](std::uint32_t label) {
        return connected(fan_in, [&] {
            return std::make_unique<RawSharedProducer<Tagged>>(fan_in.address(), label);
        });
    };
    auto holds = raw(1);
    auto tries = raw(2);
    const std::uint64_t position = holds->claim(2);
    const Deadline deadline = soon();
    Tagged item;
    for (std::uint64_t count = 1; lost.empty() && !deadline.expired(); ++count) {
        ASSERT_TRUE(tries->say_attempt(detail::shared_word(1 + count % 2, position)));
        EXPECT_EQ(fan_in.dequeue(item, Deadline::after(1ms)), Status::timed_out);
    }
    EXPECT_THAT(lost, testing::ElementsAre(1U));
    EXPECT_EQ(fan_in.producers(), 1U);
}

TEST(SharedFanIn, GivesUpWhoHoldsAPlaceByOneAttemptAfterTheOther) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8, .patience = 100ms});
    auto raw = connected(
        fan_in, [&] { return std::make_unique<RawSharedProducer<Tagged>>(fan_in.address()); });
    const std::uint64_t position = raw->claim(2);
    const Deadline deadline = soon();
    Tagged item;
    for (std::uint64_t count = 1; fan_in.producers() != 0 && !deadline.expired(); ++count) {
        (void)raw->say_attempt(detail::shared_word(1 + count % 2, position));
        EXPECT_EQ(fan_in.dequeue(item, Deadline::after(1ms)), Status::timed_out);
    }
    EXPECT_EQ(fan_in.producers(), 0U);
}

TEST(SharedFanIn, MovesAwayFromATailThatLies) {
    for (const std::uint64_t lie : {detail::shared_word(3, 1'000'000), std::uint64_t{0} - 2}) {
        auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 8});
        auto raw = connected(
            fan_in, [&] { return std::make_unique<RawSharedProducer<Tagged>>(fan_in.address()); });
        auto one = producer_of(fan_in);
        InOrder seen{1};
        ASSERT_EQ(one.enqueue(Tagged::make(0, 0), soon()), Status::ok);
        take_until(fan_in, seen, 0, 1);
        ASSERT_TRUE(raw->write_word(raw->ring() + detail::SharedShape::tail_at, lie));
        auto sending = std::async(std::launch::async, [&] {
            for (std::uint64_t i = 1; i != 50; ++i) {
                if (one.enqueue(Tagged::make(0, i), soon()) != Status::ok) return false;
            }
            return true;
        });
        take_until(fan_in, seen, 0, 50);
        EXPECT_TRUE(sending.get());
        EXPECT_EQ(fan_in.stats().moves, 1U);
    }
}

TEST(SharedFanIn, TakesNothingThatBearsAForeignMark) {
    auto fan_in = SharedFanIn<Tagged>::listen(fresh_address(), {.capacity = 4});
    auto raw = connected(
        fan_in, [&] { return std::make_unique<RawSharedProducer<Tagged>>(fan_in.address()); });
    auto one = producer_of(fan_in);
    const Tagged forged = Tagged::make(0, 77);
    const auto at = raw->ring() + raw->shape().slot_at(0);
    ASSERT_TRUE(raw->write(at, &forged, sizeof forged));
    for (const std::uint64_t mark :
         {detail::shared_mark(raw->facts.owner + 1, raw->facts.secret, 0),
          detail::shared_mark(raw->facts.owner, raw->facts.secret, 4),
          detail::shared_mark(65'000, raw->facts.secret, 0), ~std::uint64_t{0}}) {
        ASSERT_TRUE(raw->write_word(at + (raw->shape().slot_bytes - ring::mark_bytes), mark));
        Tagged item;
        EXPECT_EQ(fan_in.try_dequeue(item), Status::empty);
    }
    InOrder seen{1};
    ASSERT_EQ(one.enqueue(Tagged::make(0, 0), soon()), Status::ok);
    take_until(fan_in, seen, 0, 1);
}

}  // namespace
}  // namespace millrace::flow
