// What moves: SEND, WRITE, READ, immediate data, inline, scatter and gather, in one process.
#include <cstdint>
#include <numeric>

#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

void fill(Endpoint& end, std::size_t offset, std::size_t length, unsigned seed = 1) {
    for (std::size_t i = 0; i < length; ++i) {
        end.memory[offset + i] = static_cast<std::byte>((i * 7 + seed) & 0xff);
    }
}
bool same(const Endpoint& a, std::size_t at, const Endpoint& b, std::size_t bt, std::size_t n) {
    return std::memcmp(a.memory + at, b.memory + bt, n) == 0;
}

TEST(QueuePair, SendsToAPostedReceive) {
    Pair pair;
    fill(pair.left, 0, 100);
    ASSERT_EQ(pair.right.receive(7, 1000, 200), 0);
    ASSERT_EQ(pair.left.send(8, 0, 100), 0);
    const auto sent = pair.left.complete();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent->wr_id, 8U);
    EXPECT_EQ(sent->opcode, IBV_WC_SEND);
    EXPECT_EQ(sent->qp_num, pair.left.qp->qp_num);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->status, IBV_WC_SUCCESS);
    EXPECT_EQ(received->wr_id, 7U);
    EXPECT_EQ(received->opcode, IBV_WC_RECV);
    EXPECT_EQ(received->byte_len, 100U);
    EXPECT_EQ(received->wc_flags, 0U);
    EXPECT_TRUE(same(pair.left, 0, pair.right, 1000, 100));
    EXPECT_FALSE(pair.left.poll_once());
    EXPECT_FALSE(pair.right.poll_once());
}

TEST(QueuePair, WritesWhereTheKeyAllows) {
    Pair pair;
    fill(pair.left, 0, 5000);
    ASSERT_EQ(pair.left.write(1, 0, 5000, pair.right.address(64), pair.right.mr->rkey), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.left, 0, pair.right, 64, 5000));
    EXPECT_FALSE(pair.right.poll_once());
}

TEST(QueuePair, ReadsWhereTheKeyAllows) {
    Pair pair;
    fill(pair.right, 300, 4097);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(0, 1), pair.left.sge(10, 4096)},
                             IBV_SEND_SIGNALED, pair.right.address(300), pair.right.mr->rkey),
              0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, IBV_WC_RDMA_READ);
    EXPECT_TRUE(same(pair.left, 0, pair.right, 300, 1));
    EXPECT_TRUE(same(pair.left, 10, pair.right, 301, 4096));
}

TEST(QueuePair, WritesWithImmediateConsumesAReceive) {
    Pair pair;
    fill(pair.left, 0, 64);
    ASSERT_EQ(pair.right.receive(5, 0, 0), 0);
    ASSERT_EQ(
        pair.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, 6, {pair.left.sge(0, 64)}, IBV_SEND_SIGNALED,
                       pair.right.address(128), pair.right.mr->rkey, 0xdeadbeef),
        0);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->wr_id, 5U);
    EXPECT_EQ(received->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(received->byte_len, 64U);
    EXPECT_EQ(received->wc_flags, unsigned{IBV_WC_WITH_IMM});
    EXPECT_EQ(received->imm_data, 0xdeadbeef);
    EXPECT_TRUE(same(pair.left, 0, pair.right, 128, 64));
    ASSERT_TRUE(pair.left.complete());
}

TEST(QueuePair, SendsImmediateData) {
    Pair pair;
    ASSERT_EQ(pair.right.receive(5, 0, 16), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_SEND_WITH_IMM, 6, {}, IBV_SEND_SIGNALED, 0, 0, 77), 0);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->byte_len, 0U);
    EXPECT_EQ(received->imm_data, 77U);
    EXPECT_EQ(received->opcode, IBV_WC_RECV);
}

TEST(QueuePair, TakesInlineDataFromAnywhereAndAtOnce) {
    Pair pair;
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    char first[] = "inline ";
    char second[] = "data";
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 2,
                             {{reinterpret_cast<std::uint64_t>(first), 7, 0},
                              {reinterpret_cast<std::uint64_t>(second), 4, 12345}},
                             IBV_SEND_INLINE),
              0);
    std::memset(first, 0, sizeof first);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(pair.right.memory), received->byte_len),
              "inline data");
    EXPECT_FALSE(pair.left.poll_once()) << "it was not signaled";
}

TEST(QueuePair, GathersAndScattersAcrossPiecesOfUnequalSizes) {
    EndpointOptions options;
    options.sges = 8;
    Pair pair{options, options};
    fill(pair.left, 0, 1000);
    ibv_sge to[] = {pair.right.sge(5000, 1), pair.right.sge(6000, 0), pair.right.sge(7000, 500),
                    pair.right.sge(8000, 400)};
    ibv_recv_wr wr{};
    wr.sg_list = to;
    wr.num_sge = 4;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(pair.right.qp, &wr, &bad), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 1,
                             {pair.left.sge(0, 300), pair.left.sge(300, 3), pair.left.sge(303, 0),
                              pair.left.sge(303, 500)}),
              0);
    ASSERT_TRUE(pair.left.complete());
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->byte_len, 803U);
    EXPECT_TRUE(same(pair.left, 0, pair.right, 5000, 1));
    EXPECT_TRUE(same(pair.left, 1, pair.right, 7000, 500));
    EXPECT_TRUE(same(pair.left, 501, pair.right, 8000, 302));
}

TEST(QueuePair, ConnectedToItselfReceivesItsOwnSends) {
    Endpoint end;
    ASSERT_EQ(end.connect(end.qp->qp_num), 0);
    fill(end, 0, 32);
    ASSERT_EQ(end.receive(1, 100, 32), 0);
    ASSERT_EQ(end.send(2, 0, 32), 0);
    const auto first = end.complete();
    const auto second = end.complete();
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->wr_id + second->wr_id, 3U);
    EXPECT_TRUE(same(end, 0, end, 100, 32));
    ASSERT_EQ(end.send(3, 0, 16), 0) << "waits for a receive of its own";
    EXPECT_FALSE(end.poll_once());
    ASSERT_EQ(end.receive(4, 200, 32), 0);
    ASSERT_TRUE(end.complete());
    ASSERT_TRUE(end.complete());
    EXPECT_TRUE(same(end, 0, end, 200, 16));
}

TEST(QueuePair, RunsThousandsOfRequestsThroughTinyQueues) {
    EndpointOptions options;
    options.send_wr = 2;
    options.receive_wr = 1;
    Pair pair{options, options};
    for (std::uint64_t i = 0; i < 5000; ++i) {
        ASSERT_EQ(pair.right.receive(i, 512, 64), 0) << i;
        std::memcpy(pair.left.memory, &i, sizeof i);
        ASSERT_EQ(pair.left.send(i, 0, sizeof i, i % 2 == 0 ? 0U : unsigned{IBV_SEND_SIGNALED}), 0)
            << i;
        const auto received = pair.right.complete();
        ASSERT_TRUE(received);
        ASSERT_EQ(received->wr_id, i);
        std::uint64_t value = 0;
        std::memcpy(&value, pair.right.memory + 512, sizeof value);
        ASSERT_EQ(value, i);
        if (i % 2 == 1) {
            const auto sent = pair.left.complete();
            ASSERT_TRUE(sent);
            ASSERT_EQ(sent->wr_id, i);
        }
    }
}

TEST(QueuePair, ReportsFullUntilASignaledCompletionIsPolled) {
    EndpointOptions options;
    options.send_wr = 4;
    Pair pair{options, {}};
    const auto write = [&](std::uint64_t id, unsigned flags) {
        return pair.left.write(id, 0, 8, pair.right.address(), pair.right.mr->rkey, flags);
    };
    for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(write(i, 0), 0);
    ASSERT_EQ(write(3, IBV_SEND_SIGNALED), 0);
    EXPECT_EQ(write(4, 0), ENOMEM) << "executed, but its slot is not free";
    ASSERT_TRUE(pair.left.complete());
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(write(i, 0), 0);
    EXPECT_EQ(write(5, IBV_SEND_SIGNALED), ENOMEM);
}

TEST(QueuePair, NamesTheFirstRequestThatDidNotFit) {
    EndpointOptions options;
    options.send_wr = 2;
    Pair pair{options, {}};
    ibv_sge piece = pair.left.sge(0, 8);
    ibv_send_wr wrs[3]{};
    for (int i = 0; i < 3; ++i) {
        wrs[i].next = i < 2 ? &wrs[i + 1] : nullptr;
        wrs[i].sg_list = &piece;
        wrs[i].num_sge = 1;
        wrs[i].opcode = IBV_WR_RDMA_WRITE;
        wrs[i].wr.rdma = {pair.right.address(), pair.right.mr->rkey};
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(pair.left.qp, wrs, &bad), ENOMEM);
    EXPECT_EQ(bad, &wrs[2]);

    EndpointOptions small;
    small.receive_wr = 1;
    Endpoint end{small};
    ASSERT_EQ(end.to_init(), 0);
    ibv_recv_wr receives[2]{};
    receives[0].next = &receives[1];
    ibv_recv_wr* bad_receive = nullptr;
    EXPECT_EQ(ibv_post_recv(end.qp, receives, &bad_receive), ENOMEM);
    EXPECT_EQ(bad_receive, &receives[1]);
}

TEST(QueuePair, RefusesRequestsThatCanNeverRun) {
    Pair pair;
    const ibv_sge piece = pair.left.sge(0, 8);
    EXPECT_EQ(pair.left.post(IBV_WR_SEND, 1, std::vector<ibv_sge>(5, piece)), EINVAL);
    EXPECT_EQ(pair.left.post(IBV_WR_SEND, 1, {pair.left.sge(0, 257)}, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {piece}, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(pair.left.post(IBV_WR_TSO, 1, {piece}), EINVAL);
    EXPECT_EQ(pair.left.post(IBV_WR_BIND_MW, 1, {piece}), EINVAL);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS) << "a refused request is no error of the queue";
}

TEST(QueuePair, SignalsEverythingIfAskedAtCreation) {
    EndpointOptions options;
    options.signal_all = true;
    Pair pair{options, {}};
    ASSERT_EQ(pair.left.write(9, 0, 8, pair.right.address(), pair.right.mr->rkey, 0), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, 9U);
}

TEST(QueuePair, KeepsTheOrderOfRequestsThatHadToWait) {
    Pair pair;
    for (std::uint64_t i = 0; i < 8; ++i) {
        std::memcpy(pair.left.memory + 8 * i, &i, 8);
        ASSERT_EQ(pair.left.send(i, 8 * i, 8, IBV_SEND_SIGNALED), 0);
    }
    // A WRITE behind a SEND that waits must wait too.
    const std::uint64_t mark = 0x1234;
    std::memcpy(pair.left.memory + 1000, &mark, 8);
    ASSERT_EQ(pair.left.write(8, 1000, 8, pair.right.address(2000), pair.right.mr->rkey), 0);
    std::uint64_t seen = 0;
    std::memcpy(&seen, pair.right.memory + 2000, 8);
    EXPECT_EQ(seen, 0U);
    EXPECT_FALSE(pair.left.poll_once());
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(pair.right.receive(100 + i, 64 * i, 64), 0);
    for (std::uint64_t i = 0; i < 8; ++i) {
        const auto received = pair.right.complete();
        ASSERT_TRUE(received);
        EXPECT_EQ(received->wr_id, 100 + i);
        std::uint64_t value = 99;
        std::memcpy(&value, pair.right.memory + 64 * i, 8);
        EXPECT_EQ(value, i);
    }
    for (std::uint64_t i = 0; i <= 8; ++i) {
        const auto sent = pair.left.complete();
        ASSERT_TRUE(sent);
        EXPECT_EQ(sent->wr_id, i);
        EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
    }
    std::memcpy(&seen, pair.right.memory + 2000, 8);
    EXPECT_EQ(seen, mark);
}

TEST(QueuePair, KeepsInlineDataOfRequestsThatWait) {
    Pair pair;
    char text[] = "kept";
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 1, {{reinterpret_cast<std::uint64_t>(text), 4, 0}},
                             IBV_SEND_INLINE | IBV_SEND_SIGNALED),
              0);
    std::memset(text, 'x', 4);
    ASSERT_EQ(pair.right.receive(2, 0, 16), 0);
    ASSERT_TRUE(pair.right.complete());
    EXPECT_EQ(std::memcmp(pair.right.memory, "kept", 4), 0);
    ASSERT_TRUE(pair.left.complete());
}

}  // namespace
}  // namespace millrace::test
