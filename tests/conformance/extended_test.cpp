// The newer interfaces, where the device has them: ibv_wr_* posting and extended completion queues
// (ibv_wr_post(3), ibv_create_qp_ex(3), ibv_create_cq_ex(3)). A device that lacks one says so.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class Extended : public OnDevice {
  protected:
    static constexpr std::uint64_t operations =
        IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;
    /// Gives `end` a queue pair with ibv_wr_* in place of its own; false where there is none.
    bool extend(Endpoint& end, ibv_pd* pd, std::uint64_t wanted = operations) {
        ibv_qp_init_attr_ex init{};
        init.send_cq = end.sends.get();
        init.recv_cq = end.receives.get();
        init.qp_type = IBV_QPT_RC;
        init.cap = {16, 16, 4, 4, 64};
        init.pd = pd;
        init.send_ops_flags = wanted;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        end.qp.reset();
        errno = 0;
        end.qp.reset(ibv_create_qp_ex(device.context(), &init));
        return end.qp != nullptr;
    }
    struct Both {
        Domain domain;
        Endpoint a;
        Endpoint b;
        Buffer memory;
        explicit Both(const Device& device)
            : domain{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")},
              a{device, domain.get()},
              b{device, domain.get()},
              memory{domain.get(), 32768} {}
    };
};

TEST_F(Extended, RequestsBetweenStartAndCompleteArePostedTogetherInOrder) {
    Both both{device};
    if (!extend(both.a, both.domain.get())) {
        ASSERT_TRUE(says_unsupported(errno)) << std::strerror(errno);
        CONFORMANCE_LACKS("wr-api", "ibv_create_qp_ex with send_ops_flags");
    }
    both.a.connect(both.b.name());
    both.b.connect(both.a.name());
    both.memory.fill(1);
    ibv_qp_ex* const qp = ibv_qp_to_qp_ex(both.a.qp.get());
    ASSERT_NE(qp, nullptr);
    ASSERT_EQ(both.b.receive(10, {both.memory.slice(16384, 64)}), 0);
    ASSERT_EQ(both.b.receive(11, {}), 0);
    const ibv_sge slice = both.memory.slice(0, 64);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, both.memory.rkey(), both.memory.address(8192));
    ibv_wr_set_sge(qp, slice.lkey, slice.addr, slice.length);
    qp->wr_id = 2;
    qp->wr_flags = 0;
    ibv_wr_rdma_write(qp, both.memory.rkey(), both.memory.address(9000));
    ibv_sge parts[2] = {both.memory.slice(100, 3), both.memory.slice(200, 5)};
    ibv_wr_set_sge_list(qp, 2, parts);
    qp->wr_id = 3;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_read(qp, both.memory.rkey(), both.memory.address(0));
    const ibv_sge into = both.memory.slice(20000, 64);
    ibv_wr_set_sge(qp, into.lkey, into.addr, into.length);
    qp->wr_id = 4;
    ibv_wr_send_imm(qp, htonl(5));
    char text[] = "inline";
    ibv_wr_set_inline_data(qp, text, sizeof text);
    qp->wr_id = 5;
    ibv_wr_rdma_write_imm(qp, both.memory.rkey(), both.memory.address(10000), htonl(6));
    char first[] = "two ";
    char second[] = "parts";
    ibv_data_buf buffers[2] = {{first, 4}, {second, sizeof second}};
    ibv_wr_set_inline_data_list(qp, 2, buffers);
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    std::memset(text, 'x', sizeof text);
    std::memset(second, 'x', sizeof second);
    EXPECT_COMPLETES(both.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_COMPLETES(both.a.sends, 3, IBV_WC_RDMA_READ);
    EXPECT_COMPLETES(both.a.sends, 4, IBV_WC_SEND);
    EXPECT_COMPLETES(both.a.sends, 5, IBV_WC_RDMA_WRITE);
    EXPECT_FALSE(poll_once(both.a.sends.get()).has_value());
    const ibv_wc sent = next(both.b.receives);
    EXPECT_EQ(sent.wr_id, 10U);
    EXPECT_EQ(ntohl(sent.imm_data), 5U);
    EXPECT_EQ(sent.byte_len, sizeof text);
    EXPECT_STREQ(reinterpret_cast<const char*>(both.memory.data() + 16384), "inline");
    const ibv_wc written = next(both.b.receives);
    EXPECT_EQ(written.wr_id, 11U);
    EXPECT_EQ(written.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(ntohl(written.imm_data), 6U);
    EXPECT_STREQ(reinterpret_cast<const char*>(both.memory.data() + 10000), "two parts");
    EXPECT_TRUE(same(both.memory, 0, both.memory, 8192, 64));
    EXPECT_TRUE(same(both.memory, 100, both.memory, 9000, 3));
    EXPECT_TRUE(same(both.memory, 200, both.memory, 9003, 5));
    EXPECT_TRUE(same(both.memory, 0, both.memory, 20000, 64));
}

TEST_F(Extended, AnAbortedGroupLeavesNoTrace) {
    Both both{device};
    if (!extend(both.a, both.domain.get())) CONFORMANCE_LACKS("wr-api", std::strerror(errno));
    both.a.connect(both.b.name());
    both.b.connect(both.a.name());
    both.memory.fill(1);
    ibv_qp_ex* const qp = ibv_qp_to_qp_ex(both.a.qp.get());
    const ibv_sge slice = both.memory.slice(0, 64);
    for (int round = 0; round < 40; ++round) {  // more than the queue has slots
        ibv_wr_start(qp);
        qp->wr_id = 1;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(qp, both.memory.rkey(), both.memory.address(8192));
        ibv_wr_set_sge(qp, slice.lkey, slice.addr, slice.length);
        ibv_wr_abort(qp);
    }
    ibv_wr_start(qp);
    qp->wr_id = 2;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, both.memory.rkey(), both.memory.address(16384));
    ibv_wr_set_sge(qp, slice.lkey, slice.addr, slice.length);
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_COMPLETES(both.a.sends, 2, IBV_WC_RDMA_WRITE);
    EXPECT_FALSE(same(both.memory, 0, both.memory, 8192, 64));
    EXPECT_TRUE(same(both.memory, 0, both.memory, 16384, 64));
}

TEST_F(Extended, AGroupThatDoesNotFitIsRefusedAsAWhole) {
    Both both{device};
    if (!extend(both.a, both.domain.get())) CONFORMANCE_LACKS("wr-api", std::strerror(errno));
    both.a.connect(both.b.name());
    both.b.connect(both.a.name());
    ibv_qp_ex* const qp = ibv_qp_to_qp_ex(both.a.qp.get());
    const ibv_sge slice = both.memory.slice(0, 8);
    ibv_wr_start(qp);
    for (std::uint64_t id = 0; id < 5000; ++id) {
        qp->wr_id = id;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, slice.lkey, slice.addr, slice.length);
    }
    EXPECT_NE(ibv_wr_complete(qp), 0);
    ibv_wr_start(qp);
    qp->wr_id = 7;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, both.memory.rkey(), both.memory.address(8192));
    ibv_wr_set_sge(qp, slice.lkey, slice.addr, slice.length);
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_COMPLETES(both.a.sends, 7, IBV_WC_RDMA_WRITE);
}

TEST_F(Extended, UnknownOperationsAreRefusedAtCreation) {
    Both both{device};
    EXPECT_FALSE(extend(both.a, both.domain.get(), std::uint64_t{1} << 60));
    EXPECT_NE(errno, 0);
}

// --- extended completion queues -----------------------------------------------------------------

using ExtendedQueue = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;

class ExtendedCompletions : public OnDevice {
  protected:
    static constexpr std::uint64_t fields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                                            IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP;
    ibv_cq_ex* create(std::uint64_t wanted) {
        ibv_cq_init_attr_ex init{};
        init.cqe = 32;
        init.wc_flags = wanted;
        errno = 0;
        return ibv_create_cq_ex(device.context(), &init);
    }
};

TEST_F(ExtendedCompletions, AreReadFieldByField) {
    ibv_cq_ex* const queue = create(fields);
    if (queue == nullptr) {
        ASSERT_TRUE(says_unsupported(errno)) << std::strerror(errno);
        CONFORMANCE_LACKS("extended-cq", "ibv_create_cq_ex");
    }
    const ExtendedQueue owner{ibv_cq_ex_to_cq(queue)};
    Endpoint a{device, domain.get()};
    Endpoint b{device, domain.get()};
    Buffer memory{domain.get(), 16384};
    b.qp.reset();
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = owner.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    b.qp.reset(made(ibv_create_qp(domain.get(), &init), "ibv_create_qp"));
    a.connect(b.name());
    b.connect(a.name());
    ibv_poll_cq_attr attributes{};
    EXPECT_EQ(ibv_start_poll(queue, &attributes), ENOENT) << "nothing is there yet";
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(b.receive(id, {memory.slice(4096, 64)}), 0);
        ASSERT_EQ(a.post(IBV_WR_SEND_WITH_IMM, id, {memory.slice(0, 8 + id)}, {}, IBV_SEND_SIGNALED,
                         htonl(static_cast<std::uint32_t>(100 + id))),
                  0);
        EXPECT_COMPLETES(a.sends, id, IBV_WC_SEND);
    }
    ASSERT_TRUE(eventually([&] { return ibv_start_poll(queue, &attributes) == 0; }));
    for (std::uint64_t id = 0; id < 3; ++id) {
        EXPECT_EQ(queue->status, IBV_WC_SUCCESS);
        EXPECT_EQ(queue->wr_id, id);
        EXPECT_EQ(ibv_wc_read_opcode(queue), IBV_WC_RECV);
        EXPECT_EQ(ibv_wc_read_byte_len(queue), 8 + id);
        EXPECT_EQ(ntohl(ibv_wc_read_imm_data(queue)), 100 + id);
        EXPECT_EQ(ibv_wc_read_qp_num(queue), b.qp->qp_num);
        EXPECT_NE(ibv_wc_read_wc_flags(queue) & IBV_WC_WITH_IMM, 0U);
        const int more = ibv_next_poll(queue);
        EXPECT_EQ(more, id < 2 ? 0 : ENOENT);
        if (more != 0) break;
    }
    ibv_end_poll(queue);
    b.qp.reset();  // before its queue
}

TEST_F(ExtendedCompletions, UnknownFieldsAreRefusedAtCreation) {
    ibv_cq_ex* const queue = create(std::uint64_t{1} << 60);
    EXPECT_EQ(queue, nullptr);
    EXPECT_NE(errno, 0);
    if (queue != nullptr) ibv_destroy_cq(ibv_cq_ex_to_cq(queue));
}

TEST_F(ExtendedCompletions, AQueueMayGrowWithCompletionsInIt) {
    Loopback pair{device};
    for (std::uint64_t id = 0; id < 5; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    }
    const int error = ibv_resize_cq(pair.a.sends.get(), 200);
    if (says_unsupported(error)) CONFORMANCE_LACKS("resize-cq", "ibv_resize_cq");
    ASSERT_EQ(error, 0);
    EXPECT_GE(pair.a.sends->cqe, 200);
    for (std::uint64_t id = 0; id < 5; ++id) EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
    EXPECT_NE(ibv_resize_cq(pair.a.sends.get(), device.attributes().max_cqe + 1), 0);
}

}  // namespace
}  // namespace millrace::conformance
