// Flow queues of fixed-size items, both ends in one process: order, completeness, wrapping,
// closing, sleeping.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/ring/detail/first_position.hpp"
#include "support/two_threads.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using test::Ends;

struct Item {
    std::uint64_t number = 0;
    std::array<std::uint64_t, 7> body{};

    static Item make(std::uint64_t number) {
        Item item{number, {}};
        for (std::size_t i = 0; i < item.body.size(); ++i) item.body[i] = number * 31 + i;
        return item;
    }
    friend bool operator==(const Item&, const Item&) = default;
};
static_assert(sizeof(Item) == 64);

struct Design1 {
    static constexpr ring::Design value = ring::design_1;
};
struct Design2 {
    static constexpr ring::Design value = ring::design_2;
};
template <class DesignOf>
class FlowQueue : public testing::Test {};
using Designs = testing::Types<Design1, Design2>;
TYPED_TEST_SUITE(FlowQueue, Designs);

TYPED_TEST(FlowQueue, DeliversOneItem) {
    Ends<Item, TypeParam::value> ends{Options{}};
    Item item;
    EXPECT_EQ(ends.consumer().try_dequeue(item), Status::empty);
    ASSERT_EQ(ends.producer().try_enqueue(Item::make(7)), Status::ok);
    ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(item, Item::make(7));
    EXPECT_EQ(ends.consumer().try_dequeue(item), Status::empty);
}

// Where items are stored, the two rings are one.
TYPED_TEST(FlowQueue, HoldsItsRingsOfItemsAndThenSaysFull) {
    for (const std::uint64_t capacity : {1, 2, 3, 5, 8, 100}) {
        Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = capacity}}};
        ASSERT_EQ(ends.producer().capacity(), capacity);
        const std::uint64_t most = ends.rings() * capacity;
        std::uint64_t sent = 0;
        for (; sent < most; ++sent) {
            ASSERT_EQ(ends.producer().enqueue(Item::make(sent), Deadline::after(40s)), Status::ok);
        }
        EXPECT_EQ(ends.producer().enqueue(Item::make(sent), Deadline::after(100ms)),
                  Status::timed_out);
        EXPECT_EQ(ends.producer().try_enqueue(Item::make(sent)), Status::full);
        Item item;
        for (std::uint64_t taken = 0; taken < sent; ++taken) {
            ASSERT_EQ(ends.take(item), Status::ok);
            ASSERT_EQ(item, Item::make(taken));
        }
        EXPECT_EQ(ends.consumer().try_dequeue(item), Status::empty);
    }
}

TYPED_TEST(FlowQueue, KeepsOrderWhereverTheRingWraps) {
    for (std::uint64_t capacity = 1; capacity <= 7; ++capacity) {
        for (std::uint64_t fill = 1; fill <= capacity; ++fill) {
            Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = capacity}}};
            std::uint64_t sent = 0;
            std::uint64_t taken = 0;
            for (std::uint64_t round = 0; round < 2 * capacity + 3; ++round) {
                for (std::uint64_t i = 0; i < fill; ++i) {
                    ASSERT_EQ(ends.producer().enqueue(Item::make(sent++), Deadline::after(40s)),
                              Status::ok);
                }
                for (std::uint64_t i = 0; i < fill; ++i) {
                    Item item;
                    ASSERT_EQ(ends.take(item), Status::ok);
                    ASSERT_EQ(item, Item::make(taken++));
                }
            }
        }
    }
}

TYPED_TEST(FlowQueue, KeepsOrderWhereItsCountersWrap) {
    constexpr std::uint64_t before = 72 * 5;
    for (const std::uint64_t initial :
         {(std::uint64_t{1} << 32) - before, std::uint64_t{0} - before, std::uint64_t{0} - 8,
          (std::uint64_t{1} << 63) - before, (std::uint64_t{1} << 31) - before}) {
        for (const std::uint64_t capacity : {1, 3, 4}) {
            const ring::detail::FirstPosition begins{initial};
            Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = capacity}}};
            for (std::uint64_t i = 0; i < 20; ++i) {
                Item item;
                ASSERT_EQ(ends.producer().enqueue(Item::make(i), Deadline::after(40s)), Status::ok);
                ASSERT_EQ(ends.take(item), Status::ok);
                ASSERT_EQ(item, Item::make(i));
            }
            ASSERT_EQ(ends.consumer().stats().items, 20U);
        }
    }
}

TYPED_TEST(FlowQueue, SendsABatchWithOneRequestOrTwoWhereItWraps) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 7}}};
    const std::uint64_t most = ends.in_order() ? 2 : 4;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    for (std::size_t size = 1; size <= 7; ++size) {
        for (int round = 0; round < 9; ++round) {
            std::vector<Item> batch;
            for (std::size_t i = 0; i < size; ++i) batch.push_back(Item::make(sent++));
            ASSERT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
            const std::uint64_t before = ends.producer().stats().ring.data_writes;
            const BatchResult put = ends.producer().try_enqueue_batch(batch);
            ASSERT_EQ(put.status, Status::ok);
            ASSERT_EQ(put.count, size);
            ASSERT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
            EXPECT_LE(ends.producer().stats().ring.data_writes - before, most);
            for (std::size_t got = 0; got < size;) {
                std::vector<Item> out(size - got);
                const BatchResult result = ends.consumer().try_dequeue_batch(out);
                for (std::size_t i = 0; i < result.count; ++i) {
                    ASSERT_EQ(out[i], Item::make(taken++));
                }
                got += result.count;
                ASSERT_TRUE(result.status == Status::ok || result.status == Status::empty);
            }
        }
    }
}

TYPED_TEST(FlowQueue, TakesAsMuchOfABatchAsFits) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 3}}};
    std::vector<Item> batch;
    for (std::uint64_t i = 0; i < 10; ++i) batch.push_back(Item::make(i));
    const std::size_t most = 3 * ends.rings();
    std::size_t put = 0;
    for (int tries = 0; tries < 1000 && put < most; ++tries) {
        const BatchResult result =
            ends.producer().try_enqueue_batch(std::span<const Item>{batch}.subspan(put));
        put += result.count;
        (void)ends.producer().flush(Deadline::after(1ms));
    }
    ASSERT_EQ(put, most);
    const BatchResult more = ends.producer().try_enqueue_batch(batch);
    EXPECT_EQ(more.count, 0U);
    EXPECT_EQ(more.status, Status::full);
}

TYPED_TEST(FlowQueue, WritesAndReadsItemsInPlace) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 3}}};
    for (std::uint64_t i = 0; i < 30; ++i) {
        Item* place = nullptr;
        ASSERT_EQ(ends.producer().claim(place, Deadline::after(40s)), Status::ok);
        *place = Item::make(i);
        Item* again = nullptr;
        ASSERT_EQ(ends.producer().claim(again), Status::ok);
        ASSERT_EQ(place, again);
        ASSERT_EQ(ends.producer().commit(), Status::ok);
        const Item* item = nullptr;
        ASSERT_EQ(ends.peek(item), Status::ok);
        ASSERT_EQ(*item, Item::make(i));
        const Item* same = nullptr;
        ASSERT_EQ(ends.consumer().peek(same), Status::ok);
        ASSERT_EQ(item, same);
        ends.consumer().release();
    }
}

TYPED_TEST(FlowQueue, LetsTheConsumerDrainAfterTheProducerClosed) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 8}}};
    for (std::uint64_t i = 0; i < 8; ++i) {
        ASSERT_EQ(ends.producer().try_enqueue(Item::make(i)), Status::ok);
    }
    ASSERT_EQ(ends.producer().close(Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.producer().try_enqueue(Item::make(9)), Status::closed);
    Item item;
    for (std::uint64_t i = 0; i < 8; ++i) {
        ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
        ASSERT_EQ(item, Item::make(i));
    }
    EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::closed);
    EXPECT_EQ(ends.consumer().try_dequeue(item), Status::closed);
}

TYPED_TEST(FlowQueue, DoesNotCloseWhileTheConsumerHasNoSpace) {
    Ends<Item, TypeParam::value> ends{
        Options{.ring = {.capacity = 2, .carrier = ring::Carrier::post}}};
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(ends.producer().enqueue(Item::make(i), Deadline::after(40s)), Status::ok);
    }
    EXPECT_EQ(ends.producer().close(Deadline::after(30ms)), Status::timed_out);
    Item item;
    ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
    ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.consumer().try_dequeue(item), Status::empty);
    EXPECT_EQ(ends.producer().close(Deadline::after(40s)), Status::ok);
    ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(item, Item::make(2));
    EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::closed);
}

TYPED_TEST(FlowQueue, TellsTheProducerThatTheConsumerClosed) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 2}}};
    ends.consumer().close();
    Item item;
    EXPECT_EQ(ends.consumer().try_dequeue(item), Status::closed);
    Status status = Status::ok;
    for (int i = 0; i < 5 && status == Status::ok; ++i) {
        status = ends.producer().enqueue(Item::make(0), Deadline::after(40s));
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(ends.producer().try_enqueue(Item::make(0)), Status::closed);
}

TYPED_TEST(FlowQueue, TellsTheProducerThatTheConsumerWentAway) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 2}}};
    ends.drop_consumer();
    Status status = Status::ok;
    for (int i = 0; i < 5 && status == Status::ok; ++i) {
        status = ends.producer().enqueue(Item::make(0), Deadline::after(40s));
    }
    EXPECT_EQ(status, Status::peer_lost);
}

TYPED_TEST(FlowQueue, GivesWhatArrivedBeforeItSaysThatTheProducerIsLost) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 4}}};
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(ends.producer().try_enqueue(Item::make(i)), Status::ok);
    }
    ASSERT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
    ends.drop_producer();
    Item item;
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
        ASSERT_EQ(item, Item::make(i));
    }
    EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::peer_lost);
}

TYPED_TEST(FlowQueue, WakesASleepingConsumer) {
    Ends<Item, TypeParam::value> ends{
        Options{.ring = {.capacity = 4}, .wait = base::WaitPolicy::blocking()}};
    // Nothing makes a busy machine's threads meet, so again until they have.
    const Deadline deadline = Deadline::after(40s);
    const auto was_woken = [&] { return ends.consumer().stats().ring.wake_ups != 0; };
    for (std::uint64_t first = 0; !was_woken() && !deadline.expired(); first += 300) {
        std::thread consumer{[&] {
            for (std::uint64_t i = first; i < first + 300; ++i) {
                Item item;
                ASSERT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
                ASSERT_EQ(item, Item::make(i));
            }
        }};
        for (std::uint64_t i = first; i < first + 300; ++i) {
            if (i % 3 == 0) std::this_thread::sleep_for(1ms);
            EXPECT_EQ(ends.producer().enqueue(Item::make(i), Deadline::after(40s)), Status::ok);
            if (i % 10 == 0) {
                EXPECT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
            }
        }
        EXPECT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
        consumer.join();
        if (this->HasFailure()) return;
    }
    EXPECT_GT(ends.consumer().stats().ring.sleeps, 0U);
    EXPECT_GT(ends.consumer().stats().ring.wake_ups, 0U);
    EXPECT_GE(ends.producer().stats().ring.events, ends.consumer().stats().ring.wake_ups);
}

TYPED_TEST(FlowQueue, WakesASleepingProducer) {
    Ends<Item, TypeParam::value> ends{
        Options{.ring = {.capacity = 4}, .wait = base::WaitPolicy::blocking()}};
    // Nothing makes a busy machine's threads meet, so again until they have.
    const Deadline deadline = Deadline::after(40s);
    const auto was_woken = [&] { return ends.producer().stats().ring.wake_ups != 0; };
    for (std::uint64_t first = 0; !was_woken() && !deadline.expired(); first += 300) {
        std::thread producer{[&] {
            for (std::uint64_t i = first; i < first + 300; ++i) {
                ASSERT_EQ(ends.producer().enqueue(Item::make(i), Deadline::after(40s)), Status::ok);
            }
            ASSERT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
        }};
        for (std::uint64_t i = first; i < first + 300; ++i) {
            if (i % 3 == 0) std::this_thread::sleep_for(1ms);
            Item item;
            EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
            EXPECT_EQ(item, Item::make(i));
        }
        producer.join();
        if (this->HasFailure()) return;
    }
    EXPECT_GT(ends.producer().stats().ring.sleeps, 0U);
    EXPECT_GT(ends.producer().stats().ring.wake_ups, 0U);
}

TYPED_TEST(FlowQueue, PostsNearlyNothingWhileItSleepsForSpace) {
    constexpr std::uint64_t capacity = 2;
    Ends<Item, TypeParam::value> ends{
        Options{.ring = {.capacity = capacity}, .wait = base::WaitPolicy::blocking()}};
    auto& producer = ends.producer();
    // Until both rings are full; then it announces that it sleeps, and learns that there is no
    // news.
    for (std::uint64_t i = 0; i < ends.rings() * capacity; ++i) {
        ASSERT_EQ(producer.enqueue(Item::make(0), Deadline::after(40s)), Status::ok);
    }
    EXPECT_EQ(producer.enqueue(Item::make(0), Deadline::after(100ms)), Status::timed_out);
    const std::uint64_t before = producer.stats().ring.work_requests;
    EXPECT_EQ(producer.enqueue(Item::make(1), Deadline::after(300ms)), Status::timed_out);
    // A few for each slice of the sleep. Who does not sleep posts thousands.
    EXPECT_LT(producer.stats().ring.work_requests - before, 100U);
}

/// The producer learns how far its items were pulled only by asking.
constexpr ring::Design pulled_and_asked{ring::DataFlow::pull, ring::TransferNotification::push,
                                        ring::SpaceNotification::pull};

TEST(PulledFlowQueue, EndsAFlushOfAProducerThatNeverSleeps) {
    Ends<Item, pulled_and_asked> ends{
        Options{.ring = {.capacity = 4}, .wait = base::WaitPolicy::polling()}};
    std::thread producer{[&] {
        for (std::uint64_t i = 0; i < 3; ++i) {
            EXPECT_EQ(ends.producer().try_enqueue(Item::make(i)), Status::ok);
        }
        EXPECT_EQ(ends.producer().flush(Deadline::after(40s)), Status::ok);
    }};
    for (std::uint64_t i = 0; i < 3; ++i) {
        Item item;
        EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s)), Status::ok);
        EXPECT_EQ(item, Item::make(i));
    }
    producer.join();
}

TYPED_TEST(FlowQueue, EndsAWaitAtItsDeadlineOrWhenCancelled) {
    Ends<Item, TypeParam::value> ends{Options{.ring = {.capacity = 1}}};
    Item item;
    EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(ends.consumer().dequeue(item, Deadline::now()), Status::timed_out);
    base::Cancellation cancellation;
    cancellation.request();
    EXPECT_EQ(ends.consumer().dequeue(item, Deadline::after(40s).cancelled_by(cancellation)),
              Status::cancelled);
}

TYPED_TEST(FlowQueue, BehavesAsAPlainQueueUnderRandomInterleavings) {
    const bool held = rc::check([] {
        const auto capacity = *rc::gen::inRange<std::uint64_t>(1, 12);
        const auto initial = *rc::gen::element<std::uint64_t>(0, (std::uint64_t{1} << 32) - 720,
                                                              std::uint64_t{0} - 720);
        const auto parts = *rc::gen::element<std::uint32_t>(1, 2, 8, 1024);
        const ring::detail::FirstPosition begins{initial};
        Ends<Item, TypeParam::value> ends{
            Options{.ring = {.capacity = capacity, .credit_parts = parts}}};
        std::deque<std::uint64_t> model;
        std::uint64_t next = 0;
        const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::inRange<int>(0, 70));
        for (const int step : steps) {
            const auto amount = static_cast<std::size_t>(step / 7 + 1);
            switch (step % 7) {
                case 0:
                case 1: {
                    if (ends.producer().try_enqueue(Item::make(next)) == Status::ok) {
                        model.push_back(next++);
                    }
                    break;
                }
                case 2: {
                    std::vector<Item> batch;
                    for (std::size_t i = 0; i < amount; ++i) {
                        batch.push_back(Item::make(next + i));
                    }
                    const auto result = ends.producer().try_enqueue_batch(batch);
                    for (std::size_t i = 0; i < result.count; ++i) model.push_back(next++);
                    break;
                }
                case 3: {
                    Item* place = nullptr;
                    if (ends.producer().claim(place) == Status::ok) {
                        *place = Item::make(next);
                        RC_ASSERT(ends.producer().commit() == Status::ok);
                        model.push_back(next++);
                    }
                    break;
                }
                case 4: {
                    Item item;
                    if (ends.consumer().try_dequeue(item) == Status::ok) {
                        RC_ASSERT(!model.empty());
                        RC_ASSERT(item == Item::make(model.front()));
                        model.pop_front();
                    }
                    break;
                }
                case 5: {
                    std::vector<Item> out(amount);
                    const auto result = ends.consumer().try_dequeue_batch(out);
                    RC_ASSERT(result.count <= model.size());
                    for (std::size_t i = 0; i < result.count; ++i) {
                        RC_ASSERT(out[i] == Item::make(model.front()));
                        model.pop_front();
                    }
                    break;
                }
                default: (void)ends.producer().flush(Deadline::now()); break;
            }
            RC_ASSERT(model.size() <= 2 * capacity);
        }
        Item item;
        while (!model.empty()) {
            RC_ASSERT(ends.take(item) == Status::ok);
            RC_ASSERT(item == Item::make(model.front()));
            model.pop_front();
        }
        RC_ASSERT(ends.consumer().try_dequeue(item) == Status::empty);
    });
    EXPECT_TRUE(held);
}

TYPED_TEST(FlowQueue, CountsWhatItDoes) {
    Ends<Item, TypeParam::value> ends{
        Options{.ring = {.capacity = 64, .carrier = ring::Carrier::post}}};
    for (std::uint64_t i = 0; i < 1000; ++i) {
        Item item;
        ASSERT_EQ(ends.producer().enqueue(Item::make(i), Deadline::after(40s)), Status::ok);
        ASSERT_EQ(ends.take(item), Status::ok);
    }
    const ProducerStats produced = ends.producer().stats();
    const ConsumerStats consumed = ends.consumer().stats();
    EXPECT_EQ(produced.items, 1000U);
    EXPECT_EQ(produced.payload_bytes, 64'000U);
    EXPECT_EQ(produced.ring.bytes, 72'000U);
    EXPECT_EQ(produced.ring.data_writes, ends.in_order() ? 1000U : 2000U);
    const std::uint64_t known =
        produced.ring.data_writes + produced.ring.space_reads + produced.ring.settling_writes;
    // Who is about to sleep, on a slow or lossy link, says so and asks once more.
    EXPECT_GE(produced.ring.work_requests, known);
    if (ends.completes_at_once()) {
        EXPECT_EQ(produced.ring.work_requests, known);
    }
    EXPECT_EQ(consumed.items, 1000U);
    if (TypeParam::value.space == ring::SpaceNotification::pull) {
        if (ends.completes_at_once()) {
            EXPECT_EQ(consumed.ring.work_requests, 0U) << "design 1's consumer posts while awake";
        }
        EXPECT_GT(produced.ring.space_reads, 0U);
    } else {
        EXPECT_EQ(produced.ring.space_reads, 0U);
        EXPECT_GT(consumed.ring.credit_writes, 0U);
    }
}

struct alignas(64) Wide {
    std::uint64_t number;
    std::byte rest[56];
};
struct Tiny {
    std::uint8_t number;
};

template <class T>
void pass_items_of() {
    Ends<T, ring::design_2> ends{Options{.ring = {.capacity = 3}}};
    for (std::uint8_t i = 0; i < 50; ++i) {
        T item{};
        item.number = i;
        ASSERT_EQ(ends.producer().enqueue(item, Deadline::after(40s)), Status::ok);
        const T* out = nullptr;
        ASSERT_EQ(ends.peek(out), Status::ok);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(out) % alignof(T), 0U);
        ASSERT_EQ(out->number, i);
        ends.consumer().release();
    }
}
TEST(FlowQueueItems, MayBeOneByte) { pass_items_of<Tiny>(); }
TEST(FlowQueueItems, KeepTheirAlignment) { pass_items_of<Wide>(); }

TEST(FlowQueue, NamesTheMistakeOfASecondThreadInAnEnd) {
    if (millrace::test::sees_races) GTEST_SKIP() << "two threads race in it";
    Ends<Item, ring::design_2> ends{Options{.ring = {.capacity = 4}}};
    const auto is_named = [](const std::optional<base::Error>& told) {
        return told.has_value() &&
               std::string{told->what()}.find("a call of another thread is under way in it") !=
                   std::string::npos;
    };
    EXPECT_TRUE(is_named(millrace::test::told_to_two_threads([&](const Deadline& deadline) {
        Item item;
        (void)ends.consumer().dequeue(item, deadline);
    })));
    // Nobody takes what fills the ring.
    EXPECT_TRUE(is_named(millrace::test::told_to_two_threads([&](const Deadline& deadline) {
        while (ends.producer().enqueue(Item::make(1), deadline) == Status::ok) {
        }
    })));
}

}  // namespace
}  // namespace millrace::flow
