// Calls for several items at once, where the flows differ in what they do for one.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/ring/detail/first_position.hpp"

namespace millrace::flow::test {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using ring::DataFlow;
using ring::SpaceNotification;
using ring::TransferNotification;

struct Note {
    std::uint64_t number = 0;
    std::uint32_t twice = 0;

    static Note make(std::uint64_t number) {
        return {number, static_cast<std::uint32_t>(2 * number)};
    }
    [[nodiscard]] bool is(std::uint64_t expected) const {
        return number == expected && twice == static_cast<std::uint32_t>(2 * expected);
    }
};

template <ring::Design D>
using Of = std::integral_constant<ring::Design, D>;
template <DataFlow D, TransferNotification T, SpaceNotification S,
          ring::Batching B = ring::Batching::none, ring::Mover M = ring::Mover::passive>
using Point = Of<ring::Design{D, T, S, B, M}>;

template <class D>
class FlowQueueByBatchCalls : public testing::Test {};
using Points =
    testing::Types<Of<ring::design_1>, Of<ring::with(ring::design_1, ring::Batching::fixed)>,
                   Of<ring::with(ring::design_2, ring::Batching::dynamic, ring::Mover::active)>,
                   Point<DataFlow::push1, TransferNotification::push, SpaceNotification::push>,
                   Point<DataFlow::push1, TransferNotification::immediate, SpaceNotification::push>,
                   Point<DataFlow::push2, TransferNotification::event, SpaceNotification::push2>,
                   Point<DataFlow::push2, TransferNotification::event, SpaceNotification::push,
                         ring::Batching::fixed>,
                   Point<DataFlow::pull, TransferNotification::watermark, SpaceNotification::push>,
                   Point<DataFlow::pull, TransferNotification::watermark, SpaceNotification::push,
                         ring::Batching::fixed>>;
TYPED_TEST_SUITE(FlowQueueByBatchCalls, Points);

TYPED_TEST(FlowQueueByBatchCalls, KeepsOrderForBatchesOfAnySizeWhereRingAndCountersWrap) {
    const ring::detail::FirstPosition begins{~std::uint64_t{0} - 999};
    Options options{.ring = {.capacity = 12}};
    if (TypeParam::value.batching == ring::Batching::fixed) options.ring.batch = 4;
    Ends<Note, TypeParam::value> ends{options};
    constexpr std::uint64_t items = 2000;
    std::mt19937 random{20261121};
    std::uniform_int_distribution<std::size_t> size{1, 15};
    std::uint64_t put = 0;
    std::uint64_t taken = 0;
    const Deadline deadline = Deadline::after(40s);
    while (taken < items && !deadline.expired()) {
        std::vector<Note> batch;
        for (std::size_t i = size(random); i != 0 && put + batch.size() < items; --i) {
            batch.push_back(Note::make(put + batch.size()));
        }
        const BatchResult in = ends.producer().try_enqueue_batch(batch);
        ASSERT_TRUE(in.status == Status::full ||
                    (in.status == Status::ok && in.count == batch.size()));
        put += in.count;
        (void)ends.producer().flush(Deadline::now());
        std::vector<Note> into(size(random));
        const BatchResult out = ends.consumer().try_dequeue_batch(into);
        ASSERT_TRUE(out.status == Status::empty ||
                    (out.status == Status::ok && out.count == into.size()));
        for (const Note& note : std::span{into}.first(out.count)) ASSERT_TRUE(note.is(taken++));
    }
    EXPECT_EQ(taken, items);
    Note none;
    EXPECT_EQ(ends.consumer().try_dequeue(none), Status::empty);
    EXPECT_EQ(ends.consumer().stats().items, items);
    EXPECT_EQ(ends.producer().stats().items, items);
}

}  // namespace
}  // namespace millrace::flow::test
