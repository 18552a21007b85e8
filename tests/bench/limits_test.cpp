// The limits run, at every size, and check the data that they move. How fast is not asked here.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/limits/boost_queue.hpp"
#include "bench/limits/cache_line.hpp"
#include "bench/limits/copies.hpp"
#include "bench/limits/hand_over.hpp"
#include "bench/limits/ideal_ring.hpp"
#include "bench/limits/limits.hpp"
#include "bench/limits/sockets.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {
namespace {

class Limits : public testing::Test {
  protected:
    void SetUp() override {
        if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    }
};

TEST_F(Limits, PassCacheLinesBackAndForth) {
    EXPECT_GT(cache_line_round_trip(1000), 0);
    EXPECT_GT(shared_line_round_trip(1000), 0);
}

TEST_F(Limits, HandOverMessagesOfAnySize) {
    for (const std::size_t size : {8, 9, 15, 48, 56, 57, 64, 100, 120, 121, 4096, 65'536}) {
        EXPECT_GT(message_round_trip(size, 40), 0) << size;
        EXPECT_GT(message_round_trip(size, 40, 4096), 0) << size;
    }
}

TEST_F(Limits, HandOverWithOneCopyThroughSmallAndLargeRings) {
    for (const std::size_t size : {8, 64, 4096}) {
        EXPECT_GT(one_copy_bandwidth(size, 2 * size, 500), 0) << size;
        EXPECT_GT(one_copy_bandwidth(size, 16 * size, 500), 0) << size;
    }
}

TEST_F(Limits, PassItemsOfEverySizeThroughTheIdealRing) {
    for (const auto size : ideal_ring_sizes) {
        for (const int batch : {1, 16}) {
            for (const auto consumer : {RingConsumer::prompt, RingConsumer::patient}) {
                // The smallest ring, so that it wraps many times.
                const auto bytes = size * static_cast<std::size_t>(batch) * 2;
                EXPECT_GT(ideal_ring_rate(size, bytes, batch, 2000, consumer), 0) << size;
            }
        }
    }
}

TEST_F(Limits, RefuseRingsTheyAreNotBuiltFor) {
    EXPECT_THROW(static_cast<void>(ideal_ring_rate(24, 4096, 1, 100)), base::Error);
    EXPECT_THROW(static_cast<void>(ideal_ring_rate(8, 4096, 2, 100)), base::Error);
    EXPECT_THROW(static_cast<void>(ideal_ring_rate(4096, 4096, 1, 100)), base::Error);
}

TEST_F(Limits, CopyHotAndCold) {
    for (const std::size_t size : {8, 100, 65'536}) {
        EXPECT_GT(copy_hot(size), 0) << size;
        EXPECT_GT(copy_cold(size), 0) << size;
    }
}

TEST_F(Limits, SendOverSockets) {
    for (const auto kind : {SocketKind::unix_stream, SocketKind::tcp_loopback}) {
        for (const std::size_t size : {8, 64, 65'536}) {
            EXPECT_GT(socket_round_trip(kind, SocketWait::blocking, size, 40), 0) << size;
            EXPECT_GT(socket_round_trip(kind, SocketWait::spinning, size, 40), 0) << size;
            EXPECT_GT(socket_item_rate(kind, size, 100), 0) << size;
        }
    }
}

TEST_F(Limits, PassMessagesAndItemsThroughBoostIfItIsThere) {
    try {
        EXPECT_GT(boost_round_trip(40), 0);
        EXPECT_GT(boost_item_rate(256, 2000), 0);
    } catch (const base::Error& error) {
        ASSERT_EQ(error.code(), base::ErrorCode::not_found) << error.what();
        EXPECT_EQ(error.remedy().find("install: libboost-dev"), 0U) << error.remedy();
    }
}

TEST_F(Limits, HaveDistinctNames) {
    for (const bool brief : {false, true}) {
        std::vector<std::string> names;
        for (const auto& limit : all_limits(brief)) names.push_back(limit.name);
        std::sort(names.begin(), names.end());
        EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
    }
}

}  // namespace
}  // namespace millrace::bench
