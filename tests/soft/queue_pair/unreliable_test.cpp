// Unreliable connections (UC): what arrives, what is dropped without a word, and what a sender's
// own mistake does.
#include <cstdint>
#include <set>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

EndpointOptions unreliable() {
    EndpointOptions options;
    options.type = IBV_QPT_UC;
    options.timeout = 0;
    return options;
}

struct UnreliablePair : Pair {
    UnreliablePair() : Pair{unreliable(), unreliable()} {}
};

TEST(UnreliableConnection, CarriesSendsAndWritesWithAndWithoutImmediate) {
    UnreliablePair pair;
    std::memset(pair.left.memory, 0x5a, 64);
    ASSERT_EQ(pair.right.receive(1, 256, 64), 0);
    ASSERT_EQ(pair.right.receive(2, 0, 0), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_SEND_WITH_IMM, 10, {pair.left.sge(0, 64)}, IBV_SEND_SIGNALED, 0,
                             0, 77),
              0);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, 11, {pair.left.sge(0, 32)},
                             IBV_SEND_SIGNALED, pair.right.address(1024), pair.right.mr->rkey, 78),
              0);
    for (const std::uint64_t id : {10, 11}) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    auto wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->opcode, IBV_WC_RECV);
    EXPECT_EQ(wc->imm_data, 77U);
    EXPECT_EQ(wc->byte_len, 64U);
    wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(std::memcmp(pair.right.memory + 256, pair.left.memory, 64), 0);
    EXPECT_EQ(std::memcmp(pair.right.memory + 1024, pair.left.memory, 32), 0);
}

TEST(UnreliableConnection, RefusesReadsAndAtomicsWhenTheyArePosted) {
    UnreliablePair pair;
    for (const auto opcode :
         {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        EXPECT_EQ(pair.left.post(opcode, 1, {pair.left.sge(0, 8)}, IBV_SEND_SIGNALED,
                                 pair.right.address(), pair.right.mr->rkey),
                  EINVAL);
    }
}

TEST(UnreliableConnection, DropsAMessageForWhichThereIsNoReceive) {
    UnreliablePair pair;
    ASSERT_EQ(pair.left.send(1, 0, 64), 0);
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.right.receive(5, 0, 64), 0);
    EXPECT_FALSE(pair.right.complete(std::chrono::milliseconds{20})) << "it is not kept for later";
    ASSERT_EQ(pair.left.send(2, 0, 32), 0);
    wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 5U);
    EXPECT_EQ(wc->byte_len, 32U);
}

TEST(UnreliableConnection, KeepsTheResponderErrorsOfAWriteFromBothSides) {
    UnreliablePair pair;
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey + 1), 0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address() + (1 << 16), pair.right.mr->rkey), 0);
    ASSERT_EQ(pair.left.write(3, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    for (const std::uint64_t id : {1, 2, 3}) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    EXPECT_FALSE(pair.right.complete(std::chrono::milliseconds{20}));
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_RTS);
}

TEST(UnreliableConnection, DropsAMessageThatIsLongerThanTheReceive) {
    UnreliablePair pair;
    ASSERT_EQ(pair.right.receive(5, 0, 16), 0);
    ASSERT_EQ(pair.left.send(1, 0, 17), 0);
    const auto sent = pair.left.complete();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.left.send(2, 0, 16), 0);
    const auto wc = pair.right.complete();
    ASSERT_TRUE(wc) << "the receive is still there";
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->byte_len, 16U);
}

TEST(UnreliableConnection, FailsTheReceiverForItsOwnBadReceiveAndNotTheSender) {
    UnreliablePair pair;
    ibv_sge piece = pair.right.sge(0, 16);
    piece.lkey += 1;
    ibv_recv_wr wr{};
    wr.wr_id = 5;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(pair.right.qp, &wr, &bad), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 5U);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_ERR);
}

TEST(UnreliableConnection, OwnMistakesStopTheSendQueueAndReceivingGoesOn) {
    UnreliablePair pair;
    ASSERT_EQ(pair.left.receive(7, 512, 64), 0);
    ibv_sge wrong = pair.left.sge(0, 8);
    wrong.lkey += 1;
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 1, {wrong}), 0);
    ASSERT_EQ(pair.left.send(2, 0, 8, 0), 0);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_SQE);
    ibv_qp_attr back{};
    back.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(soft::modify_qp(pair.left.qp, &back, IBV_QP_STATE), EBUSY)
        << "flushed sends that nobody has polled would be lost";
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 1U);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR);
    wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 2U);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);

    std::memset(pair.right.memory, 0x33, 64);
    ASSERT_EQ(pair.right.send(20, 0, 64), 0);
    wc = pair.left.complete();
    ASSERT_TRUE(wc) << "the receive queue works on in SQE";
    EXPECT_EQ(wc->wr_id, 7U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);

    ASSERT_EQ(soft::modify_qp(pair.left.qp, &back, IBV_QP_STATE), 0);
    ASSERT_EQ(pair.right.receive(8, 256, 8), 0);
    ASSERT_EQ(pair.left.send(3, 0, 8), 0);
    wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 3U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
}

TEST(UnreliableConnection, FlushesReceivesTooWhenSendErrorBecomesError) {
    UnreliablePair pair;
    ASSERT_EQ(pair.left.receive(7, 512, 64), 0);
    ibv_sge wrong = pair.left.sge(0, 8);
    wrong.lkey += 1;
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 1, {wrong}), 0);
    ASSERT_EQ(pair.left.to_state(IBV_QPS_ERR), 0);
    ASSERT_EQ(pair.left.send(2, 0, 8), 0);
    std::set<std::uint64_t> seen;
    for (int i = 0; i < 3; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc) << i;
        seen.insert(wc->wr_id);
        EXPECT_EQ(wc->status, wc->wr_id == 1 ? IBV_WC_LOC_PROT_ERR : IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_EQ(seen, (std::set<std::uint64_t>{1, 2, 7}));
}

TEST(UnreliableConnection, SendsIntoTheVoidBeforeAndWithoutAPeer) {
    Endpoint end{unreliable()};
    const std::uint32_t nobody = (end.qp->qp_num & 0xfff) | 0xfff000;
    ASSERT_EQ(end.connect(nobody), 0);
    ASSERT_EQ(end.send(1, 0, 64), 0);
    ASSERT_EQ(end.write(2, 0, 64, 4096, 77), 0);
    for (const std::uint64_t id : {1, 2}) {
        const auto wc = end.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    ibv_sge wrong = end.sge(0, 8);
    wrong.lkey += 1;
    ASSERT_EQ(end.post(IBV_WR_SEND, 3, {wrong}), 0);
    const auto wc = end.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR) << "nobody listens, and still it is a mistake";
}

TEST(UnreliableConnection, DoesNotHearAReliablePeer) {
    Endpoint left{unreliable()};
    Endpoint right;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    std::memset(left.memory, 1, 8);
    ASSERT_EQ(left.write(1, 0, 8, right.address(), right.mr->rkey), 0);
    const auto wc = left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(right.memory[0], std::byte{0});
}

TEST(UnreliableConnection, TheDeathOfThePeerFailsNobody) {
    for (const bool shared : {true, false}) {
        std::vector<std::string> flags{"uc"};
        if (!shared) flags.emplace_back("private");
        RemotePair pair{unreliable(), flags};
        ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address, pair.right.rkey), 0);
        auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        (void)pair.right.child.kill_and_wait();
        for (std::uint64_t id = 2; id < 40; ++id) {
            ASSERT_EQ(pair.left.write(id, 0, 8, pair.right.address, pair.right.rkey), 0);
            wc = pair.left.complete();
            ASSERT_TRUE(wc);
            EXPECT_EQ(wc->wr_id, id);
            EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
            EXPECT_FALSE(pair.left.complete(std::chrono::milliseconds{5}));  // looks for deaths
        }
        EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS);
    }
}

TEST(UnreliableConnection, HasTransitionsOfItsOwn) {
    Endpoint end{unreliable()};
    ASSERT_EQ(end.to_init(), 0);
    const QueuePairStep step = step_to_rtr(IBV_QPT_UC, end.qp->qp_num);
    for (const int reliable : {IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER}) {
        QueuePairStep wrong = step;
        wrong.mask |= reliable;
        EXPECT_EQ(wrong.take(end.qp), EINVAL);
    }
    EXPECT_EQ(QueuePairStep{step}.take(end.qp), 0);
}

TEST(ReadResources, WithoutThemReadsAreRefusedOnEitherSide) {
    EndpointOptions none;
    none.reads = 0;
    Endpoint left;
    Endpoint right{none};
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    EXPECT_EQ(right.post(IBV_WR_RDMA_READ, 1, {right.sge(0, 8)}, IBV_SEND_SIGNALED, left.address(),
                         left.mr->rkey),
              EINVAL)
        << "no READ may be outstanding: max_rd_atomic is 0";
    ASSERT_EQ(left.post(IBV_WR_RDMA_READ, 2, {left.sge(0, 8)}, IBV_SEND_SIGNALED, right.address(),
                        right.mr->rkey),
              0);
    const auto wc = left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_REM_INV_REQ_ERR) << "max_dest_rd_atomic is 0";
}

TEST(ReadResources, MoreThanTheDeviceHasIsRefused) {
    EndpointOptions many;
    many.reads = 200;
    Endpoint end{many};
    ASSERT_EQ(end.to_init(), 0);
    EXPECT_EQ(end.to_rtr(end.qp->qp_num), EINVAL);
}

}  // namespace
}  // namespace millrace::test
