// Filters that a consumer names and its producer evaluates: the same as filtering at the consumer,
// in queues of several designs, fan-outs and replicators, and less on the way.
#include "millrace/flow/filter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <thread>

#include "crowd.hpp"
#include "filtered.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/filtered_producer.hpp"
#include "millrace/flow/replicate.hpp"
#include "support/child_process.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::ChildProcess;
using millrace::test::say;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A producer of P's items, and a consumer of U that asks for a filter.
template <class P, class U, ring::Design D = ring::design_2>
struct FilteredEnds {
    explicit FilteredEnds(Options consumers, const Options& producers = {}) {
        Listener listener = Listener::listen(fresh_address(), std::move(consumers));
        auto connecting = std::async(std::launch::async, [&] {
            return Producer<P, D>::connect(listener.address(), producers, soon());
        });
        consumer.emplace(Consumer<U, D>::accept(listener, soon()));
        producer.emplace(connecting.get());
    }
    std::optional<Consumer<U, D>> consumer;
    std::optional<Producer<P, D>> producer;
};

Options asking(Filter filter, std::uint64_t capacity = 32) {
    Options options = small(capacity);
    options.filter = filter;
    return options;
}

/// What all calls that enqueue do with rows: one by one, and in batches.
template <class Producer>
void enqueue_all(Producer& producer, const std::vector<Row>& rows) {
    std::size_t at = 0;
    for (; at != rows.size() / 2; ++at) {
        ASSERT_EQ(producer.enqueue(rows[at], soon()), Status::ok);
    }
    const Deadline deadline = soon();
    while (at != rows.size() && !deadline.expired()) {
        const std::size_t count = std::min<std::size_t>(rows.size() - at, 7);
        const BatchResult result = producer.try_enqueue_batch(std::span{rows}.subspan(at, count));
        at += result.count;
        if (result.count == count) continue;
        ASSERT_EQ(result.status, Status::full);
        ASSERT_EQ(producer.enqueue(rows[at++], soon()), Status::ok);
    }
    ASSERT_EQ(at, rows.size());
}

template <class U, ring::Design D, class F>
void check_as_at_the_consumer(const F& filter, std::uint64_t seed) {
    const std::vector<Row> rows = some_rows(seed, 1500);
    const std::vector<U> expected = kept_by<U>(rows, filter);
    FilteredEnds<Rows, U, D> ends{asking(filter)};
    std::jthread sending{[&] {
        enqueue_all(*ends.producer, rows);
        ASSERT_EQ(ends.producer->close(soon()), Status::ok);
    }};
    std::vector<U> got;
    U item;
    Status status;
    while ((status = ends.consumer->dequeue(item, soon())) == Status::ok) got.push_back(item);
    EXPECT_EQ(status, Status::closed);
    sending.join();
    EXPECT_EQ(got, expected);
    const FilterCounts counts = ends.producer->stats().filter;
    EXPECT_EQ(counts.looked, rows.size());
    EXPECT_EQ(counts.passed, expected.size());
    EXPECT_EQ(counts.threw, 0U);
    EXPECT_EQ(counts.bytes_kept, rows.size() * sizeof(Row) - expected.size() * sizeof(U));
    EXPECT_EQ(ends.producer->stats().payload_bytes, expected.size() * sizeof(U));
    EXPECT_EQ(ends.consumer->stats().filter.looked, rows.size());
    EXPECT_EQ(ends.consumer->stats().filter.threw, 0U);
}

template <class Point>
struct FilterOver : ::testing::Test {};
template <ring::Design D>
struct At {
    static constexpr ring::Design design = D;
};
constexpr ring::Design pull_pull_push{ring::DataFlow::pull, ring::TransferNotification::pull,
                                      ring::SpaceNotification::push};
constexpr ring::Design push2_event_push{ring::DataFlow::push2, ring::TransferNotification::event,
                                        ring::SpaceNotification::push};
constexpr ring::Design immediate{ring::DataFlow::push1, ring::TransferNotification::immediate,
                                 ring::SpaceNotification::pull};
using Points =
    ::testing::Types<At<ring::design_2>, At<ring::design_1>, At<pull_pull_push>,
                     At<push2_event_push>, At<immediate>,
                     At<with(ring::design_2, ring::Batching::fixed)>,
                     At<with(ring::design_1, ring::Batching::dynamic, ring::Mover::active)>>;
TYPED_TEST_SUITE(FilterOver, Points);

TYPED_TEST(FilterOver, IsTheSameAsFilteringAtTheConsumer) {
    constexpr ring::Design design = TypeParam::design;
    std::uint64_t seed = 0;
    for (const std::uint32_t limit : {0U, 50U, 89U, 100U}) {
        check_as_at_the_consumer<Row, design>(Above{limit}, ++seed);
        check_as_at_the_consumer<Key, design>(KeyAbove{limit}, ++seed);
    }
    check_as_at_the_consumer<Key, design>(KeyOf{}, ++seed);
}

TYPED_TEST(FilterOver, GivesEveryItemToAConsumerThatAsksForNone) {
    const std::vector<Row> rows = some_rows(1, 500);
    FilteredEnds<Rows, Row, TypeParam::design> ends{small()};
    std::jthread sending{[&] {
        enqueue_all(*ends.producer, rows);
        ASSERT_EQ(ends.producer->close(soon()), Status::ok);
    }};
    for (const Row& row : rows) {
        Row item;
        ASSERT_EQ(ends.consumer->dequeue(item, soon()), Status::ok);
        ASSERT_EQ(item, row);
    }
    sending.join();
    EXPECT_EQ(ends.producer->stats().filter.looked, 0U);
    EXPECT_EQ(ends.producer->stats().items, rows.size());
}

TYPED_TEST(FilterOver, TakesFramesOfAnyLength) {
    for (const bool is_front : {false, true}) {
        FilteredEnds<Frames, Bytes, TypeParam::design> ends{
            asking(is_front ? Filter{Front{20}} : Filter{Longer{20}}, 4096)};
        std::jthread sending{[&] {
            for (std::size_t i = 0; i != 600; ++i) {
                const std::vector<std::byte> item(i % 50, std::byte(i));
                ASSERT_EQ(ends.producer->enqueue(item, soon()), Status::ok);
            }
            ASSERT_EQ(ends.producer->close(soon()), Status::ok);
        }};
        std::vector<std::byte> item;
        for (std::size_t i = 0; i != 600; ++i) {
            const std::size_t size = i % 50;
            if (is_front ? size < 20 : size <= 20) continue;
            ASSERT_EQ(ends.consumer->dequeue(item, soon()), Status::ok);
            EXPECT_EQ(item, std::vector<std::byte>(is_front ? 20 : size, std::byte(i)));
        }
        EXPECT_EQ(ends.consumer->dequeue(item, soon()), Status::closed);
    }
}

TYPED_TEST(FilterOver, ThatThrowsIsToldToBothEndsAndLeavesTheItemOut) {
    FilteredEnds<Rows, Row, TypeParam::design> ends{
        asking(Filter{ThrowsAt{7}, WhenThrown::skip}, 64)};
    for (std::uint32_t value = 0; value != 30; ++value) {
        ASSERT_EQ(ends.producer->enqueue({.value = value % 10}, soon()), Status::ok);
    }
    std::jthread closing{[&] { EXPECT_EQ(ends.producer->close(soon()), Status::ok); }};
    Row item;
    for (std::uint32_t value = 0; value != 30; ++value) {
        if (value % 10 == 7) continue;
        ASSERT_EQ(ends.consumer->dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item.value, value % 10);
    }
    EXPECT_EQ(ends.consumer->dequeue(item, soon()), Status::closed);
    closing.join();
    EXPECT_EQ(ends.producer->stats().filter.threw, 3U);
    EXPECT_EQ(ends.producer->stats().filter.passed, 27U);
    EXPECT_EQ(ends.producer->failure(), "");
    const ring::FilterTold told = ends.consumer->stats().filter;
    EXPECT_EQ(told.threw, 3U);
    EXPECT_EQ(told.looked, 30U);
    EXPECT_THAT(told.reason,
                HasSubstr("threw at item 8 of those that it looked at: no such?value"));
}

TYPED_TEST(FilterOver, ThatThrowsEndsTheQueueBehindWhatWasLaid) {
    FilteredEnds<Rows, Row, TypeParam::design> ends{asking(ThrowsAt{7}, 64)};
    std::jthread sending{[&] {
        for (std::uint32_t value = 0; value != 7; ++value) {
            ASSERT_EQ(ends.producer->enqueue({.value = value}, soon()), Status::ok);
        }
        EXPECT_EQ(ends.producer->enqueue({.value = 7}, soon()), Status::peer_lost);
        EXPECT_EQ(ends.producer->try_enqueue({.value = 8}), Status::peer_lost);
        // What waits for a batch, or for its device, goes with that.
        (void)ends.producer->flush(soon());
    }};
    Row item;
    for (std::uint32_t value = 0; value != 7; ++value) {
        ASSERT_EQ(ends.consumer->dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item.value, value);
    }
    // The producer has not closed, and lives: it is told.
    EXPECT_EQ(ends.consumer->dequeue(item, soon()), Status::peer_lost);
    sending.join();
    EXPECT_THAT(ends.consumer->failure(), HasSubstr("threw at item 8"));
    EXPECT_THAT(ends.producer->failure(), AllOf(HasSubstr("ThrowsAt"), HasSubstr("no such?value")));
    EXPECT_EQ(ends.producer->stats().filter.threw, 1U);
    EXPECT_EQ(ends.consumer->stats().filter.threw, 1U);
}

TEST(Filter, NeedsNoRoomForWhatItLeavesOut) {
    FilteredEnds<Rows, Row> ends{asking(Above{50}, 4)};
    std::uint64_t sent = 0;
    // Until nothing moves any more, be it that a request was lost on the way and is sent again.
    while (ends.producer->enqueue({.value = 60}, Deadline::after(200ms)) == Status::ok) ++sent;
    EXPECT_EQ(ends.producer->try_enqueue({.value = 60}), Status::full);
    bool is_laid = true;
    EXPECT_EQ(ends.producer->try_enqueue({.value = 50}, is_laid), Status::ok);
    EXPECT_FALSE(is_laid);
    const std::vector<Row> batch{{.value = 1}, {.value = 2}, {.value = 99}, {.value = 3}};
    const BatchResult result = ends.producer->try_enqueue_batch(batch);
    EXPECT_EQ(result.status, Status::full);
    EXPECT_EQ(result.count, 2U);
    Row item;
    for (; sent != 0; --sent) ASSERT_EQ(take(*ends.consumer, *ends.producer, item), Status::ok);
    EXPECT_EQ(ends.producer->enqueue({.value = 99}, soon()), Status::ok);
    ASSERT_EQ(take(*ends.consumer, *ends.producer, item), Status::ok);
    EXPECT_EQ(item.value, 99U);
}

TEST(Filter, KeepsBytesOffTheWire) {
    const auto bytes_on_the_way = [](Options options) {
        FilteredEnds<Rows, Row> ends{std::move(options)};
        std::jthread taking{[&] {
            Row item;
            while (ends.consumer->dequeue(item, soon()) == Status::ok) {
            }
        }};
        enqueue_all(*ends.producer, some_rows(3, 4000));
        EXPECT_EQ(ends.producer->close(soon()), Status::ok);
        return ends.producer->stats().ring.bytes;
    };
    const std::uint64_t all = bytes_on_the_way(small());
    const std::uint64_t tenth = bytes_on_the_way(asking(Above{89}));
    EXPECT_EQ(all, 4000 * 64U);
    EXPECT_LT(tenth * 8, all);
    EXPECT_GT(tenth, 0U);
}

/// What a consumer of U hears that does not come together with a producer of P's items, whose
/// listener goes on.
template <class P, class U>
std::string refusal(Options options) {
    options.ring.capacity.reset();
    Listener listener = Listener::listen(fresh_address());
    base::Cancellation over;
    auto accepting = std::async(std::launch::async, [&] {
        return error_of([&] { (void)Producer<P>::accept(listener, soon().cancelled_by(&over)); });
    });
    const base::Error error = error_of(
        [&] { (void)Consumer<U>::connect(listener.address(), std::move(options), soon()); });
    EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
    over.request();
    EXPECT_EQ(accepting.get().code(), base::ErrorCode::cancelled);
    return error.what();
}

TEST(Filter, OfAnotherNameIsRefusedWithThoseThatThereAre) {
    EXPECT_THAT((refusal<Rows, Row>(asking(Other{}))),
                AllOf(HasSubstr("test::Other'"), HasSubstr("test::Above'"),
                      HasSubstr("test::KeyAbove'"), HasSubstr("add that one")));
}

TEST(Filter, OfAnotherNameIsToldAtTheEndThatHasConnected) {
    Listener listener = Listener::listen(fresh_address(), asking(Other{}));
    base::Cancellation over;
    auto accepting = std::async(std::launch::async, [&] {
        return error_of([&] { (void)Consumer<Row>::accept(listener, soon().cancelled_by(&over)); });
    });
    const base::Error error =
        error_of([&] { (void)Producer<Rows>::connect(listener.address(), small(), soon()); });
    over.request();
    EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
    for (const std::string& said :
         {std::string{error.what()}, std::string{accepting.get().what()}}) {
        EXPECT_THAT(said, AllOf(HasSubstr("test::Other'"), HasSubstr("test::Above'")));
    }
}

TEST(Filter, IsRefusedByAProducerThatHasNone) {
    EXPECT_THAT((refusal<Row, Row>(asking(Above{1}))),
                AllOf(HasSubstr("test::Above'"), HasSubstr("flow::Filtered")));
}

TEST(Filter, IsRefusedWhereItMakesItemsOfAnotherType) {
    EXPECT_THAT((refusal<Rows, Row>(asking(KeyOf{}))),
                AllOf(HasSubstr("makes items"), HasSubstr("test::Key'"), HasSubstr("test::Row'")));
    EXPECT_THAT((refusal<Rows, Key>(asking(Above{1}))), HasSubstr("makes items"));
    EXPECT_THAT((refusal<Rows, Key>(small())), HasSubstr("test::Key'"));
    EXPECT_THAT((refusal<Frames, Row>(asking(Front{8}))), HasSubstr("makes framed bytes"));
}

/// Another program's idea of the same filter.
struct Grown {
    std::uint64_t limit[2] = {};
    bool operator()(const Row&) const noexcept { return true; }
};

}  // namespace
}  // namespace millrace::flow

template <>
struct millrace::flow::ItemName<millrace::flow::Grown> {
    static constexpr std::string_view value = "millrace::flow::test::Above";
};

namespace millrace::flow {
namespace {

TEST(Filter, IsRefusedWhereTheObjectHasAnotherSize) {
    EXPECT_THAT((refusal<Rows, Row>(asking(Grown{}))),
                AllOf(HasSubstr("16 bytes"), HasSubstr("same definition")));
}

TEST(Filter, IsForTheConsumerToName) {
    Listener listener = Listener::listen(fresh_address(), small());
    base::Cancellation over;
    auto accepting = std::async(std::launch::async, [&] {
        try {
            (void)Consumer<Row>::accept(listener, soon().cancelled_by(&over));
        } catch (const base::Error&) {
        }
    });
    const base::Error error = error_of(
        [&] { (void)Producer<Rows>::connect(listener.address(), asking(Above{1}), soon()); });
    over.request();
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("at the consumer"));
}

TEST(Filter, IsNamedByBothEndsWhereTheyExplainThemselves) {
    FilteredEnds<Rows, Row> ends{asking(Above{50})};
    EXPECT_EQ(ends.producer->try_enqueue({.value = 1}), Status::ok);
    EXPECT_THAT(ends.producer->explain(), AllOf(HasSubstr("filter: '"), HasSubstr("test::Above'"),
                                                HasSubstr("looked at 1 items, laid 0")));
    EXPECT_THAT(ends.consumer->explain(), HasSubstr("test::Above', which the producer asks"));
    FilteredEnds<Rows, Row> plain{small()};
    EXPECT_THAT(plain.producer->explain(), HasSubstr("filter: none of the 5"));
}

TEST(Filter, OfAProducerThatLaysNothingHearsOfItsConsumersEnd) {
    for (const bool closes : {false, true}) {
        FilteredEnds<Rows, Row> ends{asking(Above{100})};
        ASSERT_EQ(ends.producer->try_enqueue({.value = 1}), Status::ok);
        if (closes) ends.consumer->close();
        ends.consumer.reset();
        const Deadline deadline = soon();
        Status status = Status::ok;
        while (status == Status::ok && !deadline.expired()) {
            status = ends.producer->try_enqueue({.value = 1});
        }
        EXPECT_EQ(status, closes ? Status::closed : Status::peer_lost);
    }
}

TEST(Filter, GoesByADesignThatIsChosenAtRunTime) {
    const auto named = ring::parse_design("push1/watermark/pull+dynamic");
    Listener listener = Listener::listen(fresh_address(), asking(KeyAbove{49}));
    auto connecting = std::async(std::launch::async, [&] {
        return AnyProducer<Rows>::connect(named.design, listener.address(), small(), soon());
    });
    auto consumer = AnyConsumer<Key>::accept(named.design, listener, soon());
    auto producer = connecting.get();
    const std::vector<Row> rows = some_rows(9, 300);
    std::jthread sending{[&] {
        enqueue_all(producer, rows);
        ASSERT_EQ(producer.close(soon()), Status::ok);
    }};
    for (const Key& expected : kept_by<Key>(rows, KeyAbove{49})) {
        Key item;
        ASSERT_EQ(consumer.dequeue(item, soon()), Status::ok);
        EXPECT_EQ(item, expected);
    }
    sending.join();
    EXPECT_EQ(producer.stats().filter.looked, rows.size());
}

TEST(FilterOfAFanIn, IsAskedOfEachProducer) {
    FanInOptions options;
    options.queue = asking(Above{49});
    options.expected = 2;
    auto in = FanIn<Row>::listen(fresh_address(), options);
    std::vector<std::future<void>> sending;
    for (std::uint64_t seed = 1; seed != 3; ++seed) {
        sending.push_back(std::async(std::launch::async, [&, seed] {
            auto producer = Producer<Rows>::connect(in.address(), small(), soon());
            enqueue_all(producer, some_rows(seed, 400));
            ASSERT_EQ(producer.close(soon()), Status::ok);
        }));
    }
    std::vector<std::uint64_t> got;
    Row item;
    Status status;
    while ((status = in.dequeue(item, soon())) == Status::ok) got.push_back(item.key);
    EXPECT_EQ(status, Status::closed);
    for (auto& one : sending) one.get();
    std::vector<std::uint64_t> expected;
    for (std::uint64_t seed = 1; seed != 3; ++seed) {
        for (const Row& row : kept_by<Row>(some_rows(seed, 400), Above{49})) {
            expected.push_back(row.key);
        }
    }
    EXPECT_THAT(got, ::testing::UnorderedElementsAreArray(expected));
}

// ---- one producer, consumers that share the items

struct FilteredFan {
    explicit FilteredFan(const std::vector<Filter>& filters, FanOutOptions options = {}) {
        std::vector<Listener> listeners;
        std::vector<connect::Address> addresses;
        for (const Filter& filter : filters) {
            listeners.push_back(Listener::listen(fresh_address(), asking(filter)));
            addresses.push_back(listeners.back().address());
        }
        options.queue.ring.capacity = 32;
        auto connecting = std::async(
            std::launch::async, [&] { return FanOut<Rows>::connect(addresses, options, soon()); });
        for (Listener& listener : listeners) {
            consumers.push_back(Consumer<Row>::accept(listener, soon()));
        }
        out.emplace(connecting.get());
    }
    /// Everything that comes to each, until it is closed.
    std::vector<std::future<std::vector<Row>>> take_all() {
        std::vector<std::future<std::vector<Row>>> taking;
        for (Consumer<Row>& consumer : consumers) {
            taking.push_back(std::async(std::launch::async, [&consumer] {
                std::vector<Row> rows;
                Row row;
                while (consumer.dequeue(row, soon()) == Status::ok) rows.push_back(row);
                return rows;
            }));
        }
        return taking;
    }
    std::vector<Consumer<Row>> consumers;
    std::optional<FanOut<Rows>> out;
};

TEST(FilterOfAFanOut, SendsAnItemToOneWhoWantsIt) {
    for (const Routing routing : {Routing::in_turn, Routing::whoever_has_room}) {
        FilteredFan fan{{Above{59}, Below{20}, Above{79}}, {.routing = routing}};
        auto taking = fan.take_all();
        const std::vector<Row> rows = some_rows(4, 3000);
        for (const Row& row : rows) ASSERT_EQ(fan.out->enqueue(row, soon()), Status::ok);
        ASSERT_EQ(fan.out->close(soon()), Status::ok);
        std::map<std::uint64_t, int> times;
        std::vector<std::size_t> counts;
        for (auto& one : taking) {
            const std::vector<Row> got = one.get();
            counts.push_back(got.size());
            for (const Row& row : got) {
                ++times[row.key];
                const bool is_low = row.value < 20;
                EXPECT_EQ(is_low, counts.size() == 2) << row.value;
                EXPECT_TRUE(is_low || row.value > (counts.size() == 1 ? 59U : 79U)) << row.value;
            }
        }
        for (const Row& row : rows) {
            ASSERT_EQ(times[row.key], row.value > 59 || row.value < 20 ? 1 : 0) << row.value;
        }
        EXPECT_GT(counts[0], 0U);
        EXPECT_GT(counts[2], 0U);
    }
}

TEST(FilterOfAFanOut, IsAskedOnceWhereAllAskForTheSame) {
    FilteredFan fan{{Above{89}, Above{89}, Above{89}}};
    auto taking = fan.take_all();
    const std::vector<Row> rows = some_rows(5, 2000);
    for (const Row& row : rows) {
        ASSERT_EQ(fan.out->enqueue(row, soon()), Status::ok);
    }
    ASSERT_EQ(fan.out->close(soon()), Status::ok);
    std::size_t got = 0;
    for (auto& one : taking) got += one.get().size();
    EXPECT_EQ(got, kept_by<Row>(rows, Above{89}).size());
    std::uint64_t looked = 0;
    for (std::size_t i = 0; i != 3; ++i) looked += fan.out->to(i).stats().filter.looked;
    EXPECT_EQ(looked, rows.size());
}

TEST(FilterOfAFanOut, LeavesOutWhatIsOfItsKeys) {
    FilteredFan fan{{Above{49}, Filter{}}};
    auto taking = fan.take_all();
    const std::vector<Row> rows = some_rows(6, 2000);
    for (const Row& row : rows) {
        ASSERT_EQ(fan.out->enqueue_keyed(row.key, row, soon()), Status::ok);
    }
    ASSERT_EQ(fan.out->close(soon()), Status::ok);
    std::vector<Row> expected[2];
    for (const Row& row : rows) {
        const std::size_t part = partition_of(row.key, 2);
        if (part == 1 || row.value > 49) expected[part].push_back(row);
    }
    EXPECT_EQ(taking[0].get(), expected[0]);
    EXPECT_EQ(taking[1].get(), expected[1]);
}

TEST(FilterOfAFanOut, ThatThrowsTakesItsConsumerOut) {
    FilteredFan fan{{ThrowsAt{6}, Filter{}}, {.routing = Routing::in_turn}};
    auto taking = fan.take_all();
    for (std::uint32_t i = 0; i != 100; ++i) {
        ASSERT_EQ(fan.out->enqueue({.key = i, .value = i}, soon()), Status::ok);
    }
    EXPECT_THAT(fan.out->to(0).failure(), HasSubstr("no such?value"));
    EXPECT_EQ(fan.out->look_around(), 1U);
    ASSERT_EQ(fan.out->close(soon()), Status::ok);
    const std::size_t stopped = taking[0].get().size();
    EXPECT_EQ(stopped + taking[1].get().size(), 100U);
    EXPECT_EQ(stopped, 3U);
    EXPECT_THAT(fan.consumers[0].failure(), HasSubstr("threw at item"));
}

// ---- one producer, every item to every consumer

struct FilteredCopies {
    explicit FilteredCopies(const std::vector<Filter>& filters, ReplicatorOptions options = {},
                            std::uint64_t capacity = 32) {
        std::vector<Listener> listeners;
        std::vector<connect::Address> addresses;
        for (const Filter& filter : filters) {
            listeners.push_back(Listener::listen(fresh_address(), asking(filter, capacity)));
            addresses.push_back(listeners.back().address());
        }
        options.queue.ring.capacity = capacity;
        auto connecting = std::async(std::launch::async, [&] {
            return Replicator<Rows>::connect(addresses, options, soon());
        });
        for (Listener& listener : listeners) {
            consumers.push_back(Consumer<Row>::accept(listener, soon()));
        }
        producer.emplace(connecting.get());
    }
    std::vector<Consumer<Row>> consumers;
    std::optional<Replicator<Rows>> producer;
};

TEST(FilterOfAReplicator, IsEachConsumersOwn) {
    const std::vector<Row> rows = some_rows(8, 2000);
    FilteredCopies copies{{Above{89}, Filter{}, Below{50}}, {.quorum = 3}};
    std::vector<std::future<std::vector<Row>>> taking;
    for (Consumer<Row>& consumer : copies.consumers) {
        taking.push_back(std::async(std::launch::async, [&consumer] {
            std::vector<Row> got;
            Row row;
            while (consumer.dequeue(row, soon()) == Status::ok) got.push_back(row);
            return got;
        }));
    }
    for (const Row& row : rows) ASSERT_EQ(copies.producer->enqueue(row, soon()), Status::ok);
    ASSERT_EQ(copies.producer->close(soon()), Status::ok);
    EXPECT_EQ(taking[0].get(), kept_by<Row>(rows, Above{89}));
    EXPECT_EQ(taking[1].get(), rows);
    EXPECT_EQ(taking[2].get(), kept_by<Row>(rows, Below{50}));
    EXPECT_EQ(copies.producer->stats().items, rows.size());
}

TEST(FilterOfAReplicator, LetsOneThatIsFullHaveWhatItDoesNotWant) {
    FilteredCopies copies{{Above{50}, Filter{}}, {.quorum = 2}, 4};
    Replicator<Rows>& producer = *copies.producer;
    Row item;
    std::uint64_t sent = 0;
    while (producer.enqueue({.value = 60}, Deadline::after(200ms)) == Status::ok) ++sent;
    // The one that takes everything has room again, the other one has none.
    for (std::uint64_t i = 0; i != sent; ++i) {
        ASSERT_EQ(take(copies.consumers[1], producer, item), Status::ok);
    }
    EXPECT_EQ(producer.enqueue({.value = 60}, Deadline::after(10ms)), Status::timed_out);
    ASSERT_EQ(producer.enqueue({.value = 1}, soon()), Status::ok);
    ASSERT_EQ(take(copies.consumers[1], producer, item), Status::ok);
    EXPECT_EQ(item.value, 1U);
    for (std::uint64_t i = 0; i != sent; ++i) {
        ASSERT_EQ(take(copies.consumers[0], producer, item), Status::ok);
        EXPECT_EQ(item.value, 60U);
    }
    ASSERT_EQ(producer.enqueue({.value = 61}, soon()), Status::ok);
    ASSERT_EQ(take(copies.consumers[0], producer, item), Status::ok);
    EXPECT_EQ(item.value, 61U);
}

TEST(FilterOfAReplicator, ThatThrowsTakesItsConsumerOutOfTheQuorum) {
    FilteredCopies copies{{ThrowsAt{7}, Filter{}}, {.quorum = 2}};
    std::vector<Status> left;
    copies.producer->on_change([&](const Replica&, Status how) { left.push_back(how); });
    for (std::uint32_t value = 0; value != 7; ++value) {
        ASSERT_EQ(copies.producer->enqueue({.value = value}, soon()), Status::ok);
    }
    EXPECT_EQ(copies.producer->try_enqueue({.value = 7}), Status::peer_lost);
    EXPECT_THAT(left, ::testing::ElementsAre(Status::peer_lost));
    EXPECT_EQ(copies.producer->try_enqueue({.value = 8}), Status::peer_lost);
    // The others are not in doubt: nobody got the item, as there are too few.
    EXPECT_EQ(copies.producer->stats().items, 7U);
}

TEST(FilterOfAReplicator, ThatSkipsKeepsItsConsumer) {
    FilteredCopies copies{{Filter{ThrowsAt{7}, WhenThrown::skip}, Filter{}}, {.quorum = 2}};
    for (std::uint32_t value = 0; value != 10; ++value) {
        ASSERT_EQ(copies.producer->enqueue({.value = value}, soon()), Status::ok);
    }
    Row item;
    for (std::uint32_t value = 0; value != 10; ++value) {
        ASSERT_EQ(take(copies.consumers[1], *copies.producer, item), Status::ok);
        EXPECT_EQ(item.value, value);
        if (value == 7) continue;
        ASSERT_EQ(take(copies.consumers[0], *copies.producer, item), Status::ok);
        EXPECT_EQ(item.value, value);
    }
    EXPECT_EQ(copies.producer->consumers(), 2U);
}

// ---- the death of either end

MILLRACE_CHILD(filtering_producer) {
    auto producer = Producer<Rows>::connect(arguments[0], {}, soon());
    for (std::uint64_t key = 0;; ++key) {
        const Row row{.key = key, .value = static_cast<std::uint32_t>(key % 100)};
        if (producer.enqueue(row, soon()) != Status::ok) return 1;
        if (key == 50'000) say("on its way");
    }
}
MILLRACE_CHILD(filtering_consumer) {
    auto consumer = Consumer<Row>::connect(arguments[0], {.filter = Above{89}}, soon());
    Row row;
    while (consumer.dequeue(row, soon()) == Status::ok) {
    }
    return 1;
}

TEST(FilterAndDeath, OfTheProducerLeavesAPrefixOfWhatPasses) {
    Listener listener = Listener::listen(fresh_address(), asking(Above{89}, 64));
    ChildProcess child =
        ChildProcess::start("filtering_producer", {listener.address().to_string()});
    auto consumer = Consumer<Row>::accept(listener, soon());
    Row row;
    std::uint64_t count = 0;
    const auto take_one = [&] {
        const Status status = consumer.dequeue(row, soon());
        if (status == Status::ok) {
            EXPECT_EQ(row.key, count / 10 * 100 + 90 + count % 10);
            ++count;
        }
        return status;
    };
    for (int i = 0; i != 6000; ++i) ASSERT_EQ(take_one(), Status::ok);
    ASSERT_EQ(child.read_line(), "on its way");
    child.kill();
    Status status;
    while ((status = take_one()) == Status::ok) {
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_EQ(consumer.stats().filter.threw, 0U);
}

TEST(FilterAndDeath, OfTheConsumerIsHeardOfByAProducerThatLeavesOutMost) {
    Listener listener = Listener::listen(fresh_address(), small(64));
    ChildProcess child =
        ChildProcess::start("filtering_consumer", {listener.address().to_string()});
    auto producer = Producer<Rows>::accept(listener, soon());
    const Deadline deadline = soon();
    Status status = Status::ok;
    for (std::uint64_t key = 0; status == Status::ok && !deadline.expired(); ++key) {
        if (key == 10'000) child.kill();
        status = producer.enqueue(
            {.key = key, .value = static_cast<std::uint32_t>(key % 1000 == 0 ? 99 : 1)}, soon());
    }
    EXPECT_EQ(status, Status::peer_lost);
}

}  // namespace
}  // namespace millrace::flow
