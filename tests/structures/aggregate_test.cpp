// Queues whose Get depends on several Puts.
#include "millrace/flow/aggregate.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "crowd.hpp"
#include "millrace/flow/fan_in.hpp"

namespace millrace::flow {
namespace {

using namespace test;

struct Sale {
    std::uint32_t article = 0;
    std::int32_t pieces = 0;
    std::int64_t amount = 0;
};

TEST(Reduce, AddsUpWhatIsThere) {
    QueueEnds<Sale> ends;
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
    QueueEnds<Sale> ends;
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
    QueueEnds<Sale> ends;
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

}  // namespace
}  // namespace millrace::flow
