// A consumer that takes the lines it is done with from its producer, where that is worth it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "millrace/base/detail/shared_lines.hpp"
#include "millrace/base/status.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/watermark.hpp"
#include "ring/ring_of_numbers.hpp"

namespace millrace::ring {
namespace {

/// The word where the mark of an item lay, behind its release.
template <Design D>
[[nodiscard]] std::uint64_t left_at_the_mark(Ring<D>& ring) {
    EXPECT_EQ(ring.put(), base::Status::ok);
    const std::byte* const place = ring.receiver->slot();
    EXPECT_TRUE(ring.soon([&] { return ring.take(); }));
    return load_word(place + slot - mark_bytes);
}

TEST(LinesOfARing, AreStoredToByTheConsumerThatIsDoneWithThem) {
    Ring<design_2> ring{4};
    const bool takes = ring.receiver->peer_memory().stores() && base::readers_take_lines();
    EXPECT_EQ(left_at_the_mark(ring), takes ? 0 : slot_mark(0, 0));
    // The items of later laps are whole, and come in order.
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < 3; ++i) {
            ASSERT_TRUE(ring.soon([&] { return ring.put() == base::Status::ok; }));
        }
        ASSERT_NO_FATAL_FAILURE(ring.take_all());
    }
}

TEST(LinesOfARing, AreOnlyReadWhereTheItemsArePosted) {
    Ring<design_2> ring{4, 8, Carrier::post};
    EXPECT_EQ(left_at_the_mark(ring), slot_mark(0, 0));
}

}  // namespace
}  // namespace millrace::ring
