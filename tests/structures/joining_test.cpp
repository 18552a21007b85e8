// Who joins a structure, and whom its owner looks after: both by the clock, whatever the owner does
// with its time, and however far a newcomer goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "crowd.hpp"
#include "millrace/connect/connector.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/ring/detail/data_mover.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow {
namespace {

using namespace test;

/// Longer than from one look of a structure to the next.
void let_a_look_become_due() {
    const auto until = base::Clock::now() + 2ms;
    while (base::Clock::now() < until) std::this_thread::yield();
}

/// Goes on with a newcomer's handshake between calls of the owner, each of which is due to look.
/// False: it has not ended after so many calls as take a few looks.
template <class Call>
[[nodiscard]] bool is_let_in_within_few_calls(const connect::Address& address, Call&& call) {
    connect::Connector newcomer{address, ring::link_options("flow queue")};
    for (int calls = 0; calls != 16; ++calls) {
        if (newcomer.try_connect().has_value()) return true;
        let_a_look_become_due();
        call();
    }
    return false;
}

TEST(Joining, AFanInThatIsNeverIdleTakesAFewCallsHoweverSlowTheyAre) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.queue = small(64)});
    auto connecting = std::async(std::launch::async, [&] {
        auto made = Producer<Tagged>::connect(fan_in.address(), small(64), soon());
        for (std::uint64_t i = 0; i != 40; ++i) {
            EXPECT_EQ(made.enqueue(Tagged::make(0, i), soon()), Status::ok);
        }
        EXPECT_EQ(made.flush(soon()), Status::ok);
        return made;
    });
    InOrder seen{1};
    Tagged item;
    ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
    seen.see(item);
    const auto busy = connecting.get();
    EXPECT_TRUE(is_let_in_within_few_calls(fan_in.address(), [&] {
        ASSERT_EQ(fan_in.try_dequeue(item), Status::ok);
        seen.see(item);
    }));
}

TEST(Joining, AReplicatorTakesAFewCallsHoweverSeldomTheyAre) {
    auto producer = Replicator<Tagged>::listen(fresh_address(), {.queue = small()});
    EXPECT_TRUE(is_let_in_within_few_calls(
        producer.address(), [&] { EXPECT_EQ(producer.try_enqueue({}), Status::ok); }));
}

TEST(Joining, AFanInByItsAcceptorTakesNoCall) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.acceptor = connect::AcceptorOptions{}});
    // In the thread that the fan-in belongs to.
    auto producer = Producer<Tagged>::connect(fan_in.address(), {}, soon());
    ASSERT_EQ(producer.enqueue(Tagged::make(0, 1), soon()), Status::ok);
    Tagged item;
    ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 1));
    EXPECT_EQ(fan_in.producers(), 1U);
}

TEST(Joining, AReplicatorByItsAcceptorTakesNoCall) {
    auto producer = Replicator<Tagged>::listen(
        fresh_address(), {.queue = small(), .acceptor = connect::AcceptorOptions{}});
    auto consumer = Consumer<Tagged>::connect(producer.address(), small(), soon());
    const Deadline deadline = soon();
    while (producer.look_around() != 1 && !deadline.expired()) std::this_thread::yield();
    ASSERT_EQ(producer.enqueue(Tagged::make(0, 1), soon()), Status::ok);
    Tagged item;
    ASSERT_EQ(take(consumer, producer, item), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 1));
}

/// The build and the probe of a join: one consumer thread, which waits for the first of two fan-ins
/// until that is closed, and producers that connect to both before they send.
TEST(Joining, TwoFanInsOfOneThreadHaveProducersThatConnectToBoth) {
    constexpr std::uint64_t count = 50;
    const FanInOptions options{
        .queue = small(), .expected = 2, .acceptor = connect::AcceptorOptions{}};
    auto build = FanIn<Tagged>::listen(fresh_address(), options);
    auto probe = FanIn<Tagged>::listen(fresh_address(), options);
    std::vector<std::jthread> threads;
    for (std::uint64_t p = 0; p != 2; ++p) {
        threads.emplace_back([&, p] {
            auto to_build = Producer<Tagged>::connect(build.address(), small(), soon());
            auto to_probe = Producer<Tagged>::connect(probe.address(), small(), soon());
            for (auto* producer : {&to_build, &to_probe}) {
                for (std::uint64_t i = 0; i != count; ++i) {
                    ASSERT_EQ(producer->enqueue(Tagged::make(p, i), soon()), Status::ok);
                }
                ASSERT_EQ(producer->close(soon()), Status::ok);
            }
        });
    }
    for (auto* fan_in : {&build, &probe}) {
        InOrder seen{2};
        Tagged item;
        Status status;
        while ((status = fan_in->dequeue(item, soon())) == Status::ok) seen.see(item);
        EXPECT_EQ(status, Status::closed);
        EXPECT_EQ(seen.total(), 2 * count);
        EXPECT_EQ(fan_in->stats().closed, 2U);
    }
}

/// A program that stops in the middle of its setup: it has agreed, and says no more.
template <ring::Design D>
class Silent {
  public:
    Silent(const connect::Address& address, ring::Role role, ring::RingOptions options = {})
        : agreeing_{std::async(std::launch::async, [=] {
              auto link = connect::connect(address, ring::link_options("flow queue"), soon());
              (void)ring::agree(link, role, D, options, detail::item_facts<Tagged>(), soon());
              return link;
          })} {}
    [[nodiscard]] bool has_agreed() { return agreeing_.wait_for(0s) == std::future_status::ready; }

  private:
    std::future<connect::Link> agreeing_;
};

template <class Design>
class JoiningOver : public testing::Test {};
template <ring::Design D, bool own_queue = false>
struct By {
    static constexpr ring::Design value = D;
    static constexpr bool own_transfer_queue = own_queue;
};
constexpr ring::Design pulled_with_mover = with({.data = ring::DataFlow::pull,
                                                 .transfer = ring::TransferNotification::pull,
                                                 .space = ring::SpaceNotification::push},
                                                ring::Batching::none, ring::Mover::active);
constexpr ring::Design told{.data = ring::DataFlow::push1,
                            .transfer = ring::TransferNotification::push,
                            .space = ring::SpaceNotification::push};
using JoiningDesigns =
    testing::Types<By<ring::design_2>,
                   By<with(ring::design_2, ring::Batching::none, ring::Mover::active)>,
                   By<pulled_with_mover>, By<told, true>>;
TYPED_TEST_SUITE(JoiningOver, JoiningDesigns);

TYPED_TEST(JoiningOver, AFanInWaitsForNobodyWhoStopsInItsSetup) {
    constexpr ring::Design design = TypeParam::value;
    Options queue = small();
    queue.ring.own_transfer_queue = TypeParam::own_transfer_queue;
    auto fan_in = FanIn<Tagged, design>::listen(fresh_address(), {.queue = queue});
    Silent<design> silent{fan_in.address(), ring::Role::producer, queue.ring};
    const Deadline deadline = soon();
    Tagged item;
    while (!silent.has_agreed() && !deadline.expired()) {
        EXPECT_EQ(fan_in.try_dequeue(item), Status::empty);
    }
    // Who had waited for its further words, for 5 s, would have passed it over.
    EXPECT_EQ(fan_in.producers(), 1U);
    auto sending = std::async(std::launch::async, [&] {
        auto producer = Producer<Tagged, design>::connect(fan_in.address(), queue, soon());
        return producer.enqueue(Tagged::make(0, 1), soon()) == Status::ok ? producer.close(soon())
                                                                          : Status::timed_out;
    });
    ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 1));
    while (sending.wait_for(0s) != std::future_status::ready) (void)fan_in.try_dequeue(item);
    EXPECT_EQ(sending.get(), Status::ok);
}

TYPED_TEST(JoiningOver, AReplicatorSendsOnBesideAConsumerThatStopsInItsSetup) {
    constexpr ring::Design design = TypeParam::value;
    Options queue = small();
    queue.ring.own_transfer_queue = TypeParam::own_transfer_queue;
    auto producer = Replicator<Tagged, design>::listen(fresh_address(), {.queue = queue});
    Silent<design> silent{producer.address(), ring::Role::consumer, queue.ring};
    const Deadline deadline = soon();
    while (!silent.has_agreed() && !deadline.expired()) (void)producer.look_around();
    EXPECT_EQ(producer.try_enqueue({}), Status::ok);
    EXPECT_EQ(producer.consumers(), 0U) << "it has not joined";
    auto joining = std::async(std::launch::async, [&] {
        return Consumer<Tagged, design>::connect(producer.address(), queue, soon());
    });
    while (producer.look_around() != 1 && !deadline.expired()) std::this_thread::yield();
    auto consumer = joining.get();
    ASSERT_EQ(producer.enqueue(Tagged::make(0, 1), soon()), Status::ok);
    Tagged item;
    ASSERT_EQ(take(consumer, producer, item), Status::ok);
    EXPECT_EQ(item, Tagged::make(0, 1));
}

// --- levels

TEST(Joining, AProducerWithLevelsMayCloseOneBeforeAllHaveComeIn) {
    auto fan_in =
        FanIn<Tagged>::listen(fresh_address(), {.queue = small(), .levels = 2, .expected = 1});
    Tagged item;
    const auto send_and_close = [&](std::uint32_t level) {
        Options options = small();
        options.ring.label = level;
        options.ring.crew = {.number = 7, .size = 2};
        auto joining = std::async(std::launch::async, [&] {
            return Producer<Tagged>::connect(fan_in.address(), options, soon());
        });
        while (joining.wait_for(0s) != std::future_status::ready) {
            EXPECT_EQ(fan_in.try_dequeue(item), Status::empty);
        }
        auto producer = joining.get();
        ASSERT_EQ(producer.enqueue(Tagged::make(level, 0), soon()), Status::ok);
        ASSERT_EQ(fan_in.dequeue(item, soon()), Status::ok);
        ASSERT_EQ(producer.close(soon()), Status::ok);
    };
    ASSERT_NO_FATAL_FAILURE(send_and_close(0));
    // It leaves before the next queue comes.
    const Deadline deadline = soon();
    while (fan_in.explain().find("the queue of one of them") != std::string::npos) {
        ASSERT_EQ(fan_in.try_dequeue(item), Status::empty);
        ASSERT_FALSE(deadline.expired());
    }
    EXPECT_EQ(fan_in.stats().joined, 0U);
    ASSERT_NO_FATAL_FAILURE(send_and_close(1));
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::closed);
    EXPECT_EQ(fan_in.stats().joined, 1U);
    EXPECT_EQ(fan_in.stats().closed, 1U);
}

TEST(Joining, AProducerWithLevelsIsOneProducer) {
    for (const bool beside : {false, true}) {
        FanInOptions options{.queue = small(), .levels = 3, .expected = 2};
        if (beside) options.acceptor.emplace();
        auto fan_in = FanIn<Tagged>::listen(fresh_address(), options);
        std::vector<std::pair<std::uint64_t, Status>> changes;
        fan_in.on_change([&](const FanInSource& source, Status how) {
            changes.emplace_back(source.number, how);
        });
        std::vector<std::jthread> threads;
        for (std::uint64_t p = 0; p != 2; ++p) {
            threads.emplace_back([&, p, address = fan_in.address()] {
                auto made = PriorityProducer<Tagged>::connect(address, 3, small(), soon());
                for (std::size_t level = 0; level != 3; ++level) {
                    ASSERT_EQ(made.enqueue(level, Tagged::make(3 * p + level, 0), soon()),
                              Status::ok);
                }
                ASSERT_EQ(made.close(soon()), Status::ok);
            });
        }
        InOrder seen{6};
        std::uint64_t of_first = 0;
        Tagged item;
        Status status;
        while ((status = fan_in.dequeue(item, soon())) == Status::ok) {
            seen.see(item);
            EXPECT_EQ(fan_in.last().label, item.producer % 3);
            if (fan_in.last().number == 1) of_first = fan_in.last().items;
        }
        EXPECT_EQ(status, Status::closed);
        EXPECT_EQ(seen.total(), 6U);
        EXPECT_EQ(of_first, 3U) << "of all its levels";
        EXPECT_EQ(fan_in.stats().joined, 2U);
        EXPECT_EQ(fan_in.stats().closed, 2U);
        using Change = std::pair<std::uint64_t, Status>;
        EXPECT_THAT(changes, testing::UnorderedElementsAre(
                                 Change{1, Status::ok}, Change{2, Status::ok},
                                 Change{1, Status::closed}, Change{2, Status::closed}));
    }
}

TEST(Joining, AProducerThatLosesALevelIsLost) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address(), {.levels = 2, .expected = 1});
    auto connecting = std::async(std::launch::async, [&] {
        return PriorityProducer<Tagged>::connect(fan_in.address(), 2, {}, soon());
    });
    Tagged item;
    while (fan_in.producers() != 1) (void)fan_in.try_dequeue(item);
    std::optional<PriorityProducer<Tagged>> producer{connecting.get()};
    ASSERT_EQ(producer->level(0).close(soon()), Status::ok);
    producer.reset();
    EXPECT_EQ(fan_in.dequeue(item, soon()), Status::closed);
    EXPECT_EQ(fan_in.stats().lost, 1U);
    EXPECT_EQ(fan_in.stats().closed, 0U);
}

// --- the dead

/// A structure that connects to two consumers, and these.
template <ring::Design D = ring::design_2, class Connect>
auto with_two_consumers(const Options& options, Connect&& connect) {
    std::vector<Listener> listeners;
    std::vector<connect::Address> addresses;
    for (int i = 0; i != 2; ++i) {
        listeners.push_back(Listener::listen(fresh_address(), options));
        addresses.push_back(listeners.back().address());
    }
    auto connecting = std::async(std::launch::async, [&] { return connect(addresses); });
    std::vector<Consumer<Tagged, D>> consumers;
    for (Listener& one : listeners) consumers.push_back(Consumer<Tagged, D>::accept(one, soon()));
    return std::pair{connecting.get(), std::move(consumers)};
}
auto replicator_of_two(std::uint32_t quorum) {
    return with_two_consumers(small(1024), [quorum](const auto& addresses) {
        return Replicator<Tagged>::connect(addresses, {.queue = small(1024), .quorum = quorum},
                                           soon());
    });
}

TEST(LookingAfter, AReplicatorCountsNobodyWhoHasDied) {
    auto [producer, consumers] = replicator_of_two(2);
    ASSERT_EQ(producer.enqueue({}, soon()), Status::ok);
    ASSERT_EQ(producer.flush(soon()), Status::ok);
    consumers.pop_back();
    let_a_look_become_due();
    EXPECT_EQ(producer.try_enqueue({}), Status::peer_lost) << "there is room for a thousand more";
    EXPECT_EQ(producer.consumers(), 1U);
    EXPECT_EQ(producer.stats().items, 1U);
    consumers.pop_back();
    EXPECT_EQ(producer.look_around(), 0U) << "at once";
}

TEST(LookingAfter, AReplicatorsFlushCountsThoseWhoLive) {
    auto [producer, consumers] = replicator_of_two(2);
    ASSERT_EQ(producer.enqueue({}, soon()), Status::ok);
    ASSERT_EQ(producer.flush(soon()), Status::ok);
    consumers.pop_back();
    EXPECT_EQ(producer.flush(soon()), Status::peer_lost) << "though nothing was on its way";
}

TEST(LookingAfter, AReplicatorsFlushFindsThemAliveThoughTheMoverIsAtWork) {
    static constexpr ring::Design moved =
        with(ring::design_2, ring::Batching::none, ring::Mover::active);
    auto [producer, consumers] = with_two_consumers<moved>(small(1024), [](const auto& addresses) {
        return Replicator<Tagged, moved>::connect(addresses, {.queue = small(1024), .quorum = 2},
                                                  soon());
    });
    ASSERT_EQ(producer.enqueue({}, soon()), Status::ok);
    ASSERT_EQ(producer.flush(soon()), Status::ok);
    std::promise<void> is_at_work;
    std::promise<void> may_end;
    std::jthread for_others{[&] {
        const auto work = ring::detail::DataMover::of_this_process()->pause();
        is_at_work.set_value();
        may_end.get_future().wait();
    }};
    is_at_work.get_future().wait();
    consumers.pop_back();
    EXPECT_EQ(producer.flush(Deadline::after(10ms)), Status::timed_out) << "nobody has looked";
    may_end.set_value();
    EXPECT_EQ(producer.flush(soon()), Status::peer_lost);
}

TEST(LookingAfter, AFanOutTellsHowManyAreThere) {
    auto [out, consumers] = with_two_consumers(small(), [](const auto& addresses) {
        return FanOut<Tagged>::connect(addresses, {.queue = small()}, soon());
    });
    EXPECT_EQ(out.look_around(), 2U);
    consumers.pop_back();
    EXPECT_EQ(out.look_around(), 1U);
    consumers.pop_back();
    EXPECT_EQ(out.look_around(), 0U);
    EXPECT_EQ(out.try_enqueue({}), Status::peer_lost);
}

TEST(LookingAfter, AFanInTellsOfTheDeadWithoutACallThatTakes) {
    auto fan_in = FanIn<Tagged>::listen(fresh_address());
    auto connecting = std::async(std::launch::async, [&] {
        return Producer<Tagged>::connect(fan_in.address(), {}, soon());
    });
    const Deadline deadline = soon();
    while (fan_in.look_around() != 1 && !deadline.expired()) std::this_thread::yield();
    std::optional<Producer<Tagged>> producer{connecting.get()};
    producer.reset();
    while (fan_in.look_around() != 0 && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(fan_in.stats().lost, 1U);
}

}  // namespace
}  // namespace millrace::flow
