// Which error a request ends with, and when: what is read here is judged before the peer has its
// say, what is to be written here after it.
#include <cstdint>
#include <optional>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr std::uint32_t no_key = 0xdead00;

EndpointOptions with_everything() {
    EndpointOptions options;
    options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC;
    options.qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    return options;
}

ibv_sge without_key(Endpoint& end, std::uint32_t length = 8) {
    ibv_sge piece = end.sge(0, length);
    piece.lkey = no_key;
    return piece;
}

TEST(ASendWithAWrongKey, FailsAtOnceThoughThereIsNoReceive) {
    Pair pair;  // which would try again for ever
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 1, {without_key(pair.left)}), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_RTS) << "nothing has been sent";
    ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
    EXPECT_FALSE(pair.right.poll_once());
}

TEST(ASendWithAWrongKey, FailsAtOnceThoughItsPeerIsNotReady) {
    Endpoint left;
    Endpoint right;
    ASSERT_EQ(right.to_init(), 0);
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(left.post(IBV_WR_SEND, 1, {without_key(left)}), 0);
    EXPECT_EQ(status_of(left), IBV_WC_LOC_PROT_ERR);
}

TEST(ASendWithAWrongKey, FailsInItsTurnBehindOneThatWaits) {
    Pair pair;
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 2, {without_key(pair.left)}), 0);
    EXPECT_FALSE(pair.left.poll_once());
    ASSERT_EQ(pair.right.receive(3, 4096, 64), 0);
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 1U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 2U);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR);
}

TEST(ARead, IsJudgedByThePeerBeforeItsOwnKey) {
    for (const bool remote_too : {true, false}) {
        Pair pair{with_everything(), with_everything()};
        ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {without_key(pair.left)}, IBV_SEND_SIGNALED,
                                 pair.right.address(), remote_too ? no_key : pair.right.mr->rkey),
                  0);
        EXPECT_EQ(status_of(pair.left), remote_too ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
    }
}

TEST(AnAtomic, IsJudgedAndExecutedByThePeerBeforeItsOwnKey) {
    const auto attempt = [](std::uint64_t offset, bool known, std::uint64_t expected_word) {
        Pair pair{with_everything(), with_everything()};
        EXPECT_EQ(pair.left.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {without_key(pair.left)},
                                   pair.right.address(offset), known ? pair.right.mr->rkey : no_key,
                                   5, 0),
                  0);
        const ibv_wc_status status = status_of(pair.left);
        EXPECT_EQ(pair.right.word(0), expected_word);
        return status;
    };
    EXPECT_EQ(attempt(0, false, 0), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(attempt(4, true, 0), IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(attempt(0, true, 5), IBV_WC_LOC_PROT_ERR)
        << "the peer cannot know where its answer goes";
}

TEST(AWriteWithImmediate, ToAWrongKeyIsALocalAccessErrorOfTheReceive) {
    Pair pair{with_everything(), with_everything()};
    ASSERT_EQ(pair.right.receive(7, 0, 64), 0);
    ASSERT_EQ(pair.right.receive(8, 0, 64), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, 1, {pair.left.sge(0, 8)},
                             IBV_SEND_SIGNALED, pair.right.address(), no_key),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_REM_ACCESS_ERR);
    auto wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 7U);
    EXPECT_EQ(wc->status, IBV_WC_LOC_ACCESS_ERR);
    wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 8U);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
}

}  // namespace
}  // namespace millrace::test
