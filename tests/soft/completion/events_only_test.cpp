// Completion channels that tell events alone: one descriptor, and the program keeps the time. What
// came by a timer before comes to whoever sleeps for as long as next_alarm() says, in every mode,
// and to whoever sleeps already when another thread sets it.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "queue_pair/queue_pair.hpp"
#include "soft/events.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"
#include "support/resources.hpp"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

EndpointOptions with_events_only() {
    EndpointOptions options = with_events();
    options.events_only = true;
    return options;
}

/// Sleeps as a program does that keeps the time: until the descriptor is readable or the alarm is
/// due, again and again. False: no event in 20 s.
bool sleep_for_event(const Endpoint& end) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (std::chrono::steady_clock::now() < deadline) {
        const auto limit = std::min<std::chrono::nanoseconds>(
            soft::next_alarm(end.channel), deadline - std::chrono::steady_clock::now());
        const timespec time{.tv_sec = limit / 1s, .tv_nsec = (limit % 1s).count()};
        pollfd entry{end.channel->fd, POLLIN, 0};
        (void)ppoll(&entry, 1, &time, nullptr);
        if (std::chrono::steady_clock::now() < deadline && take_event(end)) return true;
    }
    return false;
}

TEST(EventsOnly, TakeOneDescriptor) {
    const Endpoint one;  // what the process has of the device
    const std::size_t before = open_descriptors();
    const Endpoint end{with_events_only()};
    const std::size_t with = open_descriptors();
    const Endpoint none;
    EXPECT_EQ(with - before, open_descriptors() - with + 1);
}

TEST(EventsOnly, TellOfACompletionOfAnotherProcess) {
    RemotePair pair{with_events_only()};
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(pair.left.receive(1, 0, 64), 0);
        ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
        EXPECT_FALSE(take_event(pair.left)) << "never blocks";
        ASSERT_EQ(pair.right.ask("send 1 0 8"), "0");
        ASSERT_EQ(pair.right.ask("poll"), "1 0 8");
        EXPECT_TRUE(is_readable(pair.left.channel->fd, 20'000));
        ASSERT_TRUE(take_event(pair.left));
        ASSERT_TRUE(pair.left.poll_once());
        EXPECT_FALSE(is_readable(pair.left.channel->fd));
    }
}

TEST(EventsOnly, LeaveThePeersEndToTheProgramAndTellWhatItFlushed) {
    RemotePair pair{with_events_only()};
    ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    pair.right.child.kill_and_wait();
    ASSERT_FALSE(is_readable(pair.left.channel->fd));
    ASSERT_TRUE(take_event(pair.left)) << "who asks is told";
    const auto flushed = pair.left.poll_once();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
}

class EventsOnlyIn : public testing::TestWithParam<std::string> {};

TEST_P(EventsOnlyIn, ASleeperHearsThatNoReceiveCameInTime) {
    const ModeScope mode{GetParam()};
    EndpointOptions options = with_events_only();
    options.rnr_retry = 3;
    EndpointOptions slow;
    slow.min_rnr_timer = 22;  // 20.48 ms
    for (int tries = 0; tries < 20; ++tries) {
        Pair pair{options, slow};
        ASSERT_EQ(pair.left.send(1, 0, 8), 0);
        ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
        if (pair.left.poll_once()) continue;  // this thread came late: there was time for all
        ASSERT_TRUE(sleep_for_event(pair.left));
        const auto done = pair.left.poll_once();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_RNR_RETRY_EXC_ERR);
        EXPECT_EQ(soft::next_alarm(pair.left.channel), std::chrono::nanoseconds::max());
        return;
    }
    FAIL() << "it was told before it slept";
}

TEST_P(EventsOnlyIn, ASleeperHearsThatAStoppedPeerDidNotAnswer) {
    const ModeScope mode{GetParam()};
    EndpointOptions options = with_events_only();
    options.rnr_retry = 1;
    options.timeout = 15;  // 134 ms
    options.retry_cnt = 1;
    RemotePair pair{options};
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(pair.right.ask("receive 1 0 64"), "0");
        ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
        ASSERT_EQ(pair.left.send(1, 0, 8), 0);
        ASSERT_TRUE(sleep_for_event(pair.left)) << "a completion on its way comes, too";
        const auto done = pair.left.complete();
        ASSERT_TRUE(done);
        ASSERT_EQ(done->status, IBV_WC_SUCCESS);
    }
    ASSERT_TRUE(pair.right.child.stop());
    // Armed before: on a link its end may come at once.
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    ASSERT_EQ(pair.left.send(2, 0, 8), 0) << "without a receive";
    EXPECT_TRUE(sleep_for_event(pair.left));
    const auto done = pair.left.poll_once();
    ASSERT_TRUE(done);
    EXPECT_NE(done->status, IBV_WC_SUCCESS);
    pair.right.child.resume();
}

// A peer is stopped anywhere, also where it has just executed a request, and holds the lock of
// those that wait.
TEST_P(EventsOnlyIn, ASleeperHearsThatAPeerThatHoldsTheLockDidNotAnswer) {
    const ModeScope mode{GetParam()};
    EndpointOptions options = with_events_only();
    options.rnr_retry = 1;
    options.timeout = 12;  // 17 ms
    options.retry_cnt = 1;
    Pair pair{options};
    auto& lock = static_cast<soft::QueuePair*>(pair.left.qp)->block.pending->lock;
    lock.store(soft::run_peer);
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0) << "without a receive";
    EXPECT_TRUE(sleep_for_event(pair.left));
    const auto done = pair.left.poll_once();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(lock.load(), soft::run_peer) << "it is the peer's still";
    lock.store(soft::run_free);
}

// Nobody rings when the last executor leaves, and a stopped one never does.
TEST(EventsOnly, TellOfWhatWasFlushedBesideAStoppedExecutor) {
    EndpointOptions options = with_events_only();
    options.rnr_retry = 1;
    Pair pair{options};
    auto& executes = static_cast<soft::QueuePair*>(pair.right.qp)->block.hazard->run.word;
    executes.store(executes.load() | 1);
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0) << "without a receive";
    EXPECT_TRUE(sleep_for_event(pair.left));
    const auto done = pair.left.poll_once();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RNR_RETRY_EXC_ERR);
    executes.store(executes.load() & ~std::uint64_t{1});
}

// The sleeper asked before there was an alarm: the bell tells it that there is one now.
TEST_P(EventsOnlyIn, ASleeperHearsOfAnAlarmThatAnotherThreadSets) {
    const ModeScope mode{GetParam()};
    EndpointOptions options = with_events_only();
    options.rnr_retry = 3;
    EndpointOptions slow;
    slow.min_rnr_timer = 22;
    Pair pair{options, slow};
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    ASSERT_EQ(soft::next_alarm(pair.left.channel), std::chrono::nanoseconds::max());
    std::jthread other{[&] {
        std::this_thread::sleep_for(20ms);
        EXPECT_EQ(pair.left.send(1, 0, 8), 0);
        ibv_wc none;
        EXPECT_EQ(ibv_poll_cq(pair.left.cq, 1, &none), 0);
    }};
    ASSERT_TRUE(sleep_for_event(pair.left));
    other.join();
    const auto done = pair.left.poll_once();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_RNR_RETRY_EXC_ERR);
}

// A period of 40 ms, and nobody but the clock to end it.
TEST_P(EventsOnlyIn, AnEventThatIsPutOffComesInTime) {
    const ModeScope mode{GetParam()};
    Endpoint end{with_events_only()};
    ASSERT_EQ(end.connect(end.qp->qp_num), 0);
    ibv_modify_cq_attr attributes{};
    attributes.attr_mask = IBV_CQ_ATTR_MODERATE;
    attributes.moderate = {.cq_count = 10, .cq_period = 40'000};
    ASSERT_EQ(ibv_modify_cq(end.cq, &attributes), 0);
    ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
    ASSERT_EQ(end.write(7, 0, 8, end.address(64), end.mr->rkey), 0);
    ASSERT_TRUE(sleep_for_event(end));
    const auto done = end.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, 7U);
}

INSTANTIATE_TEST_SUITE_P(Modes, EventsOnlyIn,
                         testing::Values("fast", "strict", "shaped:unlimited,latency=1ms",
                                         "shaped:100m,latency=0"),
                         [](const auto& chosen) {
                             std::string name = chosen.param;
                             std::replace_if(
                                 name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                                 '_');
                             return name;
                         });

}  // namespace
}  // namespace millrace::test
