// How flow queues are made and refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "flow/ends.hpp"
#include "millrace/base/error.hpp"
#include "millrace/ring/device_limits.hpp"
#include "support/child_process.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using test::Ends;
using test::unique_address;
using test::with_endpoint;

struct SetUpItem {
    std::uint64_t number[8];
};
struct Other {
    std::uint32_t half[5];
};

/// What the connecting end is told when it does not fit. The listening end must log the same, and
/// say it when its own time is over.
template <class Connecting, class Listening>
std::string refusal_of(const Options& connecting, const Options& listening) {
    Listener listener = Listener::listen(unique_address(), with_endpoint(listening));
    std::string told;
    std::thread other{[&] {
        try {
            (void)Connecting::connect(listener.address(), with_endpoint(connecting),
                                      Deadline::after(40s));
            ADD_FAILURE() << "connected";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
            told = error.what();
        }
    }};
    // The first attempt may be over before the other end comes.
    std::string text;
    for (int i = 0; i < 100 && text.find("did not fit") == std::string::npos; ++i) {
        try {
            (void)Listening::accept(listener, Deadline::after(200ms));
            ADD_FAILURE() << "accepted";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::timed_out) << error.what();
            text = error.what();
        }
    }
    other.join();
    EXPECT_NE(text.find("one peer connected that did not fit"), std::string::npos) << text;
    EXPECT_EQ(text.find("check that the peer connects to this address"), std::string::npos)
        << "it did: " << text;
    return told;
}

/// What a listener's own options are refused with.
template <class Listening>
std::string own_refusal_of(const Options& options) {
    try {
        (void)Listening::listen(unique_address(), with_endpoint(options), Deadline::after(40s));
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << error.what();
        return error.what();
    }
    return "listened";
}

TEST(FlowQueueSetup, RefusesTwoConsumersByName) {
    const std::string text = refusal_of<Consumer<SetUpItem>, Consumer<SetUpItem>>({}, {});
    EXPECT_NE(text.find("both ends are a consumer"), std::string::npos) << text;
}

TEST(FlowQueueSetup, RefusesTwoProducersByName) {
    const std::string text = refusal_of<Producer<SetUpItem>, Producer<SetUpItem>>({}, {});
    EXPECT_NE(text.find("both ends are a producer"), std::string::npos) << text;
}

TEST(FlowQueueSetup, NamesBothItemTypesWhenTheyDiffer) {
    const std::string text = refusal_of<Producer<SetUpItem>, Consumer<Other>>({}, {});
    EXPECT_NE(text.find("64 bytes aligned to 8"), std::string::npos) << text;
    EXPECT_NE(text.find("20 bytes aligned to 4"), std::string::npos) << text;
}

TEST(FlowQueueSetup, NamesBothItemTypesWhenOneIsFramed) {
    const std::string text = refusal_of<Producer<Bytes>, Consumer<SetUpItem>>({}, {});
    EXPECT_NE(text.find("framed bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("64 bytes aligned to 8"), std::string::npos) << text;
}

TEST(FlowQueueSetup, NamesBothDesignsWhenTheyDiffer) {
    const std::string text =
        refusal_of<Producer<SetUpItem, ring::design_1>, Consumer<SetUpItem, ring::design_2>>({},
                                                                                             {});
    EXPECT_NE(text.find("push1/watermark/pull"), std::string::npos) << text;
    EXPECT_NE(text.find("push1/watermark/push"), std::string::npos) << text;
}

TEST(FlowQueueSetup, NamesBothWaysOfBatchingWhenTheyDiffer) {
    constexpr ring::Design fixed = with(ring::design_2, ring::Batching::fixed);
    const std::string text = refusal_of<Producer<SetUpItem, fixed>, Consumer<SetUpItem>>({}, {});
    EXPECT_NE(text.find("runs push1/watermark/push+fixed,"), std::string::npos) << text;
    EXPECT_NE(text.find("runs push1/watermark/push;"), std::string::npos) << text;
}

TEST(FlowQueueSetup, RefusesBatchesThatTheRingCannotHold) {
    constexpr ring::Design fixed = with(ring::design_2, ring::Batching::fixed);
    const Options options{.ring = {.capacity = 8, .batch = 9}};
    const std::string text = own_refusal_of<Producer<SetUpItem, fixed>>(options);
    EXPECT_NE(text.find("batches of 9 items"), std::string::npos) << text;
    EXPECT_NE(text.find("the ring holds 8"), std::string::npos) << text;
    // Where the other end's capacity decides.
    const std::string both = refusal_of<Producer<SetUpItem, fixed>, Consumer<SetUpItem, fixed>>(
        {.ring = {.batch = 9}}, {.ring = {.capacity = 8}});
    EXPECT_NE(both.find("batches of 9 items"), std::string::npos) << both;
}

TEST(FlowQueueSetup, RefusesABatchForADesignWithoutBatching) {
    const std::string text = own_refusal_of<Producer<SetUpItem>>(Options{.ring = {.batch = 4}});
    EXPECT_NE(text.find("sends each item at once"), std::string::npos) << text;
}

TEST(FlowQueueSetup, RefusesACapacityBeyondTheLimit) {
    const Options huge{.ring = {.capacity = std::uint64_t{1} << 40}};
    const std::string text = own_refusal_of<Consumer<SetUpItem>>(huge);
    EXPECT_NE(text.find("capacity must be 1 to"), std::string::npos) << text;
}

TEST(FlowQueueSetup, RefusesAByteRingThatHoldsNoFrame) {
    const Options tiny{.ring = {.capacity = 40}};
    const std::string text = own_refusal_of<Consumer<Bytes>>(tiny);
    EXPECT_NE(text.find("capacity must be 48 to"), std::string::npos) << text;
}

TEST(FlowQueueSetup, RefusesACapacityOfZeroAtEitherEnd) {
    const Options none{.ring = {.capacity = 0}};
    for (const std::string& text :
         {own_refusal_of<Consumer<SetUpItem>>(none), own_refusal_of<Producer<SetUpItem>>(none)}) {
        EXPECT_NE(text.find("a ring of 0 items"), std::string::npos) << text;
        EXPECT_NE(text.find("capacity must be 1 to"), std::string::npos) << text;
    }
    const std::string bytes = own_refusal_of<Consumer<Bytes>>(none);
    EXPECT_NE(bytes.find("a ring of 0 bytes"), std::string::npos) << bytes;
    // A connecting end says so before it looks for a listener.
    try {
        (void)Producer<SetUpItem>::connect(unique_address(), with_endpoint(none),
                                           Deadline::after(40s));
        ADD_FAILURE() << "connected";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << error.what();
    }
}

TEST(FlowQueueSetup, AcceptsTheNextPeerAfterOneThatDoesNotFit) {
    const std::string address = unique_address();
    std::optional<Consumer<SetUpItem>> consumer;
    std::thread listening{[&] {
        consumer.emplace(
            Consumer<SetUpItem>::listen(address, with_endpoint({}), Deadline::after(40s)));
    }};
    EXPECT_THROW((void)Producer<Other>::connect(address, with_endpoint({}), Deadline::after(40s)),
                 base::Error);
    auto producer = Producer<SetUpItem>::connect(address, with_endpoint({}), Deadline::after(40s));
    listening.join();
    ASSERT_EQ(producer.try_enqueue(SetUpItem{{1, 2, 3, 4, 5, 6, 7, 8}}), Status::ok);
    SetUpItem item{};
    ASSERT_EQ(consumer->dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(item.number[0], 1U);
}

TEST(FlowQueueSetup, LosesNoPeerToAcceptsThatDoNotWait) {
    constexpr std::uint64_t count = 12;
    Listener listener = Listener::listen(unique_address(), with_endpoint({}));
    std::vector<Producer<SetUpItem>> producers;
    std::thread other{[&] {
        for (std::uint64_t n = 0; n < count; ++n) {
            producers.push_back(Producer<SetUpItem>::connect(listener.address(), with_endpoint({}),
                                                             Deadline::after(40s)));
            EXPECT_EQ(producers.back().enqueue(SetUpItem{{n}}, Deadline::after(40s)),
                      base::Status::ok);
        }
    }};
    std::vector<Consumer<SetUpItem>> consumers;
    base::NapParker naps;
    (void)base::wait_until(
        [&] {
            try {
                consumers.push_back(Consumer<SetUpItem>::accept(listener, Deadline::now()));
            } catch (const base::Error& error) {
                EXPECT_EQ(error.code(), base::ErrorCode::timed_out) << error.what();
            }
            return consumers.size() == count;
        },
        Deadline::after(40s), base::WaitPolicy::blocking(), naps);
    other.join();
    ASSERT_EQ(consumers.size(), count);
    for (std::uint64_t n = 0; n < count; ++n) {
        SetUpItem item{};
        EXPECT_EQ(consumers[n].dequeue(item, Deadline::after(40s)), base::Status::ok);
        EXPECT_EQ(item.number[0], n);
    }
}

TEST(FlowQueueSetup, TakesTheSmallerOfTwoCapacities) {
    Ends<SetUpItem, ring::design_2> ends{Options{.ring = {.capacity = 10}},
                                         Options{.ring = {.capacity = 6}}};
    EXPECT_EQ(ends.producer().capacity(), 6U);
    EXPECT_EQ(ends.consumer().capacity(), 6U);
}

TEST(FlowQueueSetup, TakesTheOtherEndsCapacityWhenItHasNone) {
    Ends<SetUpItem, ring::design_1> ends{Options{}, Options{.ring = {.capacity = 5}}};
    EXPECT_EQ(ends.producer().capacity(), 5U);
    EXPECT_EQ(ends.consumer().capacity(), 5U);
}

TEST(FlowQueueSetup, LetsTheProducerListenToo) {
    const std::string address = unique_address();
    std::optional<Producer<SetUpItem>> producer;
    std::thread other{[&] {
        producer.emplace(
            Producer<SetUpItem>::listen(address, with_endpoint({}), Deadline::after(40s)));
    }};
    auto consumer = Consumer<SetUpItem>::connect(address, with_endpoint({}), Deadline::after(40s));
    other.join();
    ASSERT_EQ(producer->try_enqueue(SetUpItem{{1, 2, 3, 4, 5, 6, 7, 8}}), Status::ok);
    SetUpItem item{};
    ASSERT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(item.number[7], 8U);
}

// Listens on a port that the system chooses, and takes one item.
MILLRACE_CHILD(flow_listens_on_any_port) {
    dup2(STDOUT_FILENO, STDERR_FILENO);  // where the log goes
    auto consumer = Consumer<std::uint64_t>::listen("127.0.0.1:0", {}, Deadline::after(40s));
    std::uint64_t item = 0;
    if (consumer.dequeue(item, Deadline::after(40s)) != Status::ok) return 2;
    return item == 7 ? 0 : 3;
}

TEST(FlowQueueSetup, TellsThePortThatTheSystemChoseForWhoeverWaitsThere) {
    auto child = millrace::test::ChildProcess::start("flow_listens_on_any_port");
    const std::string line = child.read_line().value_or("");
    const std::string before = "listening on ";
    const auto at = line.find(before);
    ASSERT_NE(at, line.npos) << line;
    const std::size_t begin = at + before.size();
    auto producer = Producer<std::uint64_t>::connect(
        line.substr(begin, line.find(',', begin) - begin), {}, Deadline::after(40s));
    EXPECT_EQ(producer.enqueue(7, Deadline::after(40s)), Status::ok);
    (void)producer.flush(Deadline::after(40s));  // it ends when it has the item
    EXPECT_TRUE(child.wait().success());
}

TEST(FlowQueueSetup, LeavesNobodyListeningBehindTheFirstPeer) {
    const std::string address = unique_address();
    std::optional<Producer<SetUpItem>> producer;
    std::thread other{[&] {
        producer.emplace(
            Producer<SetUpItem>::listen(address, with_endpoint({}), Deadline::after(40s)));
    }};
    auto first = Consumer<SetUpItem>::connect(address, with_endpoint({}), Deadline::after(40s));
    other.join();
    try {
        (void)Consumer<SetUpItem>::connect(address, with_endpoint({}), Deadline::after(200ms));
        ADD_FAILURE() << "a second consumer was connected";
    } catch (const base::Error& error) {
        EXPECT_NE(std::string{error.what()}.find(address), std::string::npos) << error.what();
        EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
        EXPECT_NE(error.remedy().find("the queue has its other end already"), std::string::npos)
            << error.what();
    }
    ASSERT_EQ(producer->try_enqueue(SetUpItem{}), Status::ok);
    SetUpItem item{};
    EXPECT_EQ(first.dequeue(item, Deadline::after(40s)), Status::ok);
}

TEST(FlowQueueSetup, ExplainsWhatWasAgreed) {
    Ends<SetUpItem, ring::design_1> ends{Options{.ring = {.capacity = 5}}};
    const std::string text = ends.consumer().explain();
    EXPECT_NE(text.find("design 1 (push1/watermark/pull)"), std::string::npos) << text;
    EXPECT_NE(text.find("5 items"), std::string::npos) << text;
}

// What it predicts of wake-ups is what is counted.
template <ring::Design D>
void explains_its_wake_ups(bool consumer_is_rung) {
    Ends<std::uint64_t, D> ends{
        Options{.ring = {.capacity = 64}, .wait = base::WaitPolicy::blocking()}};
    for (ProducerStats at{}; at.items < 32; at = ends.producer().stats()) {
        ASSERT_EQ(ends.producer().try_enqueue(at.items), Status::ok);
        EXPECT_EQ(at.ring.events, 0U) << "nobody sleeps";
    }
    std::uint64_t item = 0;
    for (std::uint64_t i = 0; i < 32; ++i) {
        ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
    }
    for (int sleep = 1; sleep <= 5; ++sleep) {
        std::thread asleep{
            [&] { EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok); }};
        std::this_thread::sleep_for(5ms);
        EXPECT_EQ(ends.producer().enqueue(item, Deadline::after(40s)), Status::ok);
        EXPECT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
        asleep.join();
        EXPECT_LE(ends.producer().stats().ring.events, static_cast<std::uint64_t>(sleep));
    }
    const std::string text = ends.consumer().explain();
    EXPECT_NE(text.find("wake-ups: 0 while both ends are awake"), std::string::npos) << text;
    EXPECT_EQ(text.find("a consumer asleep: 1 event") != std::string::npos, consumer_is_rung)
        << text;
    if (!consumer_is_rung) {
        EXPECT_EQ(ends.producer().stats().ring.events, 0U);
    }
}
TEST(FlowQueueSetup, ExplainsItsWakeUps) {
    explains_its_wake_ups<ring::design_2>(true);
    explains_its_wake_ups<ring::Design{ring::DataFlow::push2, ring::TransferNotification::event,
                                       ring::SpaceNotification::push}>(false);
}

TEST(FlowQueueSetup, RefusesAQueuePairForANotificationThatIsNotPushed) {
    Options options;
    options.ring.own_transfer_queue = true;
    const std::string text = own_refusal_of<Consumer<SetUpItem>>(options);
    EXPECT_NE(text.find("own_transfer_queue"), std::string::npos) << text;
    EXPECT_NE(text.find("choose a design with transfer push"), std::string::npos) << text;
}

constexpr ring::Design pushed{ring::DataFlow::push1, ring::TransferNotification::push,
                              ring::SpaceNotification::push};

TEST(FlowQueueSetup, GivesTheCounterAQueuePairOfItsOwnIfEitherEndAsks) {
    const Options posts{.ring = {.capacity = 8, .carrier = ring::Carrier::post}};
    Options asks = posts;
    asks.ring.own_transfer_queue = true;
    const char* const own = "on a queue pair of its own";
    for (const bool consumer_asks : {false, true}) {
        Ends<SetUpItem, pushed> ends{consumer_asks ? posts : asks, consumer_asks ? asks : posts};
        EXPECT_NE(ends.producer().explain().find(own), std::string::npos);
        EXPECT_NE(ends.consumer().explain().find(own), std::string::npos);
    }
    Ends<SetUpItem, pushed> shared{posts};
    EXPECT_EQ(shared.producer().explain().find(own), std::string::npos);
}

TEST(FlowQueueSetup, RefusesAPoolBeyondTheRingOrTheDevice) {
    using Pooled =
        Consumer<SetUpItem, ring::Design{ring::DataFlow::push2, ring::TransferNotification::event,
                                         ring::SpaceNotification::push}>;
    using Pooling =
        Producer<SetUpItem, ring::Design{ring::DataFlow::push2, ring::TransferNotification::event,
                                         ring::SpaceNotification::push}>;
    const std::string beyond_the_ring =
        refusal_of<Pooling, Pooled>({.ring = {.capacity = 100, .receive_pool = 101}},
                                    {.ring = {.capacity = 100, .receive_pool = 101}});
    EXPECT_NE(beyond_the_ring.find("101 receives, the ring room for 100"), std::string::npos)
        << beyond_the_ring;
    const std::string beyond_all =
        own_refusal_of<Pooled>(Options{.ring = {.receive_pool = 16'385}});
    EXPECT_NE(beyond_all.find("1 to 16384 receives"), std::string::npos) << beyond_all;
    const auto limit =
        static_cast<std::uint32_t>(with_endpoint({}).endpoint->context().attributes().max_qp_wr);
    const std::string beyond_device =
        own_refusal_of<Pooled>(Options{.ring = {.receive_pool = limit + 1}});
    EXPECT_NE(beyond_device.find(" has at most " + std::to_string(limit)), std::string::npos)
        << beyond_device;
    // A device that allows less than a ring may have.
    ring::check_pool(1024, 1024, "mlx_test");
    try {
        ring::check_pool(1025, 1024, "mlx_test");
        ADD_FAILURE() << "accepted";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_EQ(error.object(), "a pool of 1025 receives on mlx_test");
        EXPECT_NE(error.cause().find("at most 1024"), std::string::npos) << error.what();
    }
}

TEST(FlowQueueSetup, TakesTheLargestPool) {
    constexpr ring::Design design{ring::DataFlow::push2, ring::TransferNotification::event,
                                  ring::SpaceNotification::push};
    constexpr std::uint32_t most = ring::RingOptions::max_pool;
    Ends<SetUpItem, design> ends{Options{.ring = {.capacity = most, .receive_pool = most}}};
    for (std::uint64_t i = 0; i < 100; ++i) {
        ASSERT_EQ(ends.producer().try_enqueue(SetUpItem{{i}}), Status::ok);
    }
    for (std::uint64_t i = 0; i < 100; ++i) {
        SetUpItem item;
        ASSERT_EQ(ends.take(item), Status::ok);
        EXPECT_EQ(item.number[0], i);
    }
}

}  // namespace
}  // namespace millrace::flow
