// ibv_wr_*: the same work requests by another interface, posted together or not at all.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

constexpr std::uint64_t everything = IBV_QP_EX_WITH_RDMA_WRITE |
                                     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                                     IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;

ibv_qp* create_extended(Endpoint& end, ibv_qp_init_attr_ex& init) {
    return verbs_get_ctx(end.context)->create_qp_ex(end.context, &init);
}

ibv_qp_init_attr_ex attributes_for(Endpoint& end, std::uint64_t operations) {
    ibv_qp_init_attr_ex init{};
    init.send_cq = end.cq;
    init.recv_cq = end.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {end.options.send_wr, end.options.receive_wr, end.options.sges, end.options.sges,
                end.options.inline_bytes};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = end.pd;
    init.send_ops_flags = operations;
    return init;
}

/// Two connected ends, the left one with an extended queue pair.
struct RequestPair {
    explicit RequestPair(std::uint64_t operations = everything) {
        EXPECT_EQ(soft::destroy_qp(left.qp), 0);
        auto init = attributes_for(left, operations);
        left.qp = create_extended(left, init);
        if (left.qp == nullptr) throw std::runtime_error("cannot create an extended queue pair");
        qp = soft::qp_to_qp_ex(left.qp);
        EXPECT_EQ(left.connect(right.qp->qp_num), 0);
        EXPECT_EQ(right.connect(left.qp->qp_num), 0);
    }
    Endpoint left;
    Endpoint right;
    ibv_qp_ex* qp = nullptr;
};

void fill(Endpoint& end, std::size_t offset, std::size_t length, int value) {
    std::memset(end.memory + offset, value, length);
}
bool holds(const Endpoint& end, std::size_t offset, std::size_t length, int value) {
    return std::all_of(end.memory + offset, end.memory + offset + length,
                       [value](std::byte found) { return found == std::byte(value); });
}

TEST(WorkRequests, OfEveryKindArriveAsPosted) {
    RequestPair pair;
    Endpoint& left = pair.left;
    Endpoint& right = pair.right;
    ibv_qp_ex* const qp = pair.qp;
    fill(left, 0, 64, 1);
    fill(left, 64, 64, 2);
    fill(right, 4096, 64, 9);
    for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(right.receive(i, 1024 * i, 64), 0);

    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    qp->wr_id = 10;
    ibv_wr_rdma_write(qp, right.mr->rkey, right.address(8192));
    ibv_wr_set_sge(qp, left.mr->lkey, left.address(0), 64);
    qp->wr_id = 11;
    ibv_wr_rdma_write_imm(qp, right.mr->rkey, right.address(8256), 77);
    ibv_wr_set_sge(qp, left.mr->lkey, left.address(64), 64);
    qp->wr_id = 12;
    ibv_wr_send(qp);
    const ibv_sge pieces[] = {left.sge(0, 16), left.sge(64, 16)};
    ibv_wr_set_sge_list(qp, 2, pieces);
    qp->wr_id = 13;
    ibv_wr_send_imm(qp, 78);
    char first[] = "AAAA";
    char second[] = "BB";
    const ibv_data_buf buffers[] = {{first, 4}, {second, 2}};
    ibv_wr_set_inline_data_list(qp, 2, buffers);
    std::memset(first, 0, sizeof first);  // inline data is copied at once
    qp->wr_id = 14;
    ibv_wr_rdma_read(qp, right.mr->rkey, right.address(4096));
    ibv_wr_set_sge(qp, left.mr->lkey, left.address(512), 64);
    ASSERT_EQ(ibv_wr_complete(qp), 0);

    const ibv_wc_opcode opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
                                     IBV_WC_RDMA_READ};
    for (std::uint64_t id = 10; id <= 14; ++id) {
        const auto wc = left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS) << id;
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->opcode, opcodes[id - 10]);
    }
    EXPECT_TRUE(holds(right, 8192, 64, 1));
    EXPECT_TRUE(holds(right, 8256, 64, 2));
    EXPECT_TRUE(holds(left, 512, 64, 9));
    const auto immediate = right.complete();
    ASSERT_TRUE(immediate);
    EXPECT_EQ(immediate->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(immediate->imm_data, 77U);
    const auto sent = right.complete();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->byte_len, 32U);
    EXPECT_TRUE(holds(right, 1024, 16, 1));
    EXPECT_TRUE(holds(right, 1024 + 16, 16, 2));
    const auto last = right.complete();
    ASSERT_TRUE(last);
    EXPECT_EQ(last->byte_len, 6U);
    EXPECT_EQ(last->imm_data, 78U);
    EXPECT_EQ(std::memcmp(right.memory + 2048, "AAAABB", 6), 0);
}

TEST(WorkRequests, AreForgottenWhenAborted) {
    RequestPair pair;
    fill(pair.left, 0, 8, 1);
    ibv_wr_start(pair.qp);
    pair.qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(pair.qp, pair.right.mr->rkey, pair.right.address());
    ibv_wr_set_sge(pair.qp, pair.left.mr->lkey, pair.left.address(), 8);
    ibv_wr_abort(pair.qp);
    EXPECT_FALSE(pair.left.poll_once());
    EXPECT_TRUE(holds(pair.right, 0, 8, 0));
    ibv_wr_start(pair.qp);
    EXPECT_EQ(ibv_wr_complete(pair.qp), 0) << "an empty batch";
    EXPECT_FALSE(pair.left.poll_once());
}

TEST(WorkRequests, ArePostedTogetherOrNotAtAll) {
    RequestPair pair;
    ibv_qp_ex* const qp = pair.qp;
    fill(pair.left, 0, 8, 1);
    const auto write = [&] {
        ibv_wr_rdma_write(qp, pair.right.mr->rkey, pair.right.address());
        ibv_wr_set_sge(qp, pair.left.mr->lkey, pair.left.address(), 8);
    };
    qp->wr_flags = IBV_SEND_SIGNALED;

    ibv_wr_start(qp);
    write();
    ibv_wr_rdma_write(qp, pair.right.mr->rkey, pair.right.address());
    std::vector<char> much(pair.left.capacity.max_inline_data + 1);
    ibv_wr_set_inline_data(qp, much.data(), much.size());
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL) << "more inline data than the queue pair takes";

    ibv_wr_start(qp);
    write();
    ibv_wr_rdma_write(qp, pair.right.mr->rkey, pair.right.address());
    const std::vector<ibv_sge> many(pair.left.capacity.max_send_sge + 1, pair.left.sge(0, 1));
    ibv_wr_set_sge_list(qp, many.size(), many.data());
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL) << "too many pieces";

    ibv_wr_start(qp);
    for (std::uint32_t i = 0; i <= pair.left.capacity.max_send_wr; ++i) write();
    EXPECT_EQ(ibv_wr_complete(qp), ENOMEM) << "more requests than slots";

    ibv_wr_start(qp);
    ibv_wr_set_sge(qp, pair.left.mr->lkey, pair.left.address(), 8);
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL) << "data of no request";

    EXPECT_FALSE(pair.left.poll_once());
    EXPECT_TRUE(holds(pair.right, 0, 8, 0));
    ibv_wr_start(qp);
    for (std::uint32_t i = 0; i < pair.left.capacity.max_send_wr; ++i) write();
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    for (std::uint32_t i = 0; i < pair.left.capacity.max_send_wr; ++i) {
        EXPECT_TRUE(pair.left.complete());
    }
    EXPECT_TRUE(holds(pair.right, 0, 8, 1));
}

TEST(WorkRequests, NotAskedForAtCreationFailTheBatchAndNotTheProgram) {
    RequestPair pair{IBV_QP_EX_WITH_SEND};
    ibv_wr_start(pair.qp);
    ibv_wr_rdma_write(pair.qp, pair.right.mr->rkey, pair.right.address());
    ibv_wr_set_sge(pair.qp, pair.left.mr->lkey, pair.left.address(), 8);
    EXPECT_EQ(ibv_wr_complete(pair.qp), EOPNOTSUPP);
    ibv_wr_start(pair.qp);
    ibv_wr_send_tso(pair.qp, nullptr, 0, 0);
    EXPECT_EQ(ibv_wr_complete(pair.qp), EOPNOTSUPP);
    ibv_wr_start(pair.qp);
    ibv_wr_send(pair.qp);
    ibv_wr_set_xrc_srqn(pair.qp, 1);
    EXPECT_EQ(ibv_wr_complete(pair.qp), EOPNOTSUPP);
}

TEST(WorkRequests, OfUnsupportedKindsAreRefusedAtCreation) {
    Endpoint end;
    for (const std::uint64_t operations :
         {std::uint64_t{IBV_QP_EX_WITH_TSO}, std::uint64_t{IBV_QP_EX_WITH_ATOMIC_WRITE},
          std::uint64_t{1} << 40}) {
        auto init = attributes_for(end, everything | operations);
        errno = 0;
        EXPECT_EQ(create_extended(end, init), nullptr);
        EXPECT_EQ(errno, EOPNOTSUPP);
    }
    auto init = attributes_for(end, everything);
    init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
    init.create_flags = IBV_QP_CREATE_SCATTER_FCS;
    EXPECT_EQ(create_extended(end, init), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    init = attributes_for(end, everything);
    init.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE;
    EXPECT_EQ(create_extended(end, init), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(soft::qp_to_qp_ex(end.qp), nullptr) << "made without send_ops_flags";
    EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST(WorkRequests, BeforeReadyToSendAreRefused) {
    Endpoint end;
    auto init = attributes_for(end, everything);
    ibv_qp* const made = create_extended(end, init);
    ASSERT_NE(made, nullptr);
    ibv_qp_ex* const qp = soft::qp_to_qp_ex(made);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
    EXPECT_EQ(soft::destroy_qp(made), 0);
}

TEST(WorkRequests, OfTwoThreadsDoNotMix) {
    RequestPair pair;
    constexpr int batches = 2000;
    std::atomic<int> posted{0};
    const auto work = [&](int value) {
        for (int i = 0; i < batches; ++i) {
            std::byte bytes[8];
            std::memset(bytes, value, sizeof bytes);
            for (;;) {
                ibv_wr_start(pair.qp);
                pair.qp->wr_flags = 0;
                pair.qp->wr_id = static_cast<std::uint64_t>(value);
                ibv_wr_rdma_write(pair.qp, pair.right.mr->rkey, pair.right.address(64U * value));
                ibv_wr_set_inline_data(pair.qp, bytes, sizeof bytes);
                pair.qp->wr_flags = IBV_SEND_SIGNALED;
                ibv_wr_rdma_write(pair.qp, pair.right.mr->rkey,
                                  pair.right.address(64U * value + 8));
                ibv_wr_set_inline_data(pair.qp, bytes, sizeof bytes);
                const int error = ibv_wr_complete(pair.qp);
                if (error == 0) break;
                ASSERT_EQ(error, ENOMEM);
                std::this_thread::yield();  // until the poller has made room
            }
            ++posted;
        }
    };
    std::thread first{work, 1};
    std::thread second{work, 2};
    int seen[3] = {};
    for (int i = 0; i < 2 * batches; ++i) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        ++seen[wc->wr_id];
    }
    first.join();
    second.join();
    EXPECT_EQ(seen[1], batches);
    EXPECT_EQ(seen[2], batches);
    EXPECT_TRUE(holds(pair.right, 64, 16, 1));
    EXPECT_TRUE(holds(pair.right, 128, 16, 2));
}

}  // namespace
}  // namespace millrace::test
