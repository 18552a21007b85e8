// Ends of flow queues in a program's own loop: their descriptors are level-triggered, and lose no
// wake-up, at every point of the design space.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include "flow/any_ends.hpp"
#include "flow/conformance.hpp"
#include "millrace/ring/design_name.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::becomes_readable;
using millrace::test::goes_quiet;
using millrace::test::is_readable;

constexpr std::chrono::milliseconds descriptor_patience{20'000};
using NumberedEnds = AnyEnds<Numbered>;

class EveryDesignsDescriptor : public EveryDesign {};
INSTANTIATE_TEST_SUITE_P(Points, EveryDesignsDescriptor, testing::ValuesIn(every_design()),
                         [](const auto& point) { return name_of_point(point.param); });
class EveryWaysDescriptor : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, EveryWaysDescriptor, testing::ValuesIn(every_way()), name_of_way);

/// Sleeps now and then, so that the other end goes quiet.
class Pauses {
  public:
    explicit Pauses(unsigned seed) : random_{seed} {}
    void maybe() {
        if (random_() % 16 != 0) return;
        std::this_thread::sleep_for(std::chrono::microseconds{random_() % 400});
    }

  private:
    std::minstd_rand random_;
};

void produce(NumberedEnds& ends, std::uint64_t count) {
    Pauses pauses{7};
    AnyProducer<Numbered>& producer = *ends.producer;
    const int descriptor = producer.descriptor();
    for (std::uint64_t sent = 0; sent < count;) {
        const Status status = producer.try_enqueue(Kind<Numbered>::make(sent));
        if (status == Status::ok) {
            ++sent;
            pauses.maybe();
            continue;
        }
        ASSERT_EQ(status, Status::full) << sent;
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience))
            << "full, and not woken: " << sent;
    }
    Status status;
    while ((status = producer.flush(Deadline::now())) == Status::timed_out) {
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience))
            << "not flushed, and not woken";
    }
    ASSERT_EQ(status, Status::ok);
    ASSERT_EQ(producer.close(Deadline::after(40s)), Status::ok);
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
    EXPECT_EQ(producer.try_enqueue({}), Status::closed);
}

/// `at_once`: how many calls it makes for a descriptor that is readable.
void consume(NumberedEnds& ends, std::uint64_t count, int at_once) {
    Pauses pauses{11};
    AnyConsumer<Numbered>& consumer = *ends.consumer;
    const int descriptor = consumer.descriptor();
    std::uint64_t taken = 0;
    for (;;) {
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience)) << "not woken for " << taken;
        for (int i = 0; i < at_once; ++i) {
            Numbered item;
            const Status status = consumer.try_dequeue(item);
            if (status == Status::empty) break;
            if (status != Status::ok) {
                EXPECT_EQ(status, Status::closed);
                EXPECT_EQ(taken, count);
                EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
                return;
            }
            ASSERT_EQ(Kind<Numbered>::number_of(item), taken);
            ++taken;
            pauses.maybe();
        }
    }
}

void carries_all(ring::Design design, std::uint64_t count, Options asked, int at_once) {
    asked.ring.capacity = 4;
    NumberedEnds ends{design, asked};
    ASSERT_TRUE(ends.producer && ends.consumer);
    std::thread producing{[&] { produce(ends, count); }};
    consume(ends, count, at_once);
    producing.join();
}

/// Nobody is called again and again for nothing: behind some items, and beside a full ring.
void makes_no_work_while_quiet(ring::Design design, Options asked) {
    // Longer than any nap, and shorter than what a producer asks again after.
    constexpr std::chrono::milliseconds window{15};
    const auto sleeps_at_last = [window](int descriptor, auto&& call) {
        const Deadline deadline = Deadline::after(40s);
        do {
            call();
            if (!becomes_readable(descriptor, window)) return true;
        } while (!deadline.expired());
        return false;
    };
    asked.ring.capacity = 4;
    NumberedEnds ends{design, asked};
    ASSERT_TRUE(ends.producer && ends.consumer);
    const int consumers = ends.consumer->descriptor();
    const int producers = ends.producer->descriptor();
    std::uint64_t put = 0;
    std::uint64_t taken = 0;
    Numbered item;
    for (int round = 0; round < 2; ++round) {
        // Each time another part of a batch.
        for (int i = 0; i < 3 + round; ++i) {
            if (ends.producer->try_enqueue(Kind<Numbered>::make(put)) == Status::ok) ++put;
        }
        const Deadline deadline = Deadline::after(20s);
        while (taken != put && !deadline.expired()) {
            (void)ends.producer->flush(Deadline::now());
            const Status status = ends.consumer->try_dequeue(item);
            if (status == Status::ok) ++taken;
        }
        ASSERT_EQ(taken, put);
        EXPECT_TRUE(sleeps_at_last(
            consumers, [&] { ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty); }))
            << "an empty consumer, round " << round;
    }
    EXPECT_TRUE(sleeps_at_last(producers, [&] {
        (void)ends.producer->try_enqueue(Kind<Numbered>::make(put));
    })) << "a full producer";
}

TEST_P(EveryDesignsDescriptor, LoopsOfBothEndsLoseNoWakeUp) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    carries_all(GetParam(), 1500, {}, 1000);
    if (!HasFailure()) carries_all(GetParam(), 1500, {}, 1);
}

TEST_P(EveryDesignsDescriptor, ADescriptorGoesQuietAndWakes) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    NumberedEnds ends{GetParam(), {.ring = {.capacity = 8}}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    const int descriptor = ends.consumer->descriptor();
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience)) << "nobody has looked yet";
    EXPECT_EQ(ends.consumer->descriptor(), descriptor);
    Numbered item;
    for (std::uint64_t round = 0; round < 3; ++round) {
        ASSERT_TRUE(goes_quiet(
            descriptor, [&] { ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty); }));
        ASSERT_EQ(ends.put(3 * round), Status::ok);
        ASSERT_EQ(ends.put(3 * round + 1), Status::ok);
        ASSERT_EQ(ends.put(3 * round + 2), Status::ok);
        (void)ends.producer->flush(Deadline::after(40ms));
        for (std::uint64_t i = 0; i < 3; ++i) {
            const Deadline deadline = Deadline::after(40s);
            Status status = Status::empty;
            while (status == Status::empty && !deadline.expired()) {
                (void)ends.producer->flush(Deadline::now());
                ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience))
                    << "with items in front";
                status = ends.consumer->try_dequeue(item);
            }
            ASSERT_EQ(status, Status::ok);
            ASSERT_EQ(Kind<Numbered>::number_of(item), 3 * round + i);
        }
    }
}

TEST_P(EveryDesignsDescriptor, ADescriptorTellsOfTheProducersDeath) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    NumberedEnds ends{GetParam(), {.ring = {.capacity = 8}}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    const int descriptor = ends.consumer->descriptor();
    Numbered item;
    ASSERT_TRUE(goes_quiet(descriptor,
                           [&] { ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty); }));
    ends.producer.reset();
    ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience));
    const Deadline deadline = Deadline::after(40s);
    Status status;
    while ((status = ends.consumer->try_dequeue(item)) == Status::empty && !deadline.expired()) {
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience));
    }
    EXPECT_EQ(status, Status::peer_lost);
}

TEST_P(EveryDesignsDescriptor, ADescriptorTellsTheProducerOfTheConsumersEnd) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    NumberedEnds ends{GetParam(), {.ring = {.capacity = 2}}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    const int descriptor = ends.producer->descriptor();
    ASSERT_TRUE(goes_quiet(descriptor, [&] { (void)ends.producer->try_enqueue({}); }));
    ends.consumer->close();
    const Deadline deadline = Deadline::after(40s);
    Status status = Status::full;
    // What was on its way may leave room for one more.
    while ((status == Status::full || status == Status::ok) && !deadline.expired()) {
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience));
        status = ends.producer->try_enqueue({});
    }
    EXPECT_EQ(status, Status::closed);
}

TEST_P(EveryWaysDescriptor, LoopsOfBothEndsLoseNoWakeUp) {
    at_every_point([](ring::Design design) {
        carries_all(design, 200,
                    {.ring = {.batch = design.batching == ring::Batching::none
                                           ? std::optional<std::uint32_t>{}
                                           : std::optional<std::uint32_t>{2}}},
                    1000);
    });
}

TEST_P(EveryDesignsDescriptor, QuietEndsMakeNoWork) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    makes_no_work_while_quiet(GetParam(), {});
}

TEST_P(EveryWaysDescriptor, QuietEndsMakeNoWork) {
    at_every_point([](ring::Design design) {
        makes_no_work_while_quiet(design,
                                  {.ring = {.batch = design.batching == ring::Batching::none
                                                         ? std::optional<std::uint32_t>{}
                                                         : std::optional<std::uint32_t>{2}}});
    });
}

TEST(FlowDescriptor, StandsBesideWaits) {
    NumberedEnds ends{ring::design_2, {.ring = {.capacity = 4}}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    const int descriptor = ends.consumer->descriptor();
    Numbered item;
    ASSERT_TRUE(goes_quiet(descriptor,
                           [&] { ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty); }));
    EXPECT_EQ(ends.consumer->dequeue(item, Deadline::after(1ms)), Status::timed_out);
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience))
        << "whoever waited otherwise may have missed something";
    ASSERT_EQ(ends.put(0), Status::ok);
    ASSERT_EQ(ends.consumer->dequeue(item, Deadline::after(40s)), Status::ok);
    ASSERT_TRUE(goes_quiet(descriptor,
                           [&] { ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty); }));
    ASSERT_EQ(ends.put(1), Status::ok);
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
    EXPECT_EQ(ends.take(), 1U);
}

TEST(FlowDescriptor, OfQuietEndsMakesNoWork) {
    NumberedEnds ends{ring::design_2, {.ring = {.capacity = 4}}};
    ASSERT_TRUE(ends.producer && ends.consumer);
    const int descriptor = ends.consumer->descriptor();
    // On a link, the announcement itself takes a few calls; then nothing happens any more.
    const Deadline deadline = Deadline::after(40s);
    do {
        Numbered item;
        ASSERT_EQ(ends.consumer->try_dequeue(item), Status::empty);
        ASSERT_FALSE(deadline.expired()) << "it is called again and again";
    } while (becomes_readable(descriptor, std::chrono::milliseconds{200}));
}

}  // namespace
}  // namespace millrace::flow
