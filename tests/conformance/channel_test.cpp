// Completion channels: when an event is due and when not (InfiniBand specification 1.2.1 vol. 1,
// 11.4.2.2; ibv_req_notify_cq(3), ibv_get_cq_event(3)).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdint>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

using CompletionChannel = OnDevice;

/// No event is there now; devices get this long to prove otherwise.
constexpr std::chrono::milliseconds a_moment{30};

/// Takes one event and acknowledges it; the queue that it names.
ibv_cq* take_event(const Channel& channel, void** context = nullptr) {
    if (!event_waits(channel)) return nullptr;
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    if (ibv_get_cq_event(channel.get(), &queue, context != nullptr ? context : &unused) != 0) {
        return nullptr;
    }
    ibv_ack_cq_events(queue, 1);
    return queue;
}

TEST_F(CompletionChannel, TellsOfACompletionAfterArmingAndNamesItsQueue) {
    Loopback pair{device};
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
    EXPECT_FALSE(event_waits(pair.b.channel, a_moment));
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    void* context = nullptr;
    EXPECT_EQ(take_event(pair.b.channel, &context), pair.b.receives.get());
    EXPECT_EQ(context, &pair.b) << "what ibv_create_cq was given";
    EXPECT_COMPLETES(pair.b.receives, 2, IBV_WC_RECV);
}

TEST_F(CompletionChannel, IsSilentWithoutArming) {
    Loopback pair{device};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_FALSE(event_waits(pair.a.channel, a_moment));
}

TEST_F(CompletionChannel, TellsOncePerArming) {
    Loopback pair{device};
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
        EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
    }
    EXPECT_EQ(take_event(pair.a.channel), pair.a.sends.get());
    EXPECT_FALSE(event_waits(pair.a.channel, a_moment)) << "one event for one arming";
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    ASSERT_EQ(pair.a.write(9, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_EQ(take_event(pair.a.channel), pair.a.sends.get());
}

TEST_F(CompletionChannel, ArmingTwiceIsArmingOnce) {
    Loopback pair{device};
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_EQ(take_event(pair.a.channel), pair.a.sends.get());
    EXPECT_FALSE(event_waits(pair.a.channel, a_moment));
}

TEST_F(CompletionChannel, OldCompletionsAreNoNews) {
    Loopback pair{device};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    // A read behind it: its completion proves that the first one has been delivered.
    ASSERT_EQ(pair.a.read(2, {pair.a_memory.slice(64, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_READ);
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    EXPECT_FALSE(event_waits(pair.a.channel, a_moment));
}

// A queue is armed from where it was polled: between the poll that finds nothing and the arming a
// completion may come, and the program need not look again.
TEST_F(CompletionChannel, WhatIsNotPolledWhenItIsArmedIsNews) {
    Loopback pair{device};
    for (std::uint64_t id = 0; id < 2; ++id) {
        ASSERT_EQ(pair.b.receive(id, {pair.b_memory.slice(0, 64)}), 0);
        ASSERT_EQ(pair.a.send(id, {pair.a_memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_SEND);  // so the receive is complete, too
    }
    for (std::uint64_t id = 0; id < 2; ++id) {
        ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
        EXPECT_EQ(take_event(pair.b.channel), pair.b.receives.get()) << id;
        EXPECT_COMPLETES(pair.b.receives, id, IBV_WC_RECV);
    }
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
    EXPECT_FALSE(event_waits(pair.b.channel, a_moment)) << "all has been polled";
}

TEST_F(CompletionChannel, ArmedForSolicitedOnesAnOrdinaryReceiveIsSilent) {
    Loopback pair{device};
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.b.receive(id, {pair.b_memory.slice(0, 64)}), 0);
    }
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 1), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(pair.b.receives, 0, IBV_WC_RECV);
    EXPECT_FALSE(event_waits(pair.b.channel, a_moment));
    ASSERT_EQ(pair.a.send(2, {pair.a_memory.slice(0, 8)}, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED),
              0);
    EXPECT_EQ(take_event(pair.b.channel), pair.b.receives.get());
    EXPECT_COMPLETES(pair.b.receives, 1, IBV_WC_RECV);
}

TEST_F(CompletionChannel, AWriteWithImmediateMayBeSolicited) {
    Loopback pair{device};
    ASSERT_EQ(pair.b.receive(1, {}), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 1), 0);
    ASSERT_EQ(pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 2, {pair.a_memory.slice(0, 8)},
                          at(pair.b_memory), IBV_SEND_SIGNALED | IBV_SEND_SOLICITED),
              0);
    EXPECT_EQ(take_event(pair.b.channel), pair.b.receives.get());
    EXPECT_COMPLETES(pair.b.receives, 1, IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST_F(CompletionChannel, ArmedForSolicitedOnesAFailureIsTold) {
    Loopback pair{device};
    ASSERT_EQ(pair.b.receive(1, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 1), 0);
    ASSERT_EQ(pair.b.to(IBV_QPS_ERR), 0);
    EXPECT_EQ(take_event(pair.b.channel), pair.b.receives.get());
    EXPECT_FAILS(pair.b.receives, 1, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(CompletionChannel, ArmingForAllOverridesArmingForSolicitedOnes) {
    Loopback pair{device};
    ASSERT_EQ(pair.b.receive(1, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 1), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_EQ(take_event(pair.b.channel), pair.b.receives.get());
}

TEST_F(CompletionChannel, ArmingForSolicitedOnesDoesNotUndoArmingForAll) {
    Loopback pair{device};
    ASSERT_EQ(pair.b.receive(1, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 1), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_EQ(take_event(pair.b.channel), pair.b.receives.get());
}

TEST_F(CompletionChannel, ASendThatFailsWhileNobodyPollsIsTold) {
    Options options = impatient();
    options.rnr_retries = 1;
    options.min_rnr_timer = 14;  // 1 ms
    Loopback pair{device, options};
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_EQ(take_event(pair.a.channel), pair.a.sends.get());
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(CompletionChannel, ServesSeveralQueuesAndNamesEach) {
    Loopback pair{device};
    ASSERT_EQ(pair.a.receive(5, {pair.a_memory.slice(0, 64)}), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.a.receives.get(), 0), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_EQ(take_event(pair.a.channel), pair.a.sends.get());
    ASSERT_EQ(pair.b.send(2, {pair.b_memory.slice(0, 8)}), 0);
    EXPECT_EQ(take_event(pair.a.channel), pair.a.receives.get());
}

TEST_F(CompletionChannel, WorksInEpollAndWithoutBlocking) {
    Loopback pair{device};
    const int flags = fcntl(pair.a.channel->fd, F_GETFL);
    ASSERT_EQ(fcntl(pair.a.channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    errno = 0;
    EXPECT_NE(ibv_get_cq_event(pair.a.channel.get(), &queue, &context), 0);
    EXPECT_EQ(errno, EAGAIN);
    const int set = epoll_create1(EPOLL_CLOEXEC);
    ASSERT_GE(set, 0);
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.u64 = 42;
    ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.a.channel->fd, &wanted), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.a.sends.get(), 0), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    epoll_event got{};
    EXPECT_EQ(epoll_wait(set, &got, 1, 20'000), 1);
    EXPECT_EQ(got.data.u64, 42U);
    ASSERT_EQ(ibv_get_cq_event(pair.a.channel.get(), &queue, &context), 0);
    ibv_ack_cq_events(queue, 1);
    EXPECT_EQ(queue, pair.a.sends.get());
    close(set);
}

TEST_F(CompletionChannel, NoWakeUpIsLostBetweenTheLastPollAndArming) {
    Loopback pair{device};
    std::uint64_t received = 0;
    // As the manual page has it: arm, then poll until empty, then wait.
    ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
    for (std::uint64_t id = 0; id < 200; ++id) {
        ASSERT_EQ(pair.b.receive(id, {pair.b_memory.slice(0, 64)}), 0);
        ASSERT_EQ(pair.a.send(id, {pair.a_memory.slice(0, 8)}), 0);
        while (received <= id) {
            ASSERT_EQ(take_event(pair.b.channel), pair.b.receives.get()) << "after " << received;
            ASSERT_EQ(ibv_req_notify_cq(pair.b.receives.get(), 0), 0);
            while (poll_once(pair.b.receives.get())) ++received;
        }
        EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_SEND);
    }
}

}  // namespace
}  // namespace millrace::conformance
