// Mode shaped: requests are in flight. Nothing happens before its time, everything happens in
// order and in the end, whoever calls verbs or nobody. How late it happens is not asked here.
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"
#include "soft/words.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

using soft::cable_now;

TEST(Shaped, AWriteLandsOneLatencyLaterAndCompletesTwo) {
    const ModeScope mode{"shaped:unlimited,latency=20ms"};
    Pair pair;
    put_word(pair.left.memory, 7);
    const std::int64_t start = cable_now();
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    // However late this thread looks: the clock is read behind what it has seen.
    auto wc = pair.left.poll_once();
    EXPECT_TRUE(!wc || cable_now() - start >= 40 * ms);
    EXPECT_TRUE(word_at(pair.right.memory) == 0 || cable_now() - start >= 20 * ms);
    if (!wc) wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_GE(cable_now() - start, 40 * ms);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->wr_id, 1U);
    EXPECT_EQ(word_at(pair.right.memory), 7U);
}

TEST(Shaped, AWriteLandsThoughNobodyCallsVerbs) {
    const ModeScope mode{"shaped:10g,latency=5ms"};
    Pair pair;
    for (std::uint64_t i = 1; i <= 3; ++i) {
        put_word(pair.left.memory, i);
        put_word(pair.right.memory, 0);
        const std::int64_t start = cable_now();
        ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
        const std::int64_t landed = time_of_change(pair.right.memory);
        EXPECT_GE(landed - start, 5 * ms);
        EXPECT_EQ(word_at(pair.right.memory), i);
    }
}

TEST(Shaped, AWriteLandsInAnotherProcessThatSleeps) {
    const ModeScope mode{"shaped:10g,latency=2ms"};
    RemotePair pair;
    std::memset(pair.left.memory, 0x5a, 64);
    ASSERT_EQ(pair.left.write(1, 0, 64, pair.right.address, pair.right.rkey), 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.ask("check 0 64 90"), "same");
}

TEST(Shaped, TheReceiverMovesWhatASilentSenderPosted) {
    // A sender that is stopped moves nothing, nor does its engine.
    const ModeScope mode{"shaped:10g,latency=2ms"};
    RemotePair pair;
    EXPECT_EQ(pair.right.ask("fill 0 64 7"), "ok");
    ASSERT_EQ(pair.left.receive(3, 0, 64), 0);
    EXPECT_EQ(pair.right.ask("send 5 0 64"), "0");
    kill(pair.right.child.pid(), SIGSTOP);
    const auto wc = pair.left.complete();
    kill(pair.right.child.pid(), SIGCONT);
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 3U);
    EXPECT_EQ(pair.left.memory[63], std::byte{7});
    EXPECT_EQ(pair.right.ask("complete"), "5 0 64");
}

TEST(Shaped, AReadTakesARoundTripAndSeesWhatItsOwnWritesLeft) {
    const ModeScope mode{"shaped:unlimited,latency=10ms"};
    Pair pair;
    put_word(pair.left.memory, 11);
    const std::int64_t start = cable_now();
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey, 0), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 2, {pair.left.sge(64, 8)}, IBV_SEND_SIGNALED,
                             pair.right.address(), pair.right.mr->rkey),
              0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_GE(cable_now() - start, 20 * ms);
    EXPECT_EQ(wc->opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(wc->byte_len, 8U);
    EXPECT_EQ(word_at(pair.left.memory + 64), 11U);
}

TEST(Shaped, AFencedWriteWaitsForTheReadBeforeIt) {
    const ModeScope mode{"shaped:unlimited,latency=10ms"};
    Pair pair;
    put_word(pair.left.memory, 5);
    const std::int64_t start = cable_now();
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(64, 8)}, 0, pair.right.address(64),
                             pair.right.mr->rkey),
              0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(), pair.right.mr->rkey,
                              IBV_SEND_SIGNALED | IBV_SEND_FENCE),
              0);
    EXPECT_GE(time_of_change(pair.right.memory) - start, 30 * ms);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_GE(cable_now() - start, 40 * ms);
}

TEST(Shaped, BytesTakeTheirTimeOnThePort) {
    const ModeScope mode{"shaped:100m,latency=0"};
    Pair pair;
    const std::int64_t start = cable_now();
    for (std::uint64_t i = 0; i < 8; ++i) {  // 8 x 50 000 bytes at 100 Mb/s
        ASSERT_EQ(pair.left.write(i, 0, 50'000, pair.right.address(), pair.right.mr->rkey), 0);
    }
    for (std::int64_t i = 0; i < 8; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, static_cast<std::uint64_t>(i));
        EXPECT_GE(cable_now() - start, (i + 1) * 4 * ms);
    }
}

TEST(Shaped, QueuePairsOfAProcessShareThePort) {
    const ModeScope mode{"shaped:100m,latency=0"};
    Pair first;
    Pair second;
    const std::int64_t start = cable_now();
    ASSERT_EQ(first.left.write(1, 0, 50'000, first.right.address(), first.right.mr->rkey), 0);
    ASSERT_EQ(second.left.write(2, 0, 50'000, second.right.address(), second.right.mr->rkey), 0);
    ASSERT_TRUE(second.left.complete());
    EXPECT_GE(cable_now() - start, 8 * ms);
    ASSERT_TRUE(first.left.complete());
}

TEST(Shaped, HeadersTakeTheirTimeToo) {
    const ModeScope mode{"shaped:1m,latency=0,mtu=256,header=125"};
    Pair pair;
    const std::int64_t start = cable_now();
    // Three packets of 250 bytes and their headers of 125 make 9 ms at 1 Mb/s.
    ASSERT_EQ(pair.left.write(1, 0, 750, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_GE(cable_now() - start, 9 * ms);
}

TEST(Shaped, NoMoreThanTheAllowedPacketsAreInFlight) {
    const ModeScope mode{"shaped:unlimited,latency=2ms,inflight=2"};
    Pair pair;
    const std::int64_t start = cable_now();
    for (std::uint64_t i = 0; i < 6; ++i) {
        ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    }
    for (std::int64_t i = 0; i < 6; ++i) {  // two every round trip of 4 ms
        ASSERT_TRUE(pair.left.complete());
        EXPECT_GE(cable_now() - start, (i / 2 + 1) * 4 * ms);
    }
}

TEST(Shaped, AnUnsignaledRequestHoldsItsSlotUntilALaterOneCompletes) {
    const ModeScope mode{"shaped:unlimited,latency=2ms"};
    EndpointOptions options;
    options.send_wr = 4;
    Pair pair{options};
    for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey,
                                  i == 3 ? IBV_SEND_SIGNALED : 0),
                  0);
    }
    EXPECT_EQ(pair.left.write(9, 0, 8, pair.right.address(), pair.right.mr->rkey), ENOMEM);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 3U);
    EXPECT_EQ(pair.left.write(9, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_TRUE(pair.left.complete());
}

TEST(Shaped, JitterNeverPutsOneRequestBeforeAnother) {
    const ModeScope mode{"shaped:unlimited,latency=1ms,jitter=2ms,seed=3"};
    EndpointOptions options;
    options.send_wr = 64;
    options.receive_wr = 64;
    Pair pair{options, options};
    for (std::uint64_t i = 0; i < 32; ++i) ASSERT_EQ(pair.right.receive(i, 8 * i, 8), 0);
    for (std::uint64_t i = 0; i < 32; ++i) {
        put_word(pair.left.memory + 8 * i, i);
        ASSERT_EQ(pair.left.send(i, 8 * i, 8), 0);
    }
    for (std::uint64_t i = 0; i < 32; ++i) {
        const auto wc = pair.right.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
        EXPECT_EQ(word_at(pair.right.memory + 8 * i), i);
    }
    for (std::uint64_t i = 0; i < 32; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
    }
}

TEST(Shaped, ASendWaitsForAReceiveThatIsPostedAfterItsArrival) {
    const ModeScope mode{"shaped:unlimited,latency=2ms"};
    Pair pair;
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    const std::int64_t arrived = cable_now() + 6 * ms;
    // Polls let it arrive, and be seen to wait; the link's thread may be at it just then, and
    // without a processor.
    for (int polls_behind = 0; polls_behind < 1000; std::this_thread::yield()) {
        EXPECT_FALSE(pair.left.poll_once());
        if (cable_now() >= arrived) ++polls_behind;
    }
    const std::int64_t posted = cable_now();
    ASSERT_EQ(pair.right.receive(4, 0, 8), 0);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->wr_id, 4U);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_GE(cable_now() - posted, 2 * ms);  // the acknowledgement is on its way, too
}

TEST(Shaped, WhatWasExecutedBeforeAnErrorSucceeds) {
    const ModeScope mode{"shaped:unlimited,latency=3ms"};
    Pair pair;
    const auto rkey = pair.right.mr->rkey;
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), rkey), 0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(), rkey + 1), 0);
    ASSERT_EQ(pair.left.write(3, 0, 8, pair.right.address(), rkey), 0);
    const ibv_wc_status expected[] = {IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};
    for (std::uint64_t i = 0; i < 3; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i + 1);
        EXPECT_EQ(wc->status, expected[i]);
    }
}

TEST(Shaped, WhatIsInFlightWhenTheQueuePairGoesToErrorIsFlushed) {
    const ModeScope mode{"shaped:unlimited,latency=5s"};
    Pair pair;
    put_word(pair.left.memory, 1);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(), pair.right.mr->rkey, 0), 0);
    ASSERT_EQ(pair.left.to_state(IBV_QPS_ERR), 0);
    for (std::uint64_t i = 1; i <= 2; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
        EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_EQ(word_at(pair.right.memory), 0U);
}

TEST(Shaped, AQueuePairCanBeResetAndConnectedAgainWithRequestsInFlight) {
    const ModeScope mode{"shaped:unlimited,latency=1ms"};
    Pair pair;
    for (int round = 0; round < 5; ++round) {
        for (std::uint64_t i = 0; i < 4; ++i) {
            ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
        }
        if (round % 2 == 0) {
            ASSERT_TRUE(pair.left.complete());
        }
        ASSERT_EQ(pair.left.to_state(IBV_QPS_RESET), 0);
        ASSERT_EQ(pair.right.to_state(IBV_QPS_RESET), 0);
        EXPECT_FALSE(pair.left.poll_once());
        ASSERT_EQ(pair.left.connect(pair.right.qp->qp_num), 0);
        ASSERT_EQ(pair.right.connect(pair.left.qp->qp_num), 0);
    }
    ASSERT_EQ(pair.left.write(77, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 77U);
}

TEST(Shaped, ADeregisteredTargetIsFoundMissingOnArrival) {
    // Where this thread comes too late to take it away before that, once more with more time.
    for (std::int64_t latency = 20; latency < 4000; latency *= 4) {
        const ModeScope mode{"shaped:unlimited,latency=" + std::to_string(latency) + "ms"};
        Pair pair;
        const std::int64_t start = cable_now();
        ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
        ASSERT_EQ(soft::dereg_mr(pair.right.mr), 0);
        pair.right.mr = nullptr;
        const bool was_in_time = cable_now() - start < latency * ms;
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        if (!was_in_time) continue;
        EXPECT_EQ(wc->status, IBV_WC_REM_ACCESS_ERR);
        return;
    }
    FAIL() << "it was never in time";
}

TEST(Shaped, AnEventComesWithTheCompletionAndNotBefore) {
    const ModeScope mode{"shaped:unlimited,latency=10ms"};
    EndpointOptions options;
    options.events = true;
    Pair pair{options, options};
    const auto wait_for_event = [](Endpoint& end) {
        pollfd waiting{end.channel->fd, POLLIN, 0};
        if (poll(&waiting, 1, 10'000) != 1) return false;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        if (soft::get_cq_event(end.channel, &cq, &context) != 0) return false;
        soft::ack_cq_events(cq, 1);
        return true;
    };
    ASSERT_EQ(pair.right.receive(1, 0, 8), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    const std::int64_t start = cable_now();
    ASSERT_EQ(pair.left.send(2, 0, 8), 0);
    ASSERT_TRUE(wait_for_event(pair.right));
    EXPECT_GE(cable_now() - start, 10 * ms);
    EXPECT_TRUE(pair.right.poll_once());
    ASSERT_TRUE(wait_for_event(pair.left));
    EXPECT_GE(cable_now() - start, 20 * ms);
    EXPECT_TRUE(pair.left.poll_once());
}

TEST(Shaped, AnAtomicTakesARoundTrip) {
    const ModeScope mode{"shaped:unlimited,latency=10ms"};
    EndpointOptions options;
    options.access |= IBV_ACCESS_REMOTE_ATOMIC;
    options.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
    Pair pair{options, options};
    put_word(pair.right.memory, 40);
    ibv_sge into = pair.left.sge(64, 8);
    ibv_send_wr wr{};
    wr.wr_id = 3;
    wr.sg_list = &into;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = pair.right.address();
    wr.wr.atomic.rkey = pair.right.mr->rkey;
    wr.wr.atomic.compare_add = 2;
    ibv_send_wr* bad = nullptr;
    const std::int64_t start = cable_now();
    ASSERT_EQ(ibv_post_send(pair.left.qp, &wr, &bad), 0);
    EXPECT_TRUE(word_at(pair.right.memory) == 40 || cable_now() - start >= 10 * ms);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_GE(cable_now() - start, 20 * ms);
    EXPECT_EQ(wc->opcode, IBV_WC_FETCH_ADD);
    EXPECT_EQ(word_at(pair.left.memory + 64), 40U);
    EXPECT_EQ(word_at(pair.right.memory), 42U);
}

TEST(Shaped, APeerThatDiesWithRequestsInFlightIsNoticed) {
    // Long enough to be in flight when the peer dies, however long that takes.
    const ModeScope mode{"shaped:unlimited,latency=4s"};
    EndpointOptions options;
    options.timeout = 1;
    RemotePair pair{options};
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address, pair.right.rkey), 0);
    pair.right.child.kill();
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_RETRY_EXC_ERR);
}

}  // namespace
}  // namespace millrace::test
