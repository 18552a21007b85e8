// A peer whose memory does not come when it is touched: every call returns, the connection breaks,
// and memory that may still be copied to is not free.
#include <cerrno>
#include <cstdint>
#include <string>

#include "soft/held_pages.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr std::size_t page = 4096;

EndpointOptions with_private_memory(ibv_qp_type type = IBV_QPT_RC) {
    EndpointOptions options;
    options.shared_memory = false;
    options.type = type;
    return options;
}

/// The peer's page at 0 is held.
class AbsentPages : public testing::Test {
  protected:
    void SetUp() override {
        if (!HeldPages::possible()) GTEST_SKIP() << "no userfaultfd for this user";
    }

    static void expect_failed(Endpoint& end, std::uint64_t id) {
        const auto wc = end.complete(std::chrono::seconds{40});
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, IBV_WC_RETRY_EXC_ERR);
        EXPECT_EQ(state_of(end.qp), IBV_QPS_ERR);
    }
    /// After one that failed.
    static void expect_in_order(RemotePair& pair, bool peers_memory_in_use) {
        Pair another;
        EXPECT_EQ(another.left.write(1, 0, 8, another.right.address(), another.right.mr->rkey), 0);
        EXPECT_TRUE(another.left.complete());
        EXPECT_EQ(soft::dereg_mr(pair.left.mr), 0) << "nobody is in our memory";
        pair.left.mr = nullptr;
        EXPECT_EQ(pair.left.to_state(IBV_QPS_RESET), EBUSY) << "somebody may be in the peer's";
        if (peers_memory_in_use) {
            EXPECT_EQ(pair.right.ask("dereg"), std::to_string(EBUSY));
        }
    }
};

TEST_F(AbsentPages, OfAWriteBreakTheConnectionAndNoMore) {
    RemotePair pair{with_private_memory(), {"private"}};
    ASSERT_EQ(pair.right.ask("hold 0 4096"), "held");
    ASSERT_EQ(pair.left.write(7, 0, 64, pair.right.address, pair.right.rkey), 0);
    expect_failed(pair.left, 7);
    expect_in_order(pair, true);
}

TEST_F(AbsentPages, OfAReadBreakTheConnectionAndNoMore) {
    RemotePair pair{with_private_memory(), {"private"}};
    ASSERT_EQ(pair.right.ask("hold 0 4096"), "held");
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 7, {pair.left.sge(0, 2 * page)}, IBV_SEND_SIGNALED,
                             pair.right.address, pair.right.rkey),
              0);
    expect_failed(pair.left, 7);
    expect_in_order(pair, true);
}

TEST_F(AbsentPages, OfAReceiveBreakTheConnectionAndNoMore) {
    RemotePair pair{with_private_memory(), {"private"}};
    ASSERT_EQ(pair.right.ask("hold 0 4096"), "held");
    ASSERT_EQ(pair.right.ask("receive 1 0 64"), "0");
    ASSERT_EQ(pair.left.send(7, 0, 64), 0);
    expect_failed(pair.left, 7);
    expect_in_order(pair, true);
}

TEST_F(AbsentPages, OfAnUnreliableWriteBreakItsQueuePair) {
    RemotePair pair{with_private_memory(IBV_QPT_UC), {"private", "uc"}};
    ASSERT_EQ(pair.right.ask("hold 0 4096"), "held");
    ASSERT_EQ(pair.left.write(7, 0, 64, pair.right.address, pair.right.rkey), 0);
    expect_failed(pair.left, 7);
    expect_in_order(pair, true);
}

TEST_F(AbsentPages, OfASenderThatTheReceiverRunsBreakTheConnection) {
    RemotePair pair{with_private_memory(), {"private"}};
    HeldPages held{pair.left.memory, page};
    ASSERT_EQ(pair.left.send(7, 0, 64), 0);  // waits for a receive
    EXPECT_EQ(pair.right.ask("receive 1 0 64"), "0");
    expect_failed(pair.left, 7);
    EXPECT_EQ(pair.right.ask("complete"), "1 " + std::to_string(IBV_WC_WR_FLUSH_ERR) + " 0");
    EXPECT_EQ(soft::dereg_mr(pair.left.mr), EBUSY) << "the peer may be in our memory";
    held.release();
    pair.right.child.kill_and_wait();
    const base::Deadline patience = patience_for_a_coincidence();
    int later = EBUSY;
    while (later == EBUSY && !patience.expired()) {
        static_cast<void>(pair.left.poll_once());  // looks after the peers
        later = soft::dereg_mr(pair.left.mr);
    }
    EXPECT_EQ(later, 0);
    pair.left.mr = nullptr;
}

TEST_F(AbsentPages, ThatComeLaterAreWaitedFor) {
    RemotePair pair{with_private_memory(), {"private"}};
    // Never touched, there and here: zeros until they are written.
    constexpr std::size_t bytes = 16 * page;
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(0, bytes)}, IBV_SEND_SIGNALED,
                             pair.right.address, pair.right.rkey),
              0);
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    std::memset(pair.left.memory, 9, bytes);
    ASSERT_EQ(pair.left.write(2, 3, bytes - 3, pair.right.address + 5 * page + 3, pair.right.rkey),
              0);
    wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.ask("check 0 20483 0"), "same");
    EXPECT_EQ(pair.right.ask("check 20483 65533 9"), "same");
    EXPECT_EQ(pair.right.ask("check 86016 4096 0"), "same");
}

}  // namespace
}  // namespace millrace::test
