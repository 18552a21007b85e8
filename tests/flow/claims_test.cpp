// Places that were claimed or peeked at, and other calls that came between: what is gone is neither
// sent nor given back a second time, and the call says so.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/base/log.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

Deadline soon() { return Deadline::after(40s); }

struct Item {
    std::uint64_t number;
    std::uint64_t more[7];
};

template <class Design>
class Claims : public testing::Test {
  protected:
    static constexpr ring::Design design = Design::value;
    static constexpr std::uint64_t capacity = 4;

    /// A pull design's waits until the consumer, which is this thread's, has taken everything.
    void flush() {
        if (design.data == ring::DataFlow::pull) return;
        ASSERT_EQ(ends.producer().flush(soon()), Status::ok);
    }
    /// Items of so many numbers go through, in their order.
    void pass(std::uint64_t count) {
        for (; count != 0; --count) {
            ASSERT_EQ(ends.producer().enqueue({next, {}}, soon()), Status::ok);
            expect(next++);
        }
    }
    void expect(std::uint64_t number) {
        Item item{};
        ASSERT_EQ(ends.take(item), Status::ok);
        ASSERT_EQ(item.number, number);
    }
    void expect_nothing() {
        Item item{};
        for (int look = 0; look != 100; ++look) {
            ASSERT_EQ(ends.consumer().try_dequeue(item), Status::empty);
        }
    }

    test::Ends<Item, design> ends{Options{.ring = {.capacity = capacity}}};
    std::uint64_t next = 0;
};

template <ring::Design D>
struct Of {
    static constexpr ring::Design value = D;
};
constexpr ring::Design sent{.data = ring::DataFlow::push2,
                            .transfer = ring::TransferNotification::event,
                            .space = ring::SpaceNotification::push};
constexpr ring::Design pulled{.data = ring::DataFlow::pull,
                              .transfer = ring::TransferNotification::push,
                              .space = ring::SpaceNotification::push};
constexpr ring::Design immediate{.data = ring::DataFlow::push1,
                                 .transfer = ring::TransferNotification::immediate,
                                 .space = ring::SpaceNotification::push};
using Designs =
    testing::Types<Of<ring::design_1>, Of<ring::design_2>, Of<sent>, Of<pulled>, Of<immediate>,
                   Of<ring::with(ring::design_2, ring::Batching::dynamic)>,
                   Of<ring::with(ring::design_2, ring::Batching::none, ring::Mover::active)>>;
TYPED_TEST_SUITE(Claims, Designs);

TYPED_TEST(Claims, AreGoneWhenAnotherItemWasEnqueuedInTheirPlace) {
    auto& producer = this->ends.producer();
    for (int lap = 0; lap != 5; ++lap) {
        Item* place = nullptr;
        ASSERT_EQ(producer.claim(place, soon()), Status::ok);
        place->number = 999;
        const std::uint64_t first = this->next;
        while (producer.try_enqueue({this->next, {}}) == Status::ok) ++this->next;
        ASSERT_GE(this->next, first + this->capacity);
        EXPECT_EQ(producer.commit(), Status::empty);
        for (std::uint64_t number = first; number != this->next; ++number) this->expect(number);
        this->expect_nothing();
        this->pass(7);
    }
}

TYPED_TEST(Claims, AreCommittedOnce) {
    auto& producer = this->ends.producer();
    EXPECT_EQ(producer.commit(), Status::empty);
    Item* place = nullptr;
    ASSERT_EQ(producer.claim(place, soon()), Status::ok);
    place->number = this->next;
    EXPECT_EQ(producer.commit(), Status::ok);
    EXPECT_EQ(producer.commit(), Status::empty);
    this->flush();
    this->expect(this->next++);
    this->expect_nothing();
    this->pass(9);
}

TYPED_TEST(Claims, AreRefusedBehindAClose) {
    auto& producer = this->ends.producer();
    Item* place = nullptr;
    ASSERT_EQ(producer.claim(place, soon()), Status::ok);
    ASSERT_EQ(producer.close(soon()), Status::ok);
    EXPECT_EQ(producer.commit(), Status::closed);
    Item item{};
    EXPECT_EQ(this->ends.consumer().dequeue(item, soon()), Status::closed);
}

TYPED_TEST(Claims, OfTheConsumerAreGoneWhenTheItemWasDequeued) {
    auto& consumer = this->ends.consumer();
    for (int lap = 0; lap != 5; ++lap) {
        ASSERT_EQ(this->ends.producer().enqueue({this->next, {}}, soon()), Status::ok);
        this->flush();
        const Item* seen = nullptr;
        ASSERT_EQ(consumer.peek(seen, soon()), Status::ok);
        this->expect(this->next++);
        consumer.release();
        consumer.release();
        this->pass(7);
    }
    EXPECT_EQ(this->ends.producer().close(soon()), Status::ok);
    Item item{};
    EXPECT_EQ(consumer.dequeue(item, soon()), Status::closed);
}

class FrameClaims : public testing::Test {
  protected:
    test::Ends<Bytes, ring::design_2> ends{Options{.ring = {.capacity = 1024}}};
    const std::vector<std::byte> item = std::vector<std::byte>(100, std::byte{1});

    void pass(int count) {
        std::vector<std::byte> got;
        for (; count != 0; --count) {
            ASSERT_EQ(ends.producer().enqueue(item, soon()), Status::ok);
            ASSERT_EQ(ends.consumer().dequeue(got, soon()), Status::ok);
            ASSERT_EQ(got, item);
        }
    }
};

TEST_F(FrameClaims, AreGoneWhenAnotherFrameWasEnqueuedInTheirPlace) {
    for (int lap = 0; lap != 20; ++lap) {
        std::span<std::byte> place;
        ASSERT_EQ(ends.producer().claim(200, place, soon()), Status::ok);
        int frames = 0;
        while (ends.producer().try_enqueue(item) == Status::ok) ++frames;
        EXPECT_EQ(ends.producer().commit(), Status::empty);
        std::vector<std::byte> got;
        for (; frames != 0; --frames) {
            ASSERT_EQ(ends.consumer().dequeue(got, soon()), Status::ok);
            ASSERT_EQ(got, item);
        }
        pass(3);
    }
}

TEST_F(FrameClaims, AreNoLongerThanWasClaimed) {
    std::span<std::byte> place;
    ASSERT_EQ(ends.producer().claim(8, place), Status::ok);
    EXPECT_EQ(ends.producer().commit(9), Status::too_large);
    EXPECT_EQ(ends.producer().commit(8), Status::ok);
}

TEST_F(FrameClaims, OfTheConsumerAreGoneWhenTheFrameWasDequeued) {
    for (int lap = 0; lap != 20; ++lap) {
        ASSERT_EQ(ends.producer().enqueue(item, soon()), Status::ok);
        std::span<const std::byte> seen;
        ASSERT_EQ(ends.consumer().peek(seen, soon()), Status::ok);
        std::vector<std::byte> got;
        ASSERT_EQ(ends.consumer().dequeue(got, soon()), Status::ok);
        ends.consumer().release();
        pass(3);
    }
}

/// What is logged while it lives.
class Logged {
  public:
    Logged() {
        base::set_log_sink([this](base::LogLevel, std::string_view, std::string_view text) {
            text_ += text;
            text_ += '\n';
        });
    }
    ~Logged() { base::set_log_sink({}); }
    [[nodiscard]] std::size_t count(std::string_view what) const {
        std::size_t count = 0;
        for (std::size_t at = 0; (at = text_.find(what, at)) != std::string::npos; ++at) ++count;
        return count;
    }

  private:
    std::string text_;
};

TEST(ForgottenRelease, IsToldOnceToWhoWaitsForTheSameItemAgainAndAgain) {
    test::Ends<Item, ring::design_2> ends{Options{.ring = {.capacity = 4}}};
    ASSERT_EQ(ends.producer().enqueue({1, {}}, soon()), Status::ok);
    ASSERT_EQ(ends.producer().enqueue({2, {}}, soon()), Status::ok);
    const Logged log;
    const Item* seen = nullptr;
    for (int times = 0; times != 5000; ++times) {
        ASSERT_EQ(ends.consumer().peek(seen, soon()), Status::ok);
        ASSERT_EQ(seen->number, 1U);
    }
    EXPECT_EQ(log.count("until release()"), 1U);
    ends.consumer().release();
    ends.consumer().release();
    ends.consumer().release();
    EXPECT_EQ(log.count("release() without an item"), 1U);
    ASSERT_EQ(ends.consumer().peek(seen, soon()), Status::ok);
    EXPECT_EQ(seen->number, 2U);
}

TEST(ForgottenRelease, IsNoneOfWhoReleasesEachItem) {
    test::Ends<Item, ring::design_2> ends{Options{.ring = {.capacity = 4}}};
    const Logged log;
    for (std::uint64_t number = 0; number != 5000; ++number) {
        ASSERT_EQ(ends.producer().enqueue({number, {}}, soon()), Status::ok);
        const Item* seen = nullptr;
        ASSERT_EQ(ends.consumer().peek(seen, soon()), Status::ok);
        ASSERT_EQ(seen->number, number);
        ends.consumer().release();
    }
    EXPECT_EQ(log.count("release"), 0U);
}

}  // namespace
}  // namespace millrace::flow
