// Flow queues driven by coroutines in one thread: both ends, in small rings, with and without an
// end in sight.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/coroutine.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::Task;
using test::Ends;
using test::unique_address;
using test::with_endpoint;

constexpr std::uint64_t count = 2000;

Deadline soon() { return Deadline::after(40s); }

template <class Queue>
Task<> produce(Queue& producer) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const Status status = co_await enqueue(producer, i, soon());
        EXPECT_EQ(status, Status::ok) << i;
        if (status != Status::ok) co_return;
    }
    EXPECT_EQ(co_await flush(producer, soon()), Status::ok);
    EXPECT_EQ(co_await close(producer, soon()), Status::ok);
}

template <class Queue>
Task<> consume(Queue& consumer, connect::Hub& hub) {
    std::uint64_t next = 0;
    Status status = Status::ok;
    for (std::uint64_t item = 0;;) {
        status = co_await dequeue(consumer, item, soon());
        if (status != Status::ok) break;
        EXPECT_EQ(item, next);
        ++next;
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(next, count);
    hub.stop();
}

template <class T>
class FlowCoroutines : public testing::Test {};

template <ring::Design D>
struct AwaitedPoint {
    static constexpr ring::Design design = D;
};
using AwaitedPoints = testing::Types<
    AwaitedPoint<ring::design_1>, AwaitedPoint<ring::design_2>,
    AwaitedPoint<ring::Design{ring::DataFlow::push2, ring::TransferNotification::event,
                              ring::SpaceNotification::push2}>,
    AwaitedPoint<ring::Design{ring::DataFlow::pull, ring::TransferNotification::push,
                              ring::SpaceNotification::push}>>;
TYPED_TEST_SUITE(FlowCoroutines, AwaitedPoints);

TYPED_TEST(FlowCoroutines, MoveItemsThroughASmallRingInOneThread) {
    Ends<std::uint64_t, TypeParam::design> ends{
        Options{.ring = {.capacity = 8, .receive_pool = 8}}};
    connect::Hub hub;
    base::spawn(hub, produce(ends.producer()));
    base::spawn(hub, consume(ends.consumer(), hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(FlowCoroutine, AnswersAtTheDeadlineAndWhenItIsCancelled) {
    Ends<std::uint64_t, ring::design_2> ends{Options{.ring = {.capacity = 4}}};
    connect::Hub hub;
    base::spawn(hub, [](auto& both, connect::Hub& in) -> Task<> {
        std::uint64_t item = 0;
        EXPECT_EQ(co_await dequeue(both.consumer(), item, Deadline::after(5ms)), Status::timed_out);
        base::Cancellation cancellation;
        cancellation.request();
        EXPECT_EQ(
            co_await dequeue(both.consumer(), item, Deadline::never().cancelled_by(cancellation)),
            Status::cancelled);
        Status status = Status::ok;
        for (std::uint64_t i = 0; status == Status::ok && i < 100; ++i) {
            status = co_await enqueue(both.producer(), i, Deadline::after(5ms));
        }
        EXPECT_EQ(status, Status::timed_out);
        // What is there is taken without a wait, also when the time is over.
        EXPECT_EQ(co_await dequeue(both.consumer(), item, Deadline::now()), Status::ok);
        EXPECT_EQ(item, 0U);
        const std::uint64_t* peeked = nullptr;
        EXPECT_EQ(co_await peek(both.consumer(), peeked, Deadline::now()), Status::ok);
        EXPECT_EQ(*peeked, 1U);
        both.consumer().release();
        in.stop();
    }(ends, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(FlowCoroutine, TakenBackLeavesTheEndAsItWas) {
    Ends<std::uint64_t, ring::design_2> ends{Options{.ring = {.capacity = 4}}};
    connect::Hub hub;
    std::uint64_t item = 0;
    const auto id = base::spawn(hub, [](auto& both, std::uint64_t& into) -> Task<> {
        (void)co_await dequeue(both.consumer(), into, soon());
        ADD_FAILURE() << "it was taken back";
    }(ends, item));
    while (hub.turn() != 0) {
    }
    EXPECT_TRUE(hub.remove(id));
    EXPECT_EQ(hub.size(), 0U);
    ASSERT_EQ(ends.producer().enqueue(7, soon()), Status::ok);
    EXPECT_EQ(ends.consumer().dequeue(item, soon()), Status::ok);
    EXPECT_EQ(item, 7U);
}

TEST(FlowCoroutine, TellsThatTheOtherEndHasGone) {
    Ends<std::uint64_t, ring::design_2> ends{Options{.ring = {.capacity = 4}}};
    connect::Hub hub;
    base::spawn(hub, [](auto& both, connect::Hub& in) -> Task<> {
        std::uint64_t item = 0;
        EXPECT_EQ(co_await dequeue(both.consumer(), item, soon()), Status::peer_lost);
        in.stop();
    }(ends, hub));
    while (hub.turn() != 0) {
    }
    ends.drop_producer();
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(FlowCoroutine, AcceptsEndsOfFramesAndOfAnyDesign) {
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 4096}}));
    connect::Hub hub;
    std::thread connecting;
    std::vector<std::byte> got;
    base::spawn(
        hub,
        [](Listener& from, std::thread& other, std::vector<std::byte>& into,
           connect::Hub& in) -> Task<> {
            const auto nobody = co_await accept<Consumer<Bytes>>(from, Deadline::after(2ms));
            EXPECT_EQ(nobody.status, Status::timed_out);
            other = std::thread{[&from] {
                auto producer = Producer<Bytes>::connect(from.address(), with_endpoint({}), soon());
                const std::vector<std::byte> sent(10, std::byte{5});
                EXPECT_EQ(producer.enqueue(sent, soon()), Status::ok);
                EXPECT_EQ(producer.close(soon()), Status::ok);
            }};
            auto accepted = co_await accept<AnyConsumer<Bytes>>(ring::design_2, from, soon());
            EXPECT_EQ(accepted.status, Status::ok);
            if (accepted.end.has_value()) {
                EXPECT_EQ(co_await dequeue(*accepted.end, into, soon()), Status::ok);
                std::vector<std::byte> none;
                EXPECT_EQ(co_await dequeue(*accepted.end, none, soon()), Status::closed);
            }
            in.stop();
        }(listener, connecting, got, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
    connecting.join();
    EXPECT_EQ(got, std::vector<std::byte>(10, std::byte{5}));
}

}  // namespace
}  // namespace millrace::flow
