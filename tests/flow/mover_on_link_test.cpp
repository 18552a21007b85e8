// An active mover with dynamic batching on a link, where a transfer takes its time: what follows
// one that is on its way, and what gathers until it is there.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "flow/ends.hpp"
#include "soft/mode_scope.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

constexpr ring::Design moved_on_link =
    with(ring::design_1, ring::Batching::dynamic, ring::Mover::active);
constexpr std::uint64_t capacity = 8192;

class DataMoverOnALink : public testing::Test {
  protected:
    void connect(const std::string& mode) {
        const millrace::test::ModeScope scope{mode};
        Options options;
        options.ring.capacity = capacity;
        options.endpoint = connect::Endpoint::open("soft0");
        Listener listener = Listener::listen(test::unique_address(), options);
        std::thread other{[&] {
            producer_.emplace(Producer<std::uint64_t, moved_on_link>::connect(
                listener.address(), options, Deadline::after(40s)));
        }};
        consumer_.emplace(
            Consumer<std::uint64_t, moved_on_link>::accept(listener, Deadline::after(40s)));
        other.join();
        put_ = 0;
    }
    void put(std::uint64_t count) {
        for (; count != 0; --count) ASSERT_EQ(producer_->try_enqueue(put_++), Status::ok);
    }
    void take_all() {
        for (std::uint64_t i = 0; i < put_; ++i) {
            std::uint64_t number = put_;
            ASSERT_EQ(consumer_->dequeue(number, Deadline::after(40s)), Status::ok) << i;
            ASSERT_EQ(number, i);
        }
    }
    [[nodiscard]] std::uint64_t writes() { return producer_->stats().ring.data_writes; }
    [[nodiscard]] bool wait_for_writes(std::uint64_t count) {
        base::NapParker parker;
        return base::wait_until([&] { return writes() >= count; }, Deadline::after(40s),
                                base::WaitPolicy{}, parker) == Status::ok;
    }

    std::optional<Producer<std::uint64_t, moved_on_link>> producer_;
    std::optional<Consumer<std::uint64_t, moved_on_link>> consumer_;

  private:
    std::uint64_t put_ = 0;
};

TEST_F(DataMoverOnALink, SendsAFullPieceBehindATransferThatHasNotArrived) {
    connect("shaped:10g,latency=10s");
    put(1);
    ASSERT_TRUE(wait_for_writes(1));
    put(capacity / 4);
    ASSERT_TRUE(wait_for_writes(2));
    std::uint64_t number = 0;
    EXPECT_EQ(consumer_->try_dequeue(number), Status::empty);  // so the first is still on its way
}

TEST_F(DataMoverOnALink, GathersAFewItemsUntilTheTransferBeforeThemIsDone) {
    // Nothing keeps a busy machine from taking longer than the transfer does, so again until the
    // first item was on its way when the last one was put.
    bool is_under_way = false;
    for (const Deadline deadline = Deadline::after(40s); !is_under_way && !deadline.expired();) {
        connect("shaped:10g,latency=300ms");
        put(1);
        ASSERT_TRUE(wait_for_writes(1));
        put(20);
        std::uint64_t number = 0;
        is_under_way = consumer_->try_dequeue(number) == Status::empty;
    }
    ASSERT_TRUE(is_under_way);
    take_all();
    EXPECT_EQ(writes(), 2U);
}

// The space of a ring is known again before it is used up: every lap of it goes.
TEST_F(DataMoverOnALink, GoesOnForManyLapsOfTheRing) {
    connect("shaped:10g,latency=20us");
    constexpr std::uint64_t laps = 20;
    std::thread other{[&] {
        for (std::uint64_t i = 0; i < laps * capacity; ++i) {
            std::uint64_t number = 0;
            ASSERT_EQ(consumer_->dequeue(number, Deadline::after(40s)), Status::ok) << i;
            ASSERT_EQ(number, i);
        }
    }};
    for (std::uint64_t i = 0; i < laps * capacity; ++i) {
        EXPECT_EQ(producer_->enqueue(i, Deadline::after(40s)), Status::ok);
        if (HasFailure()) break;
    }
    EXPECT_EQ(producer_->flush(Deadline::after(40s)), Status::ok);
    other.join();
    // Pieces are never larger than an eighth of a ring.
    EXPECT_GE(writes(), laps * 8);
}

}  // namespace
}  // namespace millrace::flow
