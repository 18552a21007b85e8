// A peer that ends in good order is not a peer that dies: what it leaves behind is as on a wire.
#include <chrono>
#include <string>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

TEST(Departure, InGoodOrderLeavesPostedReceivesAndDoneCompletionsAlone) {
    for (const bool events : {false, true}) {
        EndpointOptions options;
        options.events = events;
        RemotePair pair{options};
        ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
        ASSERT_EQ(pair.left.receive(2, 8, 8), 0);
        ASSERT_EQ(pair.right.ask("send 7 0 8"), "0");
        ASSERT_EQ(pair.right.ask("complete"), "7 0 8");
        pair.right.child.close_input();  // it destroys everything and ends
        ASSERT_TRUE(pair.right.child.wait().success());

        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, 1U);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        // Some looks at its life later, the second receive is still only posted.
        EXPECT_FALSE(pair.left.complete(std::chrono::milliseconds{200}));
        EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS);

        // What is sent to it fails after its retries, and takes the rest with it.
        ASSERT_EQ(pair.left.send(3, 0, 8), 0);
        const auto failed = pair.left.complete();
        ASSERT_TRUE(failed);
        EXPECT_EQ(failed->wr_id, 3U);
        EXPECT_EQ(failed->status, IBV_WC_RETRY_EXC_ERR);
        const auto flushed = pair.left.complete();
        ASSERT_TRUE(flushed);
        EXPECT_EQ(flushed->wr_id, 2U);
        EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    }
}

}  // namespace
}  // namespace millrace::test
