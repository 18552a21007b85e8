// What happens when a peer dies, stops or lies: the survivor is told, goes on, and its memory is
// its own again.

#include <algorithm>
#include <cstdint>
#include <random>
#include <thread>

#include "layout/block_layout.hpp"
#include "process/context.hpp"
#include "queue_pair/queue_pair.hpp"
#include "soft/events.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

TEST(Death, OfThePeerFlushesPostedReceivesAndWaitingSends) {
    RemotePair pair;
    ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
    ASSERT_EQ(pair.left.send(10, 0, 8, 0), 0) << "waits for a receive";
    ASSERT_EQ(pair.left.send(11, 0, 8, 0), 0);
    pair.right.child.kill_and_wait();
    std::vector<std::pair<std::uint64_t, ibv_wc_status>> seen;
    for (int i = 0; i < 3; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        seen.emplace_back(wc->wr_id, wc->status);
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(
        seen,
        (std::vector<std::pair<std::uint64_t, ibv_wc_status>>{
            {1, IBV_WC_WR_FLUSH_ERR}, {10, IBV_WC_RETRY_EXC_ERR}, {11, IBV_WC_WR_FLUSH_ERR}}));
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
    ibv_async_event event{};
    ASSERT_EQ(soft::get_async_event(pair.left.context, &event), 0);
    EXPECT_EQ(event.element.qp, pair.left.qp);
    soft::ack_async_event(&event);
    EXPECT_EQ(soft::dereg_mr(pair.left.mr), 0) << "a dead executor holds nothing";
    pair.left.mr = nullptr;
}

TEST(Death, OfOnePeerLeavesOtherConnectionsAlone) {
    RemotePair dying;
    RemotePair living;
    dying.right.child.kill_and_wait();
    ASSERT_EQ(dying.left.send(1, 0, 8), 0);
    const auto failed = dying.left.complete();
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(failed->vendor_err, soft::vendor_peer_ended);
    ASSERT_EQ(living.left.write(1, 0, 8, living.right.address, living.right.rkey), 0);
    const auto done = living.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

// The peer writes, sends and receives for ever; it is killed at a random instant, while this side
// does the same, each from and into memory of its own. Whatever it was in the middle of, this side
// is told and can connect anew.
MILLRACE_CHILD(soft_busy) {
    EndpointOptions options;
    options.bytes = 1 << 20;
    options.shared_memory = arguments.at(0) == "shared";
    Endpoint end{options};
    say(std::to_string(end.qp->qp_num) + ' ' + std::to_string(end.address()) + ' ' +
        std::to_string(end.mr->rkey));
    std::istringstream line{hear().value()};
    std::uint32_t peer = 0;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    line >> peer >> address >> key;
    if (end.connect(peer) != 0) return 2;
    say("connected");
    std::uint64_t round = 0;
    for (;;) {
        ++round;
        static_cast<void>(end.receive(1, 4096, 4096));
        static_cast<void>(end.write(1, 0, round % 60000, address + (1 << 18), key));
        if (round % 3 == 0) static_cast<void>(end.send(2, 0, 512));
        while (end.poll_once()) {
        }
    }
}

TEST(Death, AtARandomInstantIsSurvived) {
    std::mt19937 random{12345};
    for (int seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        EndpointOptions options;
        options.bytes = 1 << 20;
        options.shared_memory = seed % 2 == 0;
        Endpoint end{options};
        ChildProcess child =
            ChildProcess::start("soft_busy", {seed % 4 < 2 ? "shared" : "private"});
        std::istringstream line{child.read_line().value_or("")};
        std::uint32_t peer = 0;
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        line >> peer >> address >> key;
        ASSERT_EQ(end.connect(peer), 0);
        child.write_line(std::to_string(end.qp->qp_num) + ' ' + std::to_string(end.address()) +
                         ' ' + std::to_string(end.mr->rkey));
        ASSERT_EQ(child.read_line(), "connected");
        const auto kill_at =
            std::chrono::steady_clock::now() + std::chrono::microseconds{random() % 4000};
        bool killed = false;
        std::uint64_t outstanding_sends = 0;
        std::uint64_t outstanding_receives = 0;
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        while (state_of(end.qp) != IBV_QPS_ERR && std::chrono::steady_clock::now() < limit) {
            if (!killed && std::chrono::steady_clock::now() >= kill_at) {
                child.kill_and_wait();
                killed = true;
            }
            if (end.receive(1, 8192, 4096) == 0) ++outstanding_receives;
            if (end.write(2, 0, 64, address + 65536, key) == 0) ++outstanding_sends;
            if (end.send(2, 0, 512) == 0) ++outstanding_sends;
            while (const auto wc = end.poll_once()) {
                (wc->wr_id == 1 ? outstanding_receives : outstanding_sends) -= 1;
            }
        }
        ASSERT_EQ(state_of(end.qp), IBV_QPS_ERR) << "the death was not noticed";
        while (outstanding_sends + outstanding_receives > 0) {
            const auto wc = end.complete();
            ASSERT_TRUE(wc) << outstanding_sends << " sends and " << outstanding_receives
                            << " receives were never completed";
            (wc->wr_id == 1 ? outstanding_receives : outstanding_sends) -= 1;
        }
        EXPECT_FALSE(end.poll_once());
        EXPECT_EQ(end.to_state(IBV_QPS_RESET), 0);
    }
}

TEST(Death, OfAStoppedPeerInTheMiddleOfACopyEndsTheWait) {
    RemotePair pair{with_events()};
    ASSERT_EQ(pair.right.ask("flood 60000 " + std::to_string(pair.left.address()) + ' ' +
                             std::to_string(pair.left.mr->rkey)),
              "flooding");
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    ASSERT_TRUE(pair.right.child.stop());
    pair.right.child.kill_and_wait();
    EXPECT_EQ(soft::dereg_mr(pair.left.mr), 0);
    pair.left.mr = nullptr;
}

// A peer that is stopped while it copies may go on at any time: the memory is not free until it is
// known to have let go.
TEST(Fence, KeepsMemoryThatAStoppedExecutorMayStillWriteTo) {
    int held = 0;
    const base::Deadline patience = patience_for_a_coincidence();
    for (int round = 0; held < 2 && !patience.expired(); ++round) {
        SCOPED_TRACE(round);
        EndpointOptions options;
        options.bytes = 16 << 20;
        RemotePair pair{options};
        ASSERT_EQ(pair.right.ask("flood 1000000 " + std::to_string(pair.left.address()) + ' ' +
                                 std::to_string(pair.left.mr->rkey)),
                  "flooding");
        std::this_thread::sleep_for(std::chrono::milliseconds{3 + round % 3});
        ASSERT_TRUE(pair.right.child.stop());
        auto& qp = *static_cast<soft::QueuePair*>(pair.left.qp);
        const bool copying =
            (qp.connection(qp.sends.hold()).view().hazard->send.word.load() & 1) != 0;
        const int error = soft::dereg_mr(pair.left.mr);
        EXPECT_EQ(error, copying ? EBUSY : 0);
        if (error == EBUSY) {
            ++held;
            EXPECT_EQ(soft::dereg_mr(pair.left.mr), EBUSY) << "asked again, still stopped";
            EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR) << "the connection is broken";
            EXPECT_EQ(pair.left.to_state(IBV_QPS_RESET), EBUSY);
            // Other memory is not concerned.
            void* const other = map_shareable(4096);
            ibv_mr* const fresh =
                soft::reg_mr(pair.left.pd, other, 4096, reinterpret_cast<std::uint64_t>(other),
                             IBV_ACCESS_LOCAL_WRITE);
            ASSERT_NE(fresh, nullptr);
            EXPECT_EQ(soft::dereg_mr(fresh), 0);
            pair.right.child.resume();
            int later = EBUSY;
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{10};
            while (later == EBUSY && std::chrono::steady_clock::now() < limit) {
                later = soft::dereg_mr(pair.left.mr);
            }
            EXPECT_EQ(later, 0) << "it has gone on, and let go";
        }
        pair.left.mr = nullptr;
    }
    EXPECT_GT(held, 0) << "no round stopped the peer in the middle of a copy";
}

TEST(Fence, DestroyingAQueuePairOfAStoppedExecutorDoesNotHandOutItsMemory) {
    const base::Deadline patience = patience_for_a_coincidence();
    for (int round = 0; !patience.expired(); ++round) {
        SCOPED_TRACE(round);
        EndpointOptions options;
        options.bytes = 16 << 20;
        RemotePair pair{options};
        ASSERT_EQ(pair.right.ask("flood 1000000 " + std::to_string(pair.left.address()) + ' ' +
                                 std::to_string(pair.left.mr->rkey)),
                  "flooding");
        std::this_thread::sleep_for(std::chrono::milliseconds{3});
        ASSERT_TRUE(pair.right.child.stop());
        auto& qp = *static_cast<soft::QueuePair*>(pair.left.qp);
        const bool copying =
            (qp.connection(qp.sends.hold()).view().hazard->send.word.load() & 1) != 0;
        ASSERT_EQ(soft::destroy_qp(pair.left.qp), 0);
        pair.left.qp = nullptr;
        if (!copying) continue;
        EXPECT_EQ(soft::dereg_mr(pair.left.mr), EBUSY);
        pair.right.child.kill_and_wait();
        int later = EBUSY;
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        while (later == EBUSY && std::chrono::steady_clock::now() < limit) {
            ibv_wc wc;
            static_cast<void>(ibv_poll_cq(pair.left.cq, 1, &wc));  // looks after the peers
            later = soft::dereg_mr(pair.left.mr);
        }
        EXPECT_EQ(later, 0);
        pair.left.mr = nullptr;
        return;
    }
    FAIL() << "no round stopped the peer in the middle of a copy";
}

// The peer scribbles over everything that it can write to: the block of this connection.
TEST(Liar, ScribblingOverTheBlockHarmsThatConnectionOnly) {
    std::mt19937_64 random{99};
    for (int round = 0; round < 200; ++round) {
        SCOPED_TRACE(round);
        EndpointOptions options;
        options.retry_cnt = 0;
        options.timeout = 1;
        options.rnr_retry = 0;
        Pair pair{options, options};
        Pair bystander;
        auto& victim = *static_cast<soft::QueuePair*>(pair.left.qp);
        auto* const bytes = reinterpret_cast<std::byte*>(victim.block.control);
        const std::size_t size = victim.geometry.block_size();
        for (int step = 0; step < 100; ++step) {
            // Not the hazards: a lie there is a second's wait, which KeepsMemory… is about.
            std::size_t at = random() % (round % 2 == 0 ? 512 : size);
            if (at / 64 == 1) at += 64;
            bytes[at] = static_cast<std::byte>(random());
            static_cast<void>(pair.left.receive(1, 0, 64));
            static_cast<void>(pair.right.receive(1, 0, 64));
            static_cast<void>(pair.left.send(2, 128, 32));
            static_cast<void>(pair.right.send(2, 128, 32));
            static_cast<void>(pair.left.write(3, 0, 8, pair.right.address(), pair.right.mr->rkey));
            for (int i = 0; i < 100 && pair.left.poll_once(); ++i) {
            }
            for (int i = 0; i < 100 && pair.right.poll_once(); ++i) {
            }
        }
        ASSERT_EQ(
            bystander.left.write(1, 0, 8, bystander.right.address(), bystander.right.mr->rkey), 0);
        const auto done = bystander.left.complete();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.left.to_state(IBV_QPS_RESET), 0);
    }
}

}  // namespace
}  // namespace millrace::test
