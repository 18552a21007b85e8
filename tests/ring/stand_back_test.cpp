// When a consumer leaves its producer alone for a moment: behind long runs, and never otherwise.
#include "millrace/ring/detail/stand_back.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/ring/design.hpp"
#include "ring/ring_of_numbers.hpp"

namespace millrace::ring {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::WaitPolicy;
using detail::StandBack;

constexpr std::uint64_t large_ring = 16384 * slot;

TEST(StandBack, LooksAtOnceForAnItemThatComesAloneOrBehindAShortRun) {
    StandBack back;
    back.begin(0);
    EXPECT_EQ(back.drained(0, slot, large_ring), 0U);
    std::uint64_t consumed = 0;
    for (const std::uint64_t run : {1, 1, 2, 63, 1, 63}) {
        consumed += run * slot;
        EXPECT_EQ(back.drained(consumed, slot, large_ring), 0U) << run;
    }
    EXPECT_EQ(back.times(), 0U);
}

TEST(StandBack, LooksHalfALongRunAheadAndNoFurtherThanItsLimit) {
    StandBack back;
    back.begin(0);
    EXPECT_EQ(back.drained(64 * slot, slot, large_ring), 32U);
    EXPECT_EQ(back.drained((64 + 101) * slot, slot, large_ring), 50U);
    EXPECT_EQ(back.drained(5000 * slot, slot, large_ring), StandBack::farthest);
    EXPECT_EQ(back.times(), 3U);
    // What came meanwhile was a short run: the stream is over.
    EXPECT_EQ(back.drained(5010 * slot, slot, large_ring), 0U);
    EXPECT_EQ(back.drained(5010 * slot, slot, large_ring), 0U);
    EXPECT_EQ(back.times(), 3U);
}

TEST(StandBack, LeavesMostOfASmallRingToTheProducer) {
    StandBack back;
    back.begin(0);
    EXPECT_EQ(back.drained(1000 * slot, slot, 100 * slot), 25U);
    EXPECT_EQ(back.drained(2000 * slot, slot, 3 * slot), 0U);
    EXPECT_EQ(back.times(), 1U);
}

TEST(StandBack, CountsFromWhereTheStreamBeganAlsoWhereItsPositionsWrap) {
    StandBack back;
    const std::uint64_t initial = 0 - 10 * slot;
    back.begin(initial);
    EXPECT_EQ(back.drained(initial + slot, slot, large_ring), 0U);
    EXPECT_EQ(back.drained(initial + 81 * slot, slot, large_ring), 40U);
}

/// A ring whose consumer has taken `run` items since its last wait, and waits for one more.
template <Design D>
class Drained : public Ring<D> {
  public:
    explicit Drained(std::uint64_t run, Carrier carrier = Carrier::automatic)
        : Ring<D>{256, 8, carrier} {
        for (std::uint64_t i = 0; i < run; ++i) {
            EXPECT_TRUE(this->soon([&] { return this->put() == Status::ok; }));
            EXPECT_TRUE(this->soon([&] { return this->take(); }));
        }
    }
    /// How often it stood back in a wait that found one item at its first look.
    [[nodiscard]] std::uint64_t stood_back(const WaitPolicy& policy = {}) {
        EXPECT_EQ(this->put(), Status::ok);
        const auto has_item = [&] { return this->receiver->has_slot(slot); };
        EXPECT_EQ(this->receiver->wait(has_item, Deadline::after(patience()), policy), Status::ok);
        EXPECT_TRUE(this->take());
        return this->receiver->counts().stood_back;
    }
    [[nodiscard]] bool stores() const { return this->receiver->peer_memory().stores(); }
};

TEST(AConsumer, StandsBackBehindALongRunThatWasStored) {
    Drained<design_2> ring{64};
    EXPECT_EQ(ring.stood_back(), ring.stores() ? 1U : 0U);
    EXPECT_EQ(ring.stood_back(), ring.stores() ? 1U : 0U);  // behind a single item
}

TEST(AConsumer, FindsWhatIsFurtherAheadThanItLooks) {
    Drained<design_1> ring{100};
    for (int i = 0; i < 200; ++i) ASSERT_EQ(ring.put(), Status::ok);
    EXPECT_EQ(ring.stood_back(), ring.stores() ? 1U : 0U);
    ASSERT_NO_FATAL_FAILURE(ring.take_all());
}

TEST(AConsumer, DoesNotStandBackBehindAShortRun) {
    Drained<design_2> ring{63};
    EXPECT_EQ(ring.stood_back(), 0U);
}

TEST(AConsumer, DoesNotStandBackWhereItWouldSleepInstead) {
    Drained<design_2> ring{64};
    EXPECT_EQ(ring.stood_back(WaitPolicy::blocking()), 0U);
}

TEST(AConsumer, DoesNotStandBackWhereItemsArePosted) {
    Drained<design_2> ring{64, Carrier::post};
    EXPECT_EQ(ring.stood_back(), 0U);
}

}  // namespace
}  // namespace millrace::ring
