// The queue pair's states: which transitions are legal, what may be posted when, what is flushed.
#include <poll.h>

#include <cstdint>
#include <string>

#include <gmock/gmock.h>

#include "millrace/base/log_output.hpp"
#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

constexpr int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

TEST(QueuePairStates, RefusesATransitionWithoutItsAttributes) {
    Endpoint end;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    for (const int missing : {IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS}) {
        EXPECT_EQ(soft::modify_qp(end.qp, &attributes, init_mask & ~missing), EINVAL);
    }
    EXPECT_EQ(soft::modify_qp(end.qp, &attributes, init_mask | IBV_QP_TIMEOUT), EINVAL)
        << "an attribute that does not belong there";
    attributes.port_num = 2;
    EXPECT_EQ(soft::modify_qp(end.qp, &attributes, init_mask), EINVAL) << "there is one port";
    EXPECT_EQ(state_of(end.qp), IBV_QPS_RESET);
    EXPECT_EQ(end.to_init(), 0);
    EXPECT_EQ(state_of(end.qp), IBV_QPS_INIT);
}

TEST(QueuePairStates, RefusesToSkipAState) {
    Endpoint end;
    EXPECT_EQ(end.to_rtr(end.qp->qp_num), EINVAL);
    EXPECT_EQ(end.to_rts(), EINVAL);
    EXPECT_EQ(end.to_state(IBV_QPS_ERR), EINVAL) << "RESET goes to INIT only";
    ASSERT_EQ(end.to_init(), 0);
    EXPECT_EQ(end.to_rts(), EINVAL);
    EXPECT_EQ(end.to_state(IBV_QPS_SQD), EINVAL);
}

TEST(QueuePairStates, ChecksTheCurrentStateIfTold) {
    Endpoint end;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.cur_qp_state = IBV_QPS_RTR;
    attributes.port_num = 1;
    EXPECT_EQ(soft::modify_qp(end.qp, &attributes, init_mask | IBV_QP_CUR_STATE), EINVAL);
    attributes.cur_qp_state = IBV_QPS_RESET;
    EXPECT_EQ(soft::modify_qp(end.qp, &attributes, init_mask | IBV_QP_CUR_STATE), 0);
}

TEST(QueuePairStates, AnswersQueriesWithWhatWasSet) {
    Pair pair;
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(soft::query_qp(pair.left.qp, &attributes, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attributes.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(attributes.dest_qp_num, pair.right.qp->qp_num);
    EXPECT_EQ(attributes.rnr_retry, 7);
    EXPECT_EQ(attributes.cap.max_send_wr, pair.left.capacity.max_send_wr);
    EXPECT_EQ(init.send_cq, pair.left.cq);
    EXPECT_EQ(init.cap.max_inline_data, 256U);
}

TEST(QueuePairStates, PostsSendsFromRtsAndReceivesFromInit) {
    Endpoint end;
    EXPECT_EQ(end.receive(1, 0, 8), EINVAL);
    EXPECT_EQ(end.send(1, 0, 8), EINVAL);
    ASSERT_EQ(end.to_init(), 0);
    EXPECT_EQ(end.receive(1, 0, 8), 0);
    EXPECT_EQ(end.send(1, 0, 8), EINVAL);
    ASSERT_EQ(end.to_rtr(end.qp->qp_num), 0);
    EXPECT_EQ(end.send(1, 0, 8), EINVAL);
    ASSERT_EQ(end.to_rts(), 0);
    EXPECT_EQ(end.send(1, 0, 8), 0);
    EXPECT_EQ(state_of(end.qp), IBV_QPS_RTS);
}

TEST(QueuePairStates, FlushesEverythingInError) {
    Pair pair;
    ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
    ASSERT_EQ(pair.left.receive(2, 0, 8), 0);
    ASSERT_EQ(pair.left.write(10, 0, 8, pair.right.address(), pair.right.mr->rkey, 0), 0);
    ASSERT_EQ(pair.left.write(11, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_EQ(pair.left.send(12, 0, 8, 0), 0) << "waits for a receive, unsignaled";
    ASSERT_EQ(pair.left.send(13, 0, 8), 0);
    ASSERT_EQ(pair.left.to_state(IBV_QPS_ERR), 0);
    ASSERT_EQ(pair.left.send(14, 0, 8, 0), 0) << "accepted in ERROR";
    ASSERT_EQ(pair.left.receive(3, 0, 8), 0);
    std::vector<std::uint64_t> sends;
    std::vector<std::uint64_t> receives;
    while (const auto wc = pair.left.poll_once()) {
        if (wc->wr_id == 11) {
            EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        } else {
            EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR) << wc->wr_id;
        }
        (wc->wr_id < 10 ? receives : sends).push_back(wc->wr_id);
    }
    EXPECT_EQ(sends, (std::vector<std::uint64_t>{11, 12, 13, 14}));
    EXPECT_EQ(receives, (std::vector<std::uint64_t>{1, 2, 3}));
    // Its slots come back, so that a program may go on posting for ever.
    for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(pair.left.send(20, 0, 8, 0), 0) << i;
        ASSERT_EQ(pair.left.receive(21, 0, 8), 0) << i;
        ASSERT_TRUE(pair.left.poll_once());
        ASSERT_TRUE(pair.left.poll_once());
        ASSERT_FALSE(pair.left.poll_once());
    }
}

TEST(QueuePairStates, CanBeResetAndConnectedAgain) {
    Pair pair;
    for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
        ASSERT_EQ(pair.right.send(2, 0, 8), 0);
        ASSERT_EQ(pair.right.send(3, 0, 8), 0) << "never received";
        ASSERT_EQ(pair.left.to_state(IBV_QPS_RESET), 0);
        EXPECT_FALSE(pair.left.poll_once()) << "RESET forgets completions";
        ASSERT_EQ(pair.right.to_state(IBV_QPS_RESET), 0);
        EXPECT_FALSE(pair.right.poll_once());
        ASSERT_EQ(pair.left.connect(pair.right.qp->qp_num), 0);
        ASSERT_EQ(pair.right.connect(pair.left.qp->qp_num), 0);
        ASSERT_EQ(pair.right.receive(4, 64, 8), 0);
        ASSERT_EQ(pair.left.send(5, 0, 8), 0);
        const auto received = pair.right.complete();
        ASSERT_TRUE(received);
        EXPECT_EQ(received->wr_id, 4U);
        const auto sent = pair.left.complete();
        ASSERT_TRUE(sent);
        EXPECT_EQ(sent->wr_id, 5U);
    }
}

TEST(QueuePairStates, HoldsSendsBackWhileDraining) {
    Pair pair;
    ASSERT_EQ(pair.left.to_state(IBV_QPS_SQD), 0);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    EXPECT_FALSE(pair.left.poll_once());
    ASSERT_EQ(pair.left.to_state(IBV_QPS_RTS), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

TEST(QueuePairStates, RefusesWhatItCannotDoYet) {
    Endpoint end;
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = end.cq;
    init.cap = {1, 1, 1, 1, 0};
    for (const ibv_qp_type type : {IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND}) {
        init.qp_type = type;
        errno = 0;
        EXPECT_EQ(soft::create_qp(end.pd, &init), nullptr);
        EXPECT_EQ(errno, EOPNOTSUPP);
    }
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 40000;
    EXPECT_EQ(soft::create_qp(end.pd, &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

// --- errors -----------------------------------------------------------------------------------

TEST(QueuePairErrors, AStaleKeyIsARemoteAccessErrorForBoth) {
    Pair pair;
    ASSERT_EQ(pair.right.receive(50, 0, 8), 0);
    const std::uint32_t stale = pair.right.mr->rkey;
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), stale), 0);
    ASSERT_TRUE(pair.left.complete());
    ASSERT_EQ(soft::dereg_mr(pair.right.mr), 0);
    pair.right.mr = nullptr;
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(), stale, 0), 0);
    ASSERT_EQ(pair.left.write(3, 0, 8, pair.right.address(), stale, 0), 0);
    const auto failed = pair.left.complete();
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->wr_id, 2U);
    EXPECT_EQ(failed->status, IBV_WC_REM_ACCESS_ERR);
    const auto flushed = pair.left.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->wr_id, 3U);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
    const auto receive = pair.right.complete();
    ASSERT_TRUE(receive);
    EXPECT_EQ(receive->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_ERR);
    ibv_async_event event{};
    ASSERT_EQ(soft::get_async_event(pair.right.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event.element.qp, pair.right.qp);
    soft::ack_async_event(&event);
}

struct RemoteCase {
    const char* name;
    ibv_wr_opcode opcode;
    unsigned region_access;
    unsigned qp_access;
    std::int64_t shift;
    ibv_wc_status expected;
};
class RemoteErrors : public testing::TestWithParam<RemoteCase> {};

TEST_P(RemoteErrors, EndTheConnectionWithTheRightStatus) {
    const RemoteCase& c = GetParam();
    EndpointOptions options;
    options.access = c.region_access;
    options.qp_access = c.qp_access;
    Pair pair{{}, options};
    std::memset(pair.right.memory, 'a', pair.right.options.bytes);
    std::memset(pair.left.memory, 'b', pair.left.options.bytes);
    const std::uint64_t address = pair.right.address() + static_cast<std::uint64_t>(c.shift);
    ASSERT_EQ(pair.left.post(c.opcode, 1, {pair.left.sge(0, 64)}, IBV_SEND_SIGNALED, address,
                             pair.right.mr->rkey),
              0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, c.expected);
    if (c.expected != IBV_WC_SUCCESS) {
        EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
        for (std::size_t i = 0; i < pair.right.options.bytes; ++i) {
            ASSERT_EQ(pair.right.memory[i], std::byte{'a'});
            ASSERT_EQ(pair.left.memory[i], std::byte{'b'});
        }
    }
}

constexpr unsigned every_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr unsigned qp_all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
INSTANTIATE_TEST_SUITE_P(
    QueuePairErrors, RemoteErrors,
    testing::Values(RemoteCase{"LastByte", IBV_WR_RDMA_WRITE, every_access, qp_all, (1 << 16) - 64,
                               IBV_WC_SUCCESS},
                    RemoteCase{"OnePastTheEnd", IBV_WR_RDMA_WRITE, every_access, qp_all,
                               (1 << 16) - 63, IBV_WC_REM_ACCESS_ERR},
                    RemoteCase{"BeforeTheBeginning", IBV_WR_RDMA_WRITE, every_access, qp_all, -1,
                               IBV_WC_REM_ACCESS_ERR},
                    RemoteCase{"FarAway", IBV_WR_RDMA_READ, every_access, qp_all,
                               std::int64_t{1} << 40, IBV_WC_REM_ACCESS_ERR},
                    RemoteCase{"WriteToReadOnly", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_READ, qp_all,
                               0, IBV_WC_REM_ACCESS_ERR},
                    RemoteCase{"ReadOfReadOnly", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ, qp_all,
                               0, IBV_WC_SUCCESS},
                    RemoteCase{"ReadOfWriteOnly", IBV_WR_RDMA_READ,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, qp_all, 0,
                               IBV_WC_REM_ACCESS_ERR},
                    RemoteCase{"QueuePairForbidsWrites", IBV_WR_RDMA_WRITE, every_access,
                               IBV_ACCESS_REMOTE_READ, 0, IBV_WC_REM_INV_REQ_ERR},
                    RemoteCase{"QueuePairForbidsReads", IBV_WR_RDMA_READ, every_access,
                               IBV_ACCESS_REMOTE_WRITE, 0, IBV_WC_REM_INV_REQ_ERR}),
    [](const auto& chosen) { return std::string{chosen.param.name}; });

TEST(QueuePairErrors, AKeyOfAnotherProtectionDomainIsNoKey) {
    Pair pair;
    Endpoint stranger;
    ASSERT_EQ(pair.left.write(1, 0, 8, stranger.address(), stranger.mr->rkey), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR);
}

TEST(QueuePairErrors, ABadLocalKeyIsALocalProtectionError) {
    for (const int kind : {0, 1, 2}) {
        Pair pair;
        ibv_sge piece = pair.left.sge(0, 8);
        if (kind == 0) piece.lkey += 256;
        if (kind == 1) piece.addr += pair.left.options.bytes - 7;
        if (kind == 2) piece.lkey = 0;
        ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 1, {piece}, 0, pair.right.address(),
                                 pair.right.mr->rkey),
                  0);
        const auto done = pair.left.complete();
        ASSERT_TRUE(done) << kind;
        EXPECT_EQ(done->status, IBV_WC_LOC_PROT_ERR);
        EXPECT_FALSE(pair.right.poll_once());
        EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_RTS) << "the peer has done nothing wrong";
    }
}

TEST(QueuePairErrors, ReadingIntoMemoryWithoutLocalWriteIsALocalProtectionError) {
    EndpointOptions options;
    options.access = 0;
    Pair pair{options, {}};
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(0, 8)}, 0, pair.right.address(),
                             pair.right.mr->rkey),
              0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_LOC_PROT_ERR);
}

TEST(QueuePairErrors, AReceiveThatIsTooSmallIsAnErrorOnBothSides) {
    Pair pair;
    ASSERT_EQ(pair.right.receive(1, 0, 63), 0);
    ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
    ASSERT_EQ(pair.left.send(3, 0, 64), 0);
    const auto sent = pair.left.complete();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->status, IBV_WC_REM_INV_REQ_ERR);
    const auto first = pair.right.complete();
    const auto second = pair.right.complete();
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->wr_id, 1U);
    EXPECT_EQ(first->status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(second->wr_id, 2U);
    EXPECT_EQ(second->status, IBV_WC_WR_FLUSH_ERR);
}

TEST(QueuePairErrors, AReceiveWithABadKeyIsAnErrorOnBothSides) {
    Pair pair;
    ibv_sge piece = pair.right.sge(0, 64);
    piece.lkey ^= 0x500;
    ibv_recv_wr wr{};
    wr.wr_id = 1;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(pair.right.qp, &wr, &bad), 0);
    ASSERT_EQ(pair.left.send(3, 0, 64), 0);
    const auto sent = pair.left.complete();
    const auto received = pair.right.complete();
    ASSERT_TRUE(sent && received);
    EXPECT_EQ(sent->status, IBV_WC_REM_OP_ERR);
    EXPECT_EQ(received->status, IBV_WC_LOC_PROT_ERR);
}

TEST(QueuePairErrors, ReceiverNotReadyGivesUpWhenToldTo) {
    EndpointOptions options;
    options.rnr_retry = 0;
    Pair pair{options, {}};
    ASSERT_EQ(pair.left.send(1, 0, 8, 0), 0);
    auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RNR_RETRY_EXC_ERR);

    options.rnr_retry = 3;
    Pair later{options, {}};
    ASSERT_EQ(later.left.send(1, 0, 8, 0), 0);
    ASSERT_EQ(later.left.send(2, 0, 8, 0), 0);
    done = later.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RNR_RETRY_EXC_ERR);
    done = later.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(later.right.qp), IBV_QPS_RTS);
}

TEST(QueuePairErrors, ReceiverNotReadyWaitsForEverIfToldTo) {
    Pair pair;
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    EXPECT_FALSE(pair.left.complete(std::chrono::milliseconds{50}));
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS);
    ASSERT_EQ(pair.right.receive(2, 0, 8), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

TEST(QueuePairErrors, ASilentPeerExhaustsTheRetries) {
    EndpointOptions options;
    options.timeout = 8;  // about a millisecond
    options.retry_cnt = 1;
    Endpoint left{options};
    Endpoint right;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0) << "right stays in RESET";
    ASSERT_EQ(left.send(1, 0, 8), 0);
    const auto done = left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
}

TEST(QueuePairErrors, AQueuePairThatDoesNotExistExhaustsTheRetries) {
    EndpointOptions options;
    options.timeout = 8;
    options.retry_cnt = 1;
    Endpoint left{options};
    ASSERT_EQ(left.connect(4000U << 12 | 77), 0);
    ASSERT_EQ(left.write(1, 0, 8, 0x1000, 0x100), 0);
    const auto done = left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
}

TEST(QueuePairErrors, APeerThatBecomesReadyLateIsWaitedFor) {
    EndpointOptions options;
    options.timeout = 0;  // for ever
    Endpoint left{options};
    Endpoint right;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(left.write(1, 0, 8, right.address(), right.mr->rkey), 0);
    EXPECT_FALSE(left.poll_once());
    ASSERT_EQ(right.to_init(), 0);
    EXPECT_FALSE(left.poll_once());
    ASSERT_EQ(right.to_rtr(left.qp->qp_num), 0);
    const auto done = left.poll_once();
    ASSERT_TRUE(done) << "the transition to RTR runs what waits";
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

TEST(QueuePairErrors, AQueuePairConnectedElsewhereDoesNotReceive) {
    EndpointOptions options;
    options.timeout = 8;
    options.retry_cnt = 0;
    Pair pair;
    Endpoint intruder{options};
    ASSERT_EQ(intruder.connect(pair.right.qp->qp_num), 0);
    ASSERT_EQ(intruder.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    const auto done = intruder.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_TRUE(pair.left.complete());
}

TEST(QueuePairErrors, DestroyingThePeerExhaustsTheRetries) {
    EndpointOptions options;
    options.timeout = 8;
    options.retry_cnt = 0;
    Pair pair{options, {}};
    ASSERT_EQ(pair.left.send(1, 0, 8), 0) << "waits";
    ASSERT_EQ(soft::destroy_qp(pair.right.qp), 0);
    pair.right.qp = nullptr;
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(done->vendor_err, soft::vendor_no_answer) << "its process lives";
}

TEST(QueuePairErrors, AGidIndexThatThePortDoesNotHaveIsRefusedInWords) {
    EndpointOptions options;
    options.alter = [](ibv_qp_attr& attributes) {
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.grh.sgid_index = 200;
    };
    Endpoint end{options};
    std::string said;
    base::set_log_sink([&said](auto, auto, std::string_view text) { said += text; });
    EXPECT_EQ(end.connect(end.qp->qp_num), EINVAL);
    base::set_log_sink({});
    EXPECT_THAT(said, testing::HasSubstr("no GID of index 200"));
}

}  // namespace
}  // namespace millrace::test
