// What each point of the design space posts, by side and opcode, against the table of
// docs/design/flow-points.md: a point that secretly runs as another one fails.
//
// The posts are counted below the library, where programs hand them to the device: in the table of
// operations of each end's device context.
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "flow/conformance.hpp"
#include "support/counted_posts.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::CountedEndpoint;
using millrace::test::Posts;

CountedEndpoint& producers() {
    static CountedEndpoint endpoint;
    return endpoint;
}
CountedEndpoint& consumers() {
    static CountedEndpoint endpoint;
    return endpoint;
}

struct Range {
    std::uint64_t least = 0;
    std::uint64_t most = 0;
    Range operator+(Range other) const { return {least + other.least, most + other.most}; }
};
void expect(std::uint64_t count, Range range, const char* what) {
    EXPECT_GE(count, range.least) << what;
    EXPECT_LE(count, range.most) << what;
}

class RequestsOf : public EveryDesign {
  protected:
    static constexpr std::uint64_t items = 1000;
    /// Requests of the space flow of push data: a few for each lap of the ring.
    static constexpr std::uint64_t now_and_then = items / 2;

    [[nodiscard]] static bool completes_at_once() {
        return test::completes_at_once(*producers().endpoint);
    }
    /// What the passive consumer of an empty queue still owes goes out in its calls.
    void let_consumer_return_space() {
        const Deadline pause = Deadline::after(2ms);
        for (int calls = 0; calls < 100 || !pause.expired(); ++calls) {
            detail::Taken<Numbered> item;
            ASSERT_EQ(ends_->consumer->try_dequeue(item), Status::empty);
        }
    }
    void SetUp() override { open(GetParam(), {}); }
    void open(ring::Design design, std::optional<std::uint32_t> batch, bool own_queue = false) {
        Options producer{.ring = {.capacity = 64, .batch = batch, .carrier = ring::Carrier::post}};
        producer.ring.own_transfer_queue = own_queue;
        Options consumer{.ring = {.capacity = 64, .batch = batch, .carrier = ring::Carrier::post}};
        producer.endpoint = producers().endpoint;
        consumer.endpoint = consumers().endpoint;
        ends_.reset();
        ends_.emplace(design, producer, consumer);
        ASSERT_TRUE(ends_->producer && ends_->consumer);
        producers().posts.clear();
        consumers().posts.clear();
    }
    std::optional<AnyEnds<Numbered>> ends_;
};
INSTANTIATE_TEST_SUITE_P(Points, RequestsOf, testing::ValuesIn(every_design()),
                         [](const auto& point) { return name_of_point(point.param); });

TEST_P(RequestsOf, APointAreThoseOfTheTable) {
    using ring::DataFlow;
    using ring::SpaceNotification;
    using ring::TransferNotification;
    const ring::Design design = GetParam();
    const bool in_order =
        ends_->producer->explain().find("WRITEs by the producer, or 2") == std::string::npos;
    for (std::uint64_t i = 0; i < items; ++i) {
        ASSERT_EQ(ends_->producer->try_enqueue(Kind<Numbered>::make(i)), Status::ok);
        ASSERT_EQ(ends_->take(), i);
    }
    const Posts& at_producer = producers().posts;
    const Posts& at_consumer = consumers().posts;
    const bool pushes = design.data == DataFlow::push1;
    const bool immediate = design.transfer == TransferNotification::immediate;
    const bool pushed_counter = design.transfer == TransferNotification::push;
    const Range none{};
    const Range some{1, now_and_then};

    // Empty WRITEs for completions that are missing are no part of any flow.
    const std::uint64_t settling = ends_->producer->stats().ring.settling_writes;
    EXPECT_LE(settling, items);
    expect(at_producer.write - settling,
           (pushes && !immediate ? Range{items, in_order ? items : 2 * items} : none) +
               (pushed_counter ? Range{items / 2, items} : none),
           "WRITEs of the producer");
    expect(at_producer.write_with_immediate, immediate ? Range{items, items} : none,
           "WRITEs with immediate of the producer");
    expect(at_producer.send, design.data == DataFlow::push2 ? Range{items, items} : none,
           "SENDs of the producer");
    expect(at_producer.read, design.space == SpaceNotification::pull ? some : none,
           "READs of the producer");
    // With pull data, space goes back with every run; else at parts of a lap, and when the consumer
    // goes idle, which it does between any two items of a slow device.
    const Range credits{1, items};
    expect(at_producer.receive, design.space == SpaceNotification::push2 ? credits : none,
           "receives of the producer");
    expect(at_consumer.write, design.space == SpaceNotification::push ? credits : none,
           "WRITEs of the consumer");
    expect(at_consumer.write_with_immediate, none, "WRITEs with immediate of the consumer");
    expect(at_consumer.send, design.space == SpaceNotification::push2 ? credits : none,
           "SENDs of the consumer");
    const bool asks =
        design.transfer == TransferNotification::pull ||
        (design.data == DataFlow::pull && design.transfer == TransferNotification::watermark);
    const Range taken{0, design.space == SpaceNotification::push2 ? now_and_then : 0};
    expect(at_consumer.read,
           (design.data == DataFlow::pull ? Range{items, items} : none) +
               (asks ? Range{items / 2, 4 * items} : none) + taken,
           "READs of the consumer");
    expect(at_consumer.receive,
           design.data == DataFlow::push2 || immediate ? Range{items - 64, items} : none,
           "receives of the consumer");
}

// Transfer push on a queue pair of its own: there are the counters, and nothing else is.
TEST_P(RequestsOf, ACounterWithAQueuePairOfItsOwnGoThere) {
    using ring::DataFlow;
    const ring::Design design = GetParam();
    if (design.transfer != ring::TransferNotification::push) return;
    open(design, {}, true);
    for (std::uint64_t i = 0; i < items; ++i) {
        ASSERT_EQ(ends_->producer->try_enqueue(Kind<Numbered>::make(i)), Status::ok);
        ASSERT_EQ(ends_->take(), i);
    }
    const ring::SenderCounts counts = ends_->producer->stats().ring;
    Posts& posts = producers().posts;
    const std::lock_guard lock{posts.mutex};
    std::uint64_t counters = 0;
    std::uint64_t writes = 0;
    std::uint64_t sends = 0;
    for (const auto& [queue_pair, opcodes] : posts.by_queue_pair) {
        const auto of = [&opcodes = opcodes](ibv_wr_opcode opcode) {
            const auto found = opcodes.find(opcode);
            return found == opcodes.end() ? 0 : found->second;
        };
        // Two at most, and the one with the counters has nothing but WRITEs.
        const bool own =
            opcodes.size() == 1 && counters == 0 && of(IBV_WR_RDMA_WRITE) == counts.transfer_writes;
        (own ? counters : writes) += of(IBV_WR_RDMA_WRITE);
        sends += of(IBV_WR_SEND);
    }
    EXPECT_EQ(counters, counts.transfer_writes);
    expect(counters, {items / 2, items}, "WRITEs of the counter");
    EXPECT_EQ(counts.data_writes, design.data == DataFlow::pull ? 0 : items);
    // Each of the data leaves a completion, so none is missing.
    EXPECT_EQ(counts.settling_writes, 0U);
    const bool writes_data = design.data == DataFlow::push1;
    if (completes_at_once()) {
        EXPECT_EQ(writes, writes_data ? items : 0);
    } else {  // who is about to sleep says so by a WRITE
        EXPECT_GE(writes, writes_data ? items : 0);
    }
    EXPECT_EQ(sends, design.data == DataFlow::push2 ? items : 0);
}

// Saturated: so many items at once, each time. With batches of that size they are one transfer.
TEST_P(RequestsOf, ABatchAreThoseOfOneItem) {
    using ring::DataFlow;
    using ring::SpaceNotification;
    using ring::TransferNotification;
    const ring::Design design = GetParam();
    constexpr std::uint64_t size = 16;
    constexpr std::uint64_t batches = 60;
    open(with(design, ring::Batching::fixed), size);
    const bool in_order =
        ends_->producer->explain().find("WRITEs by the producer, or 2") == std::string::npos;
    for (std::uint64_t batch = 0; batch < batches; ++batch) {
        const std::uint64_t before = producers().posts.all();
        for (std::uint64_t i = 0; i < size; ++i) {
            ASSERT_EQ(ends_->producer->try_enqueue(Kind<Numbered>::make(batch * size + i)),
                      Status::ok);
            // What has gathered is not data yet. To look for space is allowed.
            if (i == size - 2 && design.space != SpaceNotification::pull) {
                EXPECT_LE(producers().posts.all() - before, 1U);
            }
        }
        for (std::uint64_t i = 0; i < size; ++i) ASSERT_EQ(ends_->take(), batch * size + i);
    }
    const Posts& at_producer = producers().posts;
    const Posts& at_consumer = consumers().posts;
    const bool immediate = design.transfer == TransferNotification::immediate;
    const bool pushed_counter = design.transfer == TransferNotification::push;
    const Range none{};
    // On a link the news of space may come between the two halves of a batch, which then goes in
    // two.
    const std::uint64_t most = completes_at_once() ? batches : 2 * batches;
    const Range each{batches, most};
    const std::uint64_t settling = ends_->producer->stats().ring.settling_writes;
    expect(
        at_producer.write - settling,
        (design.data == DataFlow::push1 && !immediate ? Range{batches, in_order ? most : 2 * most}
                                                      : none) +
            (pushed_counter ? Range{batches / 2, most} : none),
        "WRITEs of the producer");
    expect(at_producer.write_with_immediate, immediate ? each : none,
           "WRITEs with immediate of the producer");
    expect(at_producer.send, design.data == DataFlow::push2 ? each : none, "SENDs of the producer");
    expect(at_producer.read, design.space == SpaceNotification::pull ? Range{1, 2 * batches} : none,
           "READs of the producer");
    expect(at_consumer.receive,
           design.data == DataFlow::push2 || immediate ? Range{batches / 2, most} : none,
           "receives of the consumer");
    expect(at_consumer.write_with_immediate, none, "WRITEs with immediate of the consumer");
    // Marks are looked for 1, 2, 4 ... items ahead, and what was found is READ at once.
    const bool probes =
        design.data == DataFlow::pull && design.transfer == TransferNotification::watermark;
    const bool asks = probes || design.transfer == TransferNotification::pull;
    const Range taken{0, design.space == SpaceNotification::push2 ? batches : 0};
    expect(at_consumer.read,
           (design.data == DataFlow::pull ? Range{batches, (probes ? 6 : 1) * batches} : none) +
               (asks ? Range{batches / 2, size * batches} : none) + taken,
           "READs of the consumer");
}

// Full: what finds no space in the consumer's ring waits, and goes in runs of what fits.
TEST_P(RequestsOf, AFullQueueAreThoseOfRuns) {
    using ring::DataFlow;
    const ring::Design design = GetParam();
    if (design.data == DataFlow::pull) return;  // there the consumer makes them: see the test above
    const bool in_order =
        ends_->producer->explain().find("WRITEs by the producer, or 2") == std::string::npos;
    constexpr std::uint64_t rounds = 5;
    std::uint64_t number = 0;
    std::uint64_t waited = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t first = number;
        let_consumer_return_space();
        // Until it is full: before that, a link may take longer than a call waits.
        const Deadline deadline = Deadline::after(40s);
        for (Status status = Status::ok;
             status == Status::ok || (number - first <= 64 && !deadline.expired());) {
            status = ends_->producer->enqueue(Kind<Numbered>::make(number), Deadline::after(20ms));
            if (status == Status::ok) ++number;
        }
        ASSERT_GT(number - first, 64U);
        ASSERT_LE(number - first, 128U);
        waited += number - first - 64;
        for (std::uint64_t i = first; i < number; ++i) ASSERT_EQ(ends_->take(), i);
    }
    const std::uint64_t at_once = number - waited;
    const auto data = ends_->producer->stats().ring.data_writes;
    if (design.data == DataFlow::push2) {
        EXPECT_EQ(data, number);
        EXPECT_EQ(producers().posts.send, number);
    } else {
        // On a link what was enqueued while a transfer or an answer was on its way goes as a run,
        // however long that is.
        EXPECT_GE(data, completes_at_once() ? at_once / 2 : rounds);
        // Room comes back in eighths of a ring, or of 32 receives, and each may wrap.
        const std::uint64_t most = at_once + waited / 4;
        EXPECT_LE(data, in_order ? most : 2 * most);
    }
}

// Nor does the one that dequeues, where the mover of its process pulls the counter.
TEST_P(RequestsOf, AMoverThatPullsTheCounterAreNoneOfTheDequeuingThread) {
    const ring::Design design = GetParam();
    if (design.transfer != ring::TransferNotification::pull) return;
    if (design.data == ring::DataFlow::pull || design.space != ring::SpaceNotification::pull) {
        return;  // it pulls the data themselves, or returns credit
    }
    open(with(design, ring::Batching::none, ring::Mover::active), {});
    consumers().posts.watched = std::this_thread::get_id();
    for (std::uint64_t i = 0; i < items; ++i) {
        ASSERT_EQ(ends_->put(i), Status::ok);
        if (i % 40 != 39) continue;
        for (std::uint64_t taken = i - 39; taken <= i; ++taken) ASSERT_EQ(ends_->take(), taken);
    }
    EXPECT_EQ(consumers().posts.by_watched, 0U);
    EXPECT_GT(consumers().posts.read, 0U);
    EXPECT_NE(ends_->consumer->explain().find("no dequeue waits for it"), std::string::npos);
}

// With an active mover, the thread that enqueues posts nothing.
TEST_P(RequestsOf, AMoverAreNoneOfTheCallingThread) {
    const ring::Design design = GetParam();
    open(with(design, ring::Batching::dynamic, ring::Mover::active), {});
    producers().posts.watched = std::this_thread::get_id();
    for (std::uint64_t i = 0; i < items; ++i) {
        ASSERT_EQ(ends_->put(i), Status::ok);
        if (i % 40 != 39) continue;
        for (std::uint64_t taken = i - 39; taken <= i; ++taken) ASSERT_EQ(ends_->take(), taken);
    }
    EXPECT_EQ(producers().posts.by_watched, 0U);
    if (design.data != ring::DataFlow::pull) {
        EXPECT_GT(producers().posts.all(), 0U);
    }
}

}  // namespace
}  // namespace millrace::flow
