// Overrun of completion queues: told once, to everybody concerned, and never where it cannot be.
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

#include "soft/endpoint.hpp"
#include "soft/events.hpp"
#include "soft/mode_scope.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

/// A queue pair of `end` on a completion queue of its own with room for `entries`.
struct SmallQueue {
    SmallQueue(Endpoint& owner, int entries, std::uint32_t slots) : end{owner} {
        cq = soft::create_cq(end.context, entries, nullptr, end.channel, 0);
        ibv_qp_init_attr init{};
        init.send_cq = cq;
        init.recv_cq = cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {slots, slots, 1, 1, 0};
        soft::destroy_qp(end.qp);
        end.qp = soft::create_qp(end.pd, &init);
        own = end.cq;
        end.cq = cq;
        EXPECT_EQ(end.connect(end.qp->qp_num), 0);
    }
    ~SmallQueue() {
        soft::destroy_qp(end.qp);
        end.qp = nullptr;
        EXPECT_EQ(soft::destroy_cq(cq), 0);
        end.cq = own;
    }
    Endpoint& end;
    ibv_cq* cq;
    ibv_cq* own;
};

std::vector<ibv_event_type> events_of(ibv_context* context) {
    do_not_block(context->async_fd);
    std::vector<ibv_event_type> types;
    ibv_async_event event{};
    while (soft::get_async_event(context, &event) == 0) {
        if (event.event_type != IBV_EVENT_COMM_EST) types.push_back(event.event_type);
        soft::ack_async_event(&event);
    }
    return types;
}

int write_to_oneself(Endpoint& end, std::uint64_t id) {
    return end.write(id, 0, 8, end.address(64), end.mr->rkey);
}

TEST(Overrun, PutsTheQueueAndItsQueuePairsInError) {
    Endpoint end;
    SmallQueue small{end, 8, 16};
    for (std::uint64_t i = 0; i < 9; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
    // What found room can be taken, in order; then the queue answers that it is in error.
    for (std::uint64_t i = 0; i < 8; ++i) {
        const auto wc = end.poll_once();
        ASSERT_TRUE(wc) << i;
        EXPECT_EQ(wc->wr_id, i);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    ibv_wc wc{};
    EXPECT_LT(ibv_poll_cq(end.cq, 1, &wc), 0);
    EXPECT_LT(ibv_poll_cq(end.cq, 1, &wc), 0) << "for good";
    EXPECT_EQ(state_of(end.qp), IBV_QPS_ERR);
    EXPECT_EQ(events_of(end.context),
              (std::vector<ibv_event_type>{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL}));
}

TEST(Overrun, IsFoundByAPollForMoreThanThereIs) {
    Endpoint end;
    SmallQueue small{end, 8, 16};
    for (std::uint64_t i = 0; i < 12; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
    ibv_wc wc[32];
    EXPECT_EQ(ibv_poll_cq(end.cq, 32, wc), 12);
    EXPECT_LT(ibv_poll_cq(end.cq, 32, wc), 0);
    EXPECT_EQ(state_of(end.qp), IBV_QPS_ERR);
}

TEST(Overrun, OnAShapedLinkCountsWhatIsDueThoughNobodyHasLooked) {
    const ModeScope mode{"shaped:unlimited,latency=1ms"};
    Endpoint end;
    SmallQueue small{end, 8, 16};
    for (std::uint64_t i = 0; i < 9; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
    const std::int64_t due = soft::cable_now() + 2'000'000;
    while (soft::cable_now() <= due) std::this_thread::yield();
    for (std::uint64_t i = 0; i < 8; ++i) {
        const auto wc = end.complete();  // a thread of the link may be at it just now
        ASSERT_TRUE(wc) << i;
        EXPECT_EQ(wc->wr_id, i);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    ibv_wc wc{};
    EXPECT_LT(ibv_poll_cq(end.cq, 1, &wc), 0);
    EXPECT_EQ(state_of(end.qp), IBV_QPS_ERR);
}

TEST(Overrun, IsNoneWhenTheQueueIsExactlyFullOverAndOver) {
    Endpoint end;
    SmallQueue small{end, 8, 16};
    for (int round = 0; round < 100; ++round) {
        for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
        for (int i = 0; i < 8; ++i) ASSERT_TRUE(end.poll_once());
        ASSERT_FALSE(end.poll_once());
    }
    EXPECT_TRUE(events_of(end.context).empty());
    EXPECT_EQ(state_of(end.qp), IBV_QPS_RTS);
}

TEST(Overrun, CountsTheCompletionsOfAllQueuePairs) {
    // Two queue pairs, each with a part of what overruns their queue.
    Endpoint end;
    ibv_cq* const cq = soft::create_cq(end.context, 8, nullptr, nullptr, 0);
    ibv_qp* qps[2];
    for (ibv_qp*& qp : qps) {
        ibv_qp_init_attr init{};
        init.send_cq = cq;
        init.recv_cq = end.cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {8, 8, 1, 1, 0};
        qp = soft::create_qp(end.pd, &init);
        ASSERT_NE(qp, nullptr);
    }
    ibv_qp* const own = std::exchange(end.qp, nullptr);
    for (ibv_qp* qp : qps) {
        end.qp = qp;
        ASSERT_EQ(end.connect(qp->qp_num), 0);
        for (std::uint64_t i = 0; i < 5; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
    }
    ibv_wc wc{};
    for (int i = 0; i < 8; ++i) EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 1) << i;
    EXPECT_LT(ibv_poll_cq(cq, 1, &wc), 0);
    for (ibv_qp* qp : qps) {
        EXPECT_EQ(state_of(qp), IBV_QPS_ERR);
        EXPECT_EQ(soft::destroy_qp(qp), 0);
    }
    end.qp = own;
    EXPECT_EQ(soft::destroy_cq(cq), 0);
}

TEST(Overrun, CannotHappenWhereThereIsRoomForEverySlot) {
    Endpoint end;
    SmallQueue small{end, 32, 16};
    for (int round = 0; round < 3; ++round) {
        for (std::uint64_t i = 0; i < 16; ++i) ASSERT_EQ(end.receive(i, 128, 8), 0);
        for (std::uint64_t i = 0; i < 16; ++i) ASSERT_EQ(end.send(i, 0, 8), 0);
        for (int i = 0; i < 32; ++i) ASSERT_TRUE(end.poll_once());
    }
    EXPECT_TRUE(events_of(end.context).empty());
}

TEST(Overrun, IsAvertedByAResizeInTime) {
    Endpoint end;
    SmallQueue small{end, 8, 16};
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
    ASSERT_EQ(soft::resize_cq(end.cq, 16), 0);
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(write_to_oneself(end, i), 0);
    for (int i = 0; i < 16; ++i) ASSERT_TRUE(end.poll_once()) << i;
    EXPECT_EQ(state_of(end.qp), IBV_QPS_RTS);
}

}  // namespace
}  // namespace millrace::test
