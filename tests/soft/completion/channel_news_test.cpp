// What makes a completion channel's descriptor readable without being a completion: the death of a
// peer. Every channel with a queue pair that is connected to it hears of it, and who waited for the
// descriptor to become readable never waits in ibv_get_cq_event.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "soft/events.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

bool becomes_readable(const Endpoint& end) {
    pollfd waited{end.channel->fd, POLLIN, 0};
    return ::poll(&waited, 1, static_cast<int>(patience.count())) == 1;
}

TEST(ChannelNews, OfADeathReachTheChannelConcernedThoughAnotherOneHeardFirst) {
    RemotePair pair{with_events()};
    Endpoint bystander{with_events()};
    ASSERT_EQ(bystander.connect(pair.right.qpn), 0);
    for (Endpoint* const end : {&pair.left, &bystander}) {
        fcntl(end->channel->fd, F_SETFL, fcntl(end->channel->fd, F_GETFL) | O_NONBLOCK);
        ASSERT_EQ(ibv_req_notify_cq(end->cq, 0), 0);
    }
    ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
    pair.right.child.kill_and_wait();
    ASSERT_TRUE(becomes_readable(bystander));
    EXPECT_FALSE(take_event(bystander)) << "none of its requests has ended";
    ASSERT_TRUE(becomes_readable(pair.left));
    ASSERT_TRUE(take_event(pair.left));
    const auto flushed = pair.left.poll_once();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
}

TEST(ChannelNews, WithoutAnEventDoNotMakeABlockingProgramWaitThatFoundTheChannelReadable) {
    RemotePair pair;
    Endpoint waiting{with_events()};
    ASSERT_EQ(waiting.connect(pair.right.qpn), 0);
    ASSERT_EQ(ibv_req_notify_cq(waiting.cq, 0), 0);
    pair.right.child.kill_and_wait();
    ASSERT_TRUE(becomes_readable(waiting));
    alarm(30);  // ends a test that has failed
    EXPECT_TRUE(take_event(waiting)) << "an empty one";
    EXPECT_FALSE(waiting.poll_once());
    // It disarms as every event does, and the next one is a completion's.
    ASSERT_EQ(waiting.to_state(IBV_QPS_RESET), 0);
    ASSERT_EQ(waiting.connect(waiting.qp->qp_num), 0);
    ASSERT_EQ(ibv_req_notify_cq(waiting.cq, 0), 0);
    ASSERT_EQ(waiting.write(7, 0, 8, waiting.address(64), waiting.mr->rkey), 0);
    EXPECT_TRUE(take_event(waiting));
    alarm(0);
    const auto wc = waiting.poll_once();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 7U);
}

}  // namespace
}  // namespace millrace::test
