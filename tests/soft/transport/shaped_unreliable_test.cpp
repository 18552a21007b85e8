// Mode shaped, unreliable connections: what is complete is no longer the program's memory, nothing
// that is complete is lost by the sender's doing, and local mistakes are told in their turn.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "soft/words.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

using soft::cable_now;

[[nodiscard]] EndpointOptions shaped_unreliable() {
    EndpointOptions options;
    options.type = IBV_QPT_UC;
    return options;
}

TEST(ShapedUnreliable, AnInlineWriteCompletesWhenItHasLeftAndLandsLater) {
    const ModeScope mode{"shaped:unlimited,latency=300ms"};
    EndpointOptions options = shaped_unreliable();
    options.send_wr = 2;
    Pair pair{options, options};
    // Slots come back at once, for what is still in flight.
    for (std::uint64_t i = 1; i <= 6; ++i) {
        put_word(pair.left.memory + 8 * i, i);
        ASSERT_EQ(pair.left.write(i, 8 * i, 8, pair.right.address(8 * i), pair.right.mr->rkey,
                                  IBV_SEND_SIGNALED | IBV_SEND_INLINE),
                  0);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    const std::int64_t last_posted = cable_now();
    // Many more than the device keeps: then a slot comes back when the oldest has landed.
    for (std::uint64_t i = 7; i <= 40; ++i) {
        put_word(pair.left.memory + 8 * i, i);
        ASSERT_EQ(pair.left.write(i, 8 * i, 8, pair.right.address(8 * i), pair.right.mr->rkey,
                                  IBV_SEND_SIGNALED | IBV_SEND_INLINE),
                  0);
        ASSERT_TRUE(pair.left.complete());
    }
    EXPECT_GE(cable_now() - last_posted, 300 * ms);
    EXPECT_GT(time_of_change(pair.right.memory + 8 * 40), 0);
    for (std::uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(word_at(pair.right.memory + 8 * i), i);
}

TEST(ShapedUnreliable, ASendThatFindsNoReceiveIsLost) {
    const ModeScope mode{"shaped:unlimited,latency=1ms"};
    Pair pair{shaped_unreliable(), shaped_unreliable()};
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    ASSERT_TRUE(pair.left.complete());
    // What is written behind it arrives behind it.
    put_word(pair.left.memory + 64, 5);
    ASSERT_EQ(pair.left.write(3, 64, 8, pair.right.address(64), pair.right.mr->rkey), 0);
    ASSERT_TRUE(pair.left.complete());
    ASSERT_GT(time_of_change(pair.right.memory + 64), 0);
    ASSERT_EQ(pair.right.receive(4, 0, 8), 0);
    put_word(pair.left.memory, 9);
    ASSERT_EQ(pair.left.send(2, 0, 8), 0);
    ASSERT_TRUE(pair.left.complete());
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(word_at(pair.right.memory), 9U);
    EXPECT_FALSE(pair.right.poll_once());
}

TEST(ShapedUnreliable, TheBufferOfACompletedWriteMayBeWrittenAgain) {
    const ModeScope mode{"shaped:unlimited,latency=2ms"};
    Pair pair{shaped_unreliable(), shaped_unreliable()};
    for (std::uint64_t i = 1; i <= 20; ++i) {
        put_word(pair.left.memory, i);
        ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(8 * i), pair.right.mr->rkey), 0);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
    }
    put_word(pair.left.memory, 99);
    EXPECT_GT(time_of_change(pair.right.memory + 8 * 20), 0);
    for (std::uint64_t i = 1; i <= 20; ++i) EXPECT_EQ(word_at(pair.right.memory + 8 * i), i);
}

TEST(ShapedUnreliable, ALocalErrorComesInItsTurnAndWhatFollowsIsFlushed) {
    const ModeScope mode{"shaped:unlimited,latency=2ms"};
    Pair pair{shaped_unreliable(), shaped_unreliable()};
    ibv_sge foreign = pair.left.sge(0, 8);
    foreign.lkey ^= 0x5a5a00;
    put_word(pair.left.memory, 7);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(8), pair.right.mr->rkey), 0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(16), pair.right.mr->rkey,
                              IBV_SEND_SIGNALED | IBV_SEND_INLINE),
              0);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 3, {foreign}, 0, pair.right.address(24),
                             pair.right.mr->rkey),
              0);
    ASSERT_EQ(pair.left.write(4, 0, 8, pair.right.address(32), pair.right.mr->rkey,
                              IBV_SEND_SIGNALED | IBV_SEND_INLINE),
              0);
    const ibv_wc_status expected[] = {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR,
                                      IBV_WC_WR_FLUSH_ERR};
    for (std::uint64_t i = 1; i <= 4; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
        EXPECT_EQ(wc->status, expected[i - 1]);
    }
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_SQE);
    EXPECT_EQ(word_at(pair.right.memory + 8), 7U) << "what came before has landed";
    EXPECT_EQ(word_at(pair.right.memory + 16), 7U);
    EXPECT_EQ(word_at(pair.right.memory + 32), 0U) << "what came after never does";
    ASSERT_EQ(pair.left.to_state(IBV_QPS_RTS), 0);
    ASSERT_EQ(pair.left.write(5, 0, 8, pair.right.address(40), pair.right.mr->rkey), 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_GT(time_of_change(pair.right.memory + 40), 0);
}

TEST(ShapedUnreliable, WhatHasLeftLandsThoughItsQueuePairIsDestroyed) {
    const ModeScope mode{"shaped:unlimited,latency=20ms"};
    Pair pair{shaped_unreliable(), shaped_unreliable()};
    put_word(pair.left.memory, 3);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey,
                              IBV_SEND_SIGNALED | IBV_SEND_INLINE),
              0);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_EQ(soft::destroy_qp(std::exchange(pair.left.qp, nullptr)), 0);
    EXPECT_EQ(word_at(pair.right.memory), 3U);
}

}  // namespace
}  // namespace millrace::test
