// Queues whose Get depends on several Puts.
#include "millrace/flow/aggregate.hpp"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "crowd.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"

namespace millrace::flow {
namespace {

using namespace test;

struct Sale {
    std::uint32_t article = 0;
    std::int32_t pieces = 0;
    std::int64_t amount = 0;
};

template <class T>
struct Ends {
    explicit Ends(const Options& options = small(64)) {
        Listener listener = Listener::listen(fresh_address(), options);
        auto connecting = std::async(std::launch::async, [&] {
            return Producer<T>::connect(listener.address(), options, soon());
        });
        consumer.emplace(Consumer<T>::accept(listener, soon()));
        producer.emplace(connecting.get());
    }
    std::optional<Consumer<T>> consumer;
    std::optional<Producer<T>> producer;
};

TEST(Reduce, AddsUpWhatIsThere) {
    Ends<Sale> ends;
    for (int i = 1; i <= 10; ++i) {
        ASSERT_EQ(ends.producer->enqueue({.pieces = i}, soon()), Status::ok);
    }
    ASSERT_EQ(ends.producer->flush(soon()), Status::ok);
    int pieces = 100;
    const auto add = [](int& sum, const Sale& sale) { sum += sale.pieces; };
    BatchResult result = reduce(*ends.consumer, pieces, add, 4);
    EXPECT_EQ(result.count, 4U);
    EXPECT_EQ(result.status, Status::ok);
    EXPECT_EQ(pieces, 110);
    result = reduce(*ends.consumer, pieces, add);
    EXPECT_EQ(result.count, 6U);
    EXPECT_EQ(result.status, Status::empty);
    EXPECT_EQ(pieces, 155);
    EXPECT_EQ(reduce(*ends.consumer, pieces, add).count, 0U);
    ASSERT_EQ(ends.producer->close(soon()), Status::ok);
    while ((result = reduce(*ends.consumer, pieces, add)).status == Status::empty) {
    }
    EXPECT_EQ(result.status, Status::closed);
}

TEST(Reduce, LeavesAnItemInFrontWhoseFoldThrew) {
    Ends<Sale> ends;
    ASSERT_EQ(ends.producer->enqueue({.pieces = 1}, soon()), Status::ok);
    ASSERT_EQ(ends.producer->flush(soon()), Status::ok);
    int calls = 0;
    EXPECT_THROW((void)reduce(*ends.consumer, calls,
                              [](int&, const Sale&) { throw std::runtime_error{"no"}; }),
                 std::runtime_error);
    EXPECT_EQ(reduce(*ends.consumer, calls, [](int& n, const Sale&) { ++n; }).count, 1U);
}

TEST(Reduce, WorksOnFramesAndOnManyProducers) {
    auto fan_in = FanIn<Bytes>::listen(fresh_address(), {.expected = 3});
    const std::string address = fan_in.address().to_string();
    std::vector<std::jthread> threads;
    for (int p = 0; p != 3; ++p) {
        threads.emplace_back([&] {
            auto end = Producer<Bytes>::connect(address, {}, soon());
            const std::vector<std::byte> item(7);
            for (int i = 0; i != 100; ++i) ASSERT_EQ(end.enqueue(item, soon()), Status::ok);
            ASSERT_EQ(end.close(soon()), Status::ok);
        });
    }
    std::size_t bytes = 0;
    const Deadline deadline = soon();
    while (!deadline.expired()) {
        const BatchResult result =
            reduce(fan_in, bytes, [](std::size_t& sum, auto item) { sum += item.size(); });
        if (result.status == Status::closed) break;
    }
    EXPECT_EQ(bytes, 3 * 100 * 7U);
}

TEST(TakeLast, PassesOverTheOthers) {
    Ends<Sale> ends;
    Sale sale;
    std::size_t passed_over = 99;
    EXPECT_EQ(take_last(*ends.consumer, sale, passed_over), Status::empty);
    EXPECT_EQ(passed_over, 0U);
    for (int i = 1; i <= 5; ++i) {
        ASSERT_EQ(ends.producer->enqueue({.pieces = i}, soon()), Status::ok);
    }
    ASSERT_EQ(ends.producer->flush(soon()), Status::ok);
    ASSERT_EQ(take_last(*ends.consumer, sale, passed_over), Status::ok);
    EXPECT_EQ(sale.pieces, 5);
    EXPECT_EQ(passed_over, 4U);
    EXPECT_EQ(take_last(*ends.consumer, sale, passed_over), Status::empty);
}

struct AddPieces {
    bool operator()(Sale& waiting, const Sale& sale) const {
        if (waiting.article != sale.article) return false;
        waiting.pieces += sale.pieces;
        waiting.amount += sale.amount;
        return true;
    }
};

TEST(CombiningProducer, IsNeverFullAndLosesNothing) {
    Ends<Sale> ends{small(4)};
    CombiningProducer<Sale, AddPieces> producer{std::move(*ends.producer)};
    constexpr int count = 1000;
    for (int i = 0; i != count; ++i) {
        ASSERT_EQ(producer.try_enqueue({.article = 1, .pieces = 1, .amount = 2}), Status::ok);
    }
    EXPECT_TRUE(producer.is_waiting());
    EXPECT_GT(producer.combined(), 900U);
    EXPECT_EQ(producer.try_send(), Status::full);
    Sale sum;
    const auto add = [](Sale& all, const Sale& sale) {
        all.pieces += sale.pieces;
        all.amount += sale.amount;
    };
    auto closing = std::async(std::launch::async, [&] { return producer.close(soon()); });
    std::size_t items = 0;
    const Deadline deadline = soon();
    while (!deadline.expired()) {
        const BatchResult result = reduce(*ends.consumer, sum, add);
        items += result.count;
        if (result.status == Status::closed) break;
    }
    EXPECT_EQ(closing.get(), Status::ok);
    EXPECT_EQ(sum.pieces, count);
    EXPECT_EQ(sum.amount, 2 * count);
    EXPECT_EQ(items, count - producer.combined());
}

TEST(CombiningProducer, IsFullWhereTwoItemsCannotBeOne) {
    Ends<Sale> ends{small(4)};
    CombiningProducer<Sale, AddPieces> producer{std::move(*ends.producer)};
    // Until what waits has to wait.
    do {
        while (!producer.is_waiting()) {
            ASSERT_EQ(producer.try_enqueue({.article = 1, .pieces = 1}), Status::ok);
        }
    } while (producer.flush(Deadline::after(10ms)) != Status::timed_out || !producer.is_waiting());
    EXPECT_EQ(producer.try_enqueue({.article = 2, .pieces = 5}), Status::full);
    EXPECT_EQ(producer.enqueue({.article = 2, .pieces = 5}, Deadline::after(10ms)),
              Status::timed_out);
    auto taking = std::async(std::launch::async, [&] {
        int pieces = 0;
        Sale sale;
        while (ends.consumer->dequeue(sale, soon()) == Status::ok) {
            if (sale.article == 2) pieces += sale.pieces;
        }
        return pieces;
    });
    EXPECT_EQ(producer.enqueue({.article = 2, .pieces = 5}, soon()), Status::ok);
    EXPECT_EQ(producer.close(soon()), Status::ok);
    EXPECT_EQ(taking.get(), 5) << "neither lost nor doubled by the calls that answered otherwise";
}

}  // namespace
}  // namespace millrace::flow
