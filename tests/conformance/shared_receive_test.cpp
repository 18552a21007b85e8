// Shared receive queues: one pool of receives for several queue pairs, its limit event, and what an
// error of one queue pair leaves alone (InfiniBand specification 1.2.1 vol. 1, 10.2.9;
// ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3)).
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class SharedReceives : public OnDevice {
  protected:
    void SetUp() override {
        if (device.attributes().max_srq == 0) CONFORMANCE_LACKS("srq", "max_srq is 0");
        ibv_srq_init_attr init{};
        init.srq_context = this;
        init.attr.max_wr = 16;
        init.attr.max_sge = 2;
        shared.reset(ibv_create_srq(domain.get(), &init));
        if (!shared && says_unsupported(errno)) CONFORMANCE_LACKS("srq", "ibv_create_srq");
        ASSERT_NE(shared, nullptr) << std::strerror(errno);
        room = init.attr.max_wr;
        ASSERT_GE(room, 16U);
        Options plain;
        Options sharing;
        sharing.shared = shared.get();
        for (int i = 0; i < 2; ++i) {
            senders.push_back(std::make_unique<Endpoint>(device, domain.get(), plain));
            receivers.push_back(std::make_unique<Endpoint>(device, domain.get(), sharing));
            senders.back()->connect(receivers.back()->name());
            receivers.back()->connect(senders.back()->name());
        }
    }
    void TearDown() override {
        receivers.clear();
        senders.clear();
    }
    int receive(std::uint64_t id, std::vector<ibv_sge> sges) {
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        ibv_recv_wr* bad = nullptr;
        return ibv_post_srq_recv(shared.get(), &wr, &bad);
    }
    /// The next event that concerns the queue.
    std::optional<ibv_async_event> queue_event(std::chrono::milliseconds wait = patience()) {
        for (;;) {
            const auto event = next_event(device.context(), wait);
            if (!event || event->event_type != IBV_EVENT_COMM_EST) return event;
        }
    }

    SharedQueue shared;
    std::uint32_t room = 0;
    Buffer memory{domain.get(), 65536};
    std::vector<std::unique_ptr<Endpoint>> senders;
    std::vector<std::unique_ptr<Endpoint>> receivers;
};

TEST_F(SharedReceives, ServeEveryQueuePairInTheOrderOfPosting) {
    memory.fill(1);
    for (std::uint64_t id = 0; id < 4; ++id) {
        ASSERT_EQ(receive(id, {memory.slice(4096 * (id + 1), 64)}), 0);
    }
    for (std::uint64_t id = 0; id < 4; ++id) {
        const std::size_t which = id % 2;
        ASSERT_EQ(senders[which]->send(id, {memory.slice(id, 8)}), 0);
        EXPECT_COMPLETES(senders[which]->sends, id, IBV_WC_SEND);
        const ibv_wc received = next(receivers[which]->receives);
        EXPECT_EQ(received.status, IBV_WC_SUCCESS);
        EXPECT_EQ(received.wr_id, id);
        EXPECT_EQ(received.qp_num, receivers[which]->qp->qp_num);
        EXPECT_EQ(received.byte_len, 8U);
        EXPECT_TRUE(same(memory, id, memory, 4096 * (id + 1), 8));
    }
}

TEST_F(SharedReceives, AQueuePairThatSharesHasNoReceiveQueueOfItsOwn) {
    EXPECT_NE(receivers[0]->receive(1, {memory.slice(0, 8)}), 0);
}

TEST_F(SharedReceives, ASenderWaitsUntilAReceiveIsPosted) {
    ASSERT_EQ(senders[0]->send(1, {memory.slice(0, 8)}), 0);
    EXPECT_FALSE(poll_once(senders[0]->sends.get()).has_value());
    ASSERT_EQ(receive(2, {memory.slice(4096, 64)}), 0);
    EXPECT_COMPLETES(receivers[0]->receives, 2, IBV_WC_RECV);
    EXPECT_COMPLETES(senders[0]->sends, 1, IBV_WC_SEND);
}

TEST_F(SharedReceives, ServeWritesWithImmediate) {
    ASSERT_EQ(receive(2, {}), 0);
    ASSERT_EQ(
        senders[0]->post(IBV_WR_RDMA_WRITE_WITH_IMM, 1, {memory.slice(0, 8)}, at(memory, 4096)), 0);
    EXPECT_COMPLETES(receivers[0]->receives, 2, IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST_F(SharedReceives, AFullQueueRefusesAndGoesOnWhenItHasRoomAgain) {
    std::uint32_t posted = 0;
    int error = 0;
    while (posted < 200 && (error = receive(posted, {memory.slice(0, 8)})) == 0) ++posted;
    EXPECT_EQ(error, ENOMEM);
    EXPECT_GE(posted, room);
    ASSERT_EQ(senders[0]->send(1, {memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(receivers[0]->receives, 0, IBV_WC_RECV);
    EXPECT_EQ(receive(posted, {memory.slice(0, 8)}), 0);
}

TEST_F(SharedReceives, ManyRoundsReuseEverySlot) {
    for (std::uint64_t id = 0; id < 200; ++id) {
        ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0);
        ASSERT_EQ(senders[id % 2]->send(id, {memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(receivers[id % 2]->receives, id, IBV_WC_RECV);
        EXPECT_COMPLETES(senders[id % 2]->sends, id, IBV_WC_SEND);
    }
}

TEST_F(SharedReceives, AQueueThatGrowsKeepsItsReceivesAndTakesMore) {
    if ((device.attributes().device_cap_flags & IBV_DEVICE_SRQ_RESIZE) == 0) {
        CONFORMANCE_LACKS("srq resize", "IBV_DEVICE_SRQ_RESIZE");
    }
    std::uint64_t id = 0;
    for (; id < 5; ++id) ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0);
    ibv_srq_attr attributes{};
    attributes.max_wr = 4 * room;
    ASSERT_EQ(ibv_modify_srq(shared.get(), &attributes, IBV_SRQ_MAX_WR), 0);
    ASSERT_EQ(ibv_query_srq(shared.get(), &attributes), 0);
    EXPECT_GE(attributes.max_wr, 4 * room);
    for (; id < 4 * room; ++id) ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0) << id;
    for (std::uint64_t next_id = 0; next_id < id; ++next_id) {
        ASSERT_EQ(senders[next_id % 2]->send(next_id, {memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(receivers[next_id % 2]->receives, next_id, IBV_WC_RECV);
        EXPECT_COMPLETES(senders[next_id % 2]->sends, next_id, IBV_WC_SEND);
    }
}

TEST_F(SharedReceives, AQueueDoesNotShrinkBelowWhatIsPosted) {
    if ((device.attributes().device_cap_flags & IBV_DEVICE_SRQ_RESIZE) == 0) {
        CONFORMANCE_LACKS("srq resize", "IBV_DEVICE_SRQ_RESIZE");
    }
    for (std::uint64_t id = 0; id < 8; ++id) ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0);
    ibv_srq_attr attributes{};
    attributes.max_wr = 2;
    EXPECT_NE(ibv_modify_srq(shared.get(), &attributes, IBV_SRQ_MAX_WR), 0);
    for (std::uint64_t id = 0; id < 8; ++id) {
        ASSERT_EQ(senders[0]->send(id, {memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(receivers[0]->receives, id, IBV_WC_RECV);
        EXPECT_COMPLETES(senders[0]->sends, id, IBV_WC_SEND);
    }
    attributes.max_wr = 2;
    ASSERT_EQ(ibv_modify_srq(shared.get(), &attributes, IBV_SRQ_MAX_WR), 0);
    for (std::uint64_t id = 0; id < 2; ++id) ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0);
    for (std::uint64_t id = 0; id < 2; ++id) {
        ASSERT_EQ(senders[1]->send(id, {memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(receivers[1]->receives, id, IBV_WC_RECV);
        EXPECT_COMPLETES(senders[1]->sends, id, IBV_WC_SEND);
    }
}

TEST_F(SharedReceives, TooManySlicesAreRefused) {
    ibv_srq_attr attributes{};
    ASSERT_EQ(ibv_query_srq(shared.get(), &attributes), 0);
    EXPECT_GE(attributes.max_wr, 16U);
    EXPECT_GE(attributes.max_sge, 2U);
    const std::vector<ibv_sge> slices(attributes.max_sge + 1, memory.slice(0, 8));
    EXPECT_NE(receive(1, slices), 0);
}

TEST_F(SharedReceives, TellOnceWhenFewerThanTheLimitAreLeft) {
    for (std::uint64_t id = 0; id < 4; ++id) ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0);
    ibv_srq_attr limit{};
    limit.srq_limit = 3;
    ASSERT_EQ(ibv_modify_srq(shared.get(), &limit, IBV_SRQ_LIMIT), 0);
    ibv_srq_attr answered{};
    ASSERT_EQ(ibv_query_srq(shared.get(), &answered), 0);
    EXPECT_EQ(answered.srq_limit, 3U);
    ASSERT_EQ(senders[0]->send(1, {memory.slice(0, 8)}), 0);  // three are left: not fewer
    EXPECT_COMPLETES(receivers[0]->receives, 0, IBV_WC_RECV);
    EXPECT_FALSE(queue_event(std::chrono::milliseconds{30}).has_value());
    ASSERT_EQ(senders[0]->send(2, {memory.slice(0, 8)}), 0);  // two
    EXPECT_COMPLETES(receivers[0]->receives, 1, IBV_WC_RECV);
    const auto event = queue_event();
    ASSERT_TRUE(event.has_value()) << "no event of the limit";
    EXPECT_EQ(event->event_type, IBV_EVENT_SRQ_LIMIT_REACHED)
        << ibv_event_type_str(event->event_type);
    EXPECT_EQ(event->element.srq, shared.get());
    ASSERT_EQ(ibv_query_srq(shared.get(), &answered), 0);
    EXPECT_EQ(answered.srq_limit, 0U) << "the event disarms it";
    ASSERT_EQ(senders[0]->send(3, {memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(receivers[0]->receives, 2, IBV_WC_RECV);
    EXPECT_FALSE(queue_event(std::chrono::milliseconds{30}).has_value()) << "once per arming";
}

TEST_F(SharedReceives, ALimitBeyondTheQueueIsRefused) {
    ibv_srq_attr limit{};
    limit.srq_limit = static_cast<std::uint32_t>(device.attributes().max_srq_wr) + 1;
    EXPECT_NE(ibv_modify_srq(shared.get(), &limit, IBV_SRQ_LIMIT), 0);
}

TEST_F(SharedReceives, AnErrorOfOneQueuePairLeavesTheReceivesToTheOthers) {
    for (std::uint64_t id = 0; id < 3; ++id) ASSERT_EQ(receive(id, {memory.slice(4096, 64)}), 0);
    ASSERT_EQ(receivers[0]->to(IBV_QPS_ERR), 0);
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(senders[1]->send(id, {memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(receivers[1]->receives, id, IBV_WC_RECV);
    }
    EXPECT_FALSE(poll_once(receivers[0]->receives.get()).has_value())
        << "nothing of the pool is flushed";
}

TEST_F(SharedReceives, AQueuePairInErrorTellsThatItTakesNoMoreReceives) {
    ASSERT_EQ(receivers[0]->to(IBV_QPS_ERR), 0);
    const auto event = queue_event();
    ASSERT_TRUE(event.has_value()) << "no event that the last receive was taken";
    EXPECT_EQ(event->event_type, IBV_EVENT_QP_LAST_WQE_REACHED)
        << ibv_event_type_str(event->event_type);
    EXPECT_EQ(event->element.qp, receivers[0]->qp.get());
}

TEST_F(SharedReceives, AQueueInUseIsBusyAndKeepsItsDomainBusy) {
    EXPECT_EQ(ibv_destroy_srq(shared.get()), EBUSY);
    receivers.clear();
    EXPECT_EQ(ibv_destroy_srq(shared.release()), 0);
}

TEST_F(SharedReceives, TheReceivesMemoryBelongsToTheQueuesDomain) {
    const Domain other{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    const Buffer foreign{other.get(), 4096};
    if (receive(1, {foreign.slice(0, 64)}) != 0) return;
    ASSERT_EQ(senders[0]->send(2, {memory.slice(0, 8)}), 0);
    EXPECT_FAILS(receivers[0]->receives, 1, IBV_WC_LOC_PROT_ERR);
    EXPECT_FAILS(senders[0]->sends, 2, IBV_WC_REM_OP_ERR);
}

TEST_F(SharedReceives, QueuesBeyondTheDevicesLimitsAreRefused) {
    ibv_srq_init_attr init{};
    init.attr.max_wr = static_cast<std::uint32_t>(device.attributes().max_srq_wr) + 1;
    init.attr.max_sge = 1;
    const SharedQueue many{ibv_create_srq(domain.get(), &init)};
    EXPECT_EQ(many, nullptr);
    init.attr.max_wr = 1;
    init.attr.max_sge = static_cast<std::uint32_t>(device.attributes().max_srq_sge) + 1;
    const SharedQueue wide{ibv_create_srq(domain.get(), &init)};
    EXPECT_EQ(wide, nullptr);
}

}  // namespace
}  // namespace millrace::conformance
