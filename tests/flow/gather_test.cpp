// Scatter/gather: items that a producer sends from where they lie in the program's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/base/error.hpp"

namespace millrace::flow::test {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using ring::Batching;
using ring::DataFlow;
using ring::Mover;
using ring::SpaceNotification;
using ring::TransferNotification;

/// Its slot has a mark where items are marked, and padding before that.
struct Odd {
    std::uint32_t words[5];

    static Odd make(std::uint64_t number) {
        Odd odd;
        for (std::uint32_t i = 0; i < 5; ++i) {
            odd.words[i] = static_cast<std::uint32_t>(number * 7 + i);
        }
        return odd;
    }
    [[nodiscard]] bool is(std::uint64_t number) const {
        const Odd right = make(number);
        return std::ranges::equal(words, right.words);
    }
};

template <ring::Design D>
using Of = std::integral_constant<ring::Design, D>;
template <TransferNotification T, SpaceNotification S, Batching B = Batching::none,
          Mover M = Mover::passive>
using Push1 = Of<ring::Design{DataFlow::push1, T, S, B, M}>;

template <class D>
class GatheringProducer : public testing::Test {
  protected:
    using Queue = Ends<Odd, D::value>;
};
using GatherPoints = testing::Types<
    Of<ring::design_1>, Of<ring::design_2>,
    Push1<TransferNotification::watermark, SpaceNotification::push2>,
    Push1<TransferNotification::push, SpaceNotification::push>,
    Push1<TransferNotification::pull, SpaceNotification::pull>,
    Push1<TransferNotification::immediate, SpaceNotification::push>,
    Push1<TransferNotification::watermark, SpaceNotification::pull, Batching::fixed>,
    Push1<TransferNotification::watermark, SpaceNotification::push, Batching::dynamic>,
    Push1<TransferNotification::watermark, SpaceNotification::push, Batching::none, Mover::active>>;
TYPED_TEST_SUITE(GatheringProducer, GatherPoints);

/// Where items lie: `count` places, far from each other and in no order.
class Places {
  public:
    Places(std::size_t count, std::uint64_t seed) : memory_(count * 3), order_(count) {
        for (std::size_t i = 0; i < count; ++i) order_[i] = i;
        std::ranges::shuffle(order_, std::mt19937_64{seed});
    }
    [[nodiscard]] Odd& operator[](std::size_t i) {
        return memory_[order_[i % order_.size()] * 3 + 1];
    }
    [[nodiscard]] std::span<std::byte> bytes() {
        return std::as_writable_bytes(std::span{memory_});
    }

  private:
    std::vector<Odd> memory_;
    std::vector<std::size_t> order_;
};

// Every place is used again as soon as released() allows it, and scribbled over before.
TYPED_TEST(GatheringProducer, KeepsOrderAndContentWhileItsMemoryIsUsedAgain) {
    Options options{.ring = {.capacity = 37}, .gather = 8};
    if (TypeParam::value.batching == Batching::fixed) options.ring.batch = 4;
    typename TestFixture::Queue ends{options};
    auto& producer = ends.producer();
    constexpr std::size_t places_count = 64;
    Places places{places_count, 3};
    const verbs::MemoryRegion memory = producer.register_memory(places.bytes());
    constexpr std::uint64_t items = 3000;
    std::mt19937_64 random{4};
    std::uint64_t put = 0;
    std::uint64_t taken = 0;
    std::uint64_t released = 0;
    std::deque<Odd> elsewhere;  // some items lie in no registered memory, and are copied
    const Deadline deadline = Deadline::after(30s);
    while (taken < items) {
        ASSERT_FALSE(deadline.expired()) << put << " put, " << taken << " taken";
        for (const std::uint64_t now = producer.released(); released < now; ++released) {
            places[released] = Odd{};
        }
        std::vector<const Odd*> batch;
        const std::uint64_t size = random() % 20;
        while (batch.size() < size &&
               put + batch.size() < std::min(items, released + places_count)) {
            const std::uint64_t number = put + batch.size();
            places[number] = Odd::make(number);
            batch.push_back(&places[number]);
            if (random() % 16 == 0) batch.back() = &elsewhere.emplace_back(Odd::make(number));
        }
        const BatchResult in = producer.try_enqueue_gather(memory, batch);
        ASSERT_TRUE(in.status == Status::full ||
                    (in.status == Status::ok && in.count == batch.size()))
            << name_of(in.status);
        put += in.count;
        if (random() % 4 == 0 && put < items) {  // by the way that every item can go
            ASSERT_LE(put, released + places_count);
            if (put < released + places_count &&
                producer.try_enqueue(Odd::make(put)) == Status::ok) {
                ++put;
            }
        }
        (void)producer.flush(Deadline::now());
        for (std::uint64_t i = random() % 24; i != 0; --i) {
            Odd item;
            const Status status = ends.consumer().try_dequeue(item);
            if (status == Status::empty) break;
            ASSERT_EQ(status, Status::ok);
            ASSERT_TRUE(item.is(taken)) << taken;
            ++taken;
        }
    }
    EXPECT_EQ(producer.flush(Deadline::after(40s)), Status::ok);
    EXPECT_EQ(producer.released(), items);
    EXPECT_EQ(producer.stats().items, items);
}

class Gathering : public testing::Test {
  protected:
    static constexpr std::uint32_t gather = 8;
    static constexpr std::uint64_t capacity = 64;

    void put(std::uint64_t first, std::uint64_t count) {
        std::vector<const Odd*> batch;
        for (std::uint64_t i = first; i < first + count; ++i) {
            places_[i] = Odd::make(i);
            batch.push_back(&places_[i]);
        }
        const BatchResult in = ends_.producer().try_enqueue_gather(memory_, batch);
        ASSERT_EQ(in.status, Status::ok);
        ASSERT_EQ(in.count, count);
    }
    void take(std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t i = first; i < first + count; ++i) {
            Odd item;
            ASSERT_EQ(ends_.take(item), Status::ok);
            ASSERT_TRUE(item.is(i)) << i;
        }
    }
    [[nodiscard]] std::uint64_t writes() { return ends_.producer().stats().ring.data_writes; }

    Ends<Odd, ring::design_2> ends_{Options{.ring = {.capacity = capacity}, .gather = gather}};
    Places places_{1024, 5};
    verbs::MemoryRegion memory_ = ends_.producer().register_memory(places_.bytes());
};

TEST_F(Gathering, SendsItemsThatLieApartInOneWriteAndInTwoWhereTheRingWraps) {
    if (!ends_.in_order()) GTEST_SKIP() << "this device may reorder the bytes of a WRITE";
    std::uint64_t number = 0;
    for (int batch = 0; batch < 7; ++batch) {  // 56 of 64
        const std::uint64_t before = writes();
        put(number, gather);
        EXPECT_EQ(writes() - before, 1U) << batch;
        take(number, gather);
        number += gather;
    }
    put(number, 4);
    take(number, 4);
    number += 4;
    const std::uint64_t before = writes();
    put(number, gather);  // 4 fit before the end
    EXPECT_EQ(writes() - before, 2U);
    take(number, gather);
}

TEST_F(Gathering, DoesNotReadAnItemAgainOnceItIsReleased) {
    std::uint64_t number = 0;
    for (int round = 0; round < 40; ++round) {
        put(number, gather);
        ASSERT_EQ(ends_.producer().flush(Deadline::after(40s)), Status::ok);
        ASSERT_EQ(ends_.producer().released(), number + gather);
        for (std::uint64_t i = number; i < number + gather; ++i) places_[i] = Odd{};
        take(number, gather);
        number += gather;
    }
}

// What finds the consumer's ring full is copied, waits, and goes later as all items do.
TEST_F(Gathering, CopiesWhatFindsNoSpaceAtTheConsumer) {
    std::uint64_t number = 0;
    while (number < 2 * capacity) {
        places_[number] = Odd::make(number);
        const Odd* const item = &places_[number];
        const BatchResult in = ends_.producer().try_enqueue_gather(memory_, {&item, 1});
        if (in.count == 0) {
            EXPECT_EQ(in.status, Status::full);
            break;
        }
        ++number;
    }
    EXPECT_GE(number, capacity);
    take(0, number);
}

TEST(GatheringSetup, RefusesMoreThanOneWriteCanHave) {
    for (const std::uint32_t gather : {0U, 17U, ~std::uint32_t{0}}) {
        try {
            (void)Producer<Odd>::connect(unique_address(), Options{.gather = gather},
                                         Deadline::after(1s));
            ADD_FAILURE() << gather;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << error.what();
            EXPECT_NE(std::string_view{error.what()}.find("gather = "), std::string_view::npos);
        }
    }
}

TEST(GatheringSetup, RefusesMoreThanTheDeviceHasSlicesFor) {
    const Options most = with_endpoint({.gather = 16});
    if (!most.endpoint->context().is_soft()) GTEST_SKIP() << "30 slices are the soft device's";
    try {
        const Listener listener = Listener::listen(unique_address(), with_endpoint({}));
        (void)Producer<Odd>::connect(listener.address(), most, Deadline::after(40s));
        ADD_FAILURE() << "a queue pair with more slices than the device has";
    } catch (const base::Error& error) {
        EXPECT_NE(std::string_view{error.what()}.find("slices per work request"),
                  std::string_view::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace millrace::flow::test
