// Failures of a reliable connection: receiver not ready, no answer, flushing, and what both sides
// are told (InfiniBand specification 1.2.1 vol. 1, 9.7.5, 9.7.7, 9.9, 10.8.4, 11.6.2).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

using Errors = OnDevice;

Options with_rnr(std::uint8_t retries, std::uint8_t timer) {
    Options options;
    options.rnr_retries = retries;
    options.min_rnr_timer = timer;
    return options;
}

// --- what the two ends were told of each other --------------------------------------------------

TEST_F(Errors, PacketsWhoseSequenceNumbersThePeerDoesNotExpectAreNeverAnswered) {
    Options ahead = impatient();
    ahead.own_psn = first_psn + 1000;
    Loopback pair{device, ahead, impatient()};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 64)}, at(pair.b_memory)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
    EXPECT_TRUE(pair.b_memory.untouched());
    EXPECT_EQ(pair.b.state(), IBV_QPS_RTS) << "not the receiver's error";
}

TEST_F(Errors, AWriteOfSeveralPacketsToAnEndWithAnotherPathMtuIsAnInvalidRequest) {
    Options large = impatient();
    large.mtu = IBV_MTU_512;
    Options small = impatient();
    small.mtu = IBV_MTU_256;
    for (const bool to_small : {true, false}) {
        Loopback pair{device, to_small ? large : small, to_small ? small : large};
        pair.a_memory.fill(1);
        ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 256)}, at(pair.b_memory)), 0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
        EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 256)) << "one packet for both";
        ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 4096)}, at(pair.b_memory, 4096)), 0);
        EXPECT_FAILS(pair.a.sends, 2, IBV_WC_REM_INV_REQ_ERR);
        EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
    }
}

// --- receiver not ready -------------------------------------------------------------------------

TEST_F(Errors, WithoutRetriesASendThatFindsNoReceiveFails) {
    Loopback pair{device, with_rnr(0, 1)};
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
    EXPECT_EQ(pair.b.state(), IBV_QPS_RTS) << "not the receiver's error";
}

TEST_F(Errors, AFewRetriesRunOutWhenNoReceiveComes) {
    Loopback pair{device, with_rnr(3, 8)};
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(Errors, EachRetryWaitsAtLeastAsLongAsTheReceiverAsks) {
    Loopback pair{device, with_rnr(2, 20)};  // 10.24 ms
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{20});
}

TEST_F(Errors, RetriesWithoutEndWaitForTheReceive) {
    Loopback pair{device, with_rnr(7, 1)};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 64)}), 0);
    // Far more than seven times the timer's 10 µs pass; the wait itself is no assertion on time.
    base::NapParker naps;
    static_cast<void>(base::wait_until([&] { return poll_once(pair.a.sends.get()).has_value(); },
                                       base::Deadline::after(std::chrono::milliseconds{100}), {},
                                       naps));
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
    EXPECT_COMPLETES(pair.b.receives, 2, IBV_WC_RECV);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 64));
}

TEST_F(Errors, WhatIsPostedBehindAWaitingSendWaitsToo) {
    Loopback pair{device, with_rnr(7, 1)};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 64)}, at(pair.b_memory, 4096)), 0);
    ASSERT_EQ(pair.a.read(3, {pair.a_memory.slice(4096, 64)}, at(pair.b_memory, 4096)), 0);
    EXPECT_FALSE(poll_once(pair.a.sends.get()).has_value());
    EXPECT_EQ(pair.b_memory.count(std::byte{0}, 4096, 64), 64U);
    ASSERT_EQ(pair.b.receive(9, {pair.b_memory.slice(0, 64)}), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_WRITE);
    EXPECT_COMPLETES(pair.a.sends, 3, IBV_WC_RDMA_READ);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.a_memory, 4096, 64));
}

TEST_F(Errors, AWriteWithImmediateNeedsAReceiveAPlainWriteDoesNot) {
    Loopback pair{device, with_rnr(0, 1)};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    ASSERT_EQ(
        pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 2, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)),
        0);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_RNR_RETRY_EXC_ERR);
}

// --- no answer ----------------------------------------------------------------------------------

TEST_F(Errors, APeerThatWasDestroyedIsRetriedAndThenGivenUp) {
    Loopback pair{device, impatient()};
    pair.b.qp.reset();
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Errors, APeerInErrorIsRetriedAndThenGivenUp) {
    Loopback pair{device, impatient()};
    ASSERT_EQ(pair.b.to(IBV_QPS_ERR), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Errors, APeerInResetIsRetriedAndThenGivenUp) {
    Loopback pair{device, impatient()};
    ASSERT_EQ(pair.b.to(IBV_QPS_RESET), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Errors, APeerIsNotGivenUpBeforeTheTimeout) {
    Options options = impatient();
    options.timeout = 14;  // 67 ms
    Loopback pair{device, options};
    pair.b.qp.reset();
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{67});
}

TEST_F(Errors, APeerThatIsNotThereYetIsFoundByARetry) {
    Options options;
    options.timeout = 17;  // 0.5 s, eight times: before that this thread connects the other end
    Endpoint a{device, domain.get(), options};
    Endpoint b{device, domain.get(), options};
    const Buffer memory{domain.get(), 4096};
    a.connect(b.name());
    ASSERT_EQ(a.write(1, {memory.slice(0, 8)}, at(memory, 64)), 0);
    EXPECT_FALSE(poll_once(a.sends.get()).has_value());
    b.connect(a.name());
    EXPECT_COMPLETES(a.sends, 1, IBV_WC_RDMA_WRITE);
}

// --- flushing -----------------------------------------------------------------------------------

TEST_F(Errors, AfterAFailureTheRestIsFlushedInOrderUnsignaledOnesToo) {
    Loopback pair{device, with_rnr(0, 1)};
    for (std::uint64_t id = 10; id < 13; ++id) {
        ASSERT_EQ(pair.a.receive(id, {pair.a_memory.slice(0, 8)}), 0);
    }
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    // The failing one and its successors reach the queue in one list, so all are queued in time.
    std::vector<ibv_send_wr> list(4);
    ibv_sge slice = pair.a_memory.slice(0, 8);
    for (std::size_t i = 0; i < list.size(); ++i) {
        list[i].wr_id = 2 + i;
        list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
        list[i].sg_list = &slice;
        list[i].num_sge = 1;
        list[i].opcode = i == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
        list[i].send_flags = i % 2 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0U;
        list[i].wr.rdma.remote_addr = pair.b_memory.address(4096);
        list[i].wr.rdma.rkey = pair.b_memory.rkey();
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(pair.a.qp.get(), list.data(), &bad), 0);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_RNR_RETRY_EXC_ERR);
    for (std::uint64_t id = 3; id < 6; ++id) EXPECT_FAILS(pair.a.sends, id, IBV_WC_WR_FLUSH_ERR);
    for (std::uint64_t id = 10; id < 13; ++id) {
        EXPECT_FAILS(pair.a.receives, id, IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_EQ(pair.b_memory.count(std::byte{0}, 4096, 8), 8U) << "a flushed request has no effect";
    EXPECT_FALSE(poll_once(pair.a.sends.get()).has_value());
}

TEST_F(Errors, WhatIsPostedInErrorIsFlushed) {
    Loopback pair{device};
    ASSERT_EQ(pair.a.to(IBV_QPS_ERR), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 8)}, at(pair.b_memory), 0), 0);
    ASSERT_EQ(pair.a.receive(3, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FAILS(pair.a.receives, 3, IBV_WC_WR_FLUSH_ERR);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Errors, MovingToErrorFlushesASendThatWaits) {
    Loopback pair{device, with_rnr(7, 1)};
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    ASSERT_EQ(pair.a.send(2, {pair.a_memory.slice(0, 8)}, 0), 0);
    ASSERT_EQ(pair.a.to(IBV_QPS_ERR), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(Errors, WhatCompletedBeforeTheErrorStaysSuccessful) {
    Loopback pair{device};
    ASSERT_EQ(pair.b.receive(1, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.send(3, {pair.a_memory.slice(0, 64)}), 0);
    EXPECT_COMPLETES(pair.a.sends, 3, IBV_WC_SEND);  // so b's receive is complete as well
    ASSERT_EQ(pair.b.to(IBV_QPS_ERR), 0);
    EXPECT_COMPLETES(pair.b.receives, 1, IBV_WC_RECV);
    EXPECT_FAILS(pair.b.receives, 2, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(Errors, AQueuePairInErrorIsUsefulAgainAfterAReset) {
    Loopback pair{device, with_rnr(0, 1)};
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    ASSERT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
    ASSERT_EQ(pair.a.to(IBV_QPS_RESET), 0);
    ASSERT_EQ(pair.b.to(IBV_QPS_RESET), 0);
    pair.a.connect(pair.b.name());
    pair.b.connect(pair.a.name());
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_WRITE);
}

// --- asynchronous events ------------------------------------------------------------------------

bool poll_for(int descriptor) {
    pollfd readable{descriptor, POLLIN, 0};
    return poll(&readable, 1, 0) == 1;
}

/// The next event that is not merely about a connection having been made.
std::optional<ibv_async_event> next_failure(ibv_context* context) {
    for (;;) {
        const auto event = next_event(context);
        if (!event || event->event_type != IBV_EVENT_COMM_EST) return event;
    }
}

TEST_F(Errors, AnAccessViolationIsToldToTheRespondersOwner) {
    Loopback pair{device, impatient()};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)},
                           {pair.b_memory.address(), pair.b_memory.rkey() ^ 0x5a5a00}),
              0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_REM_ACCESS_ERR);
    const auto event = next_failure(device.context());
    ASSERT_TRUE(event.has_value()) << "no asynchronous event came";
    EXPECT_EQ(event->event_type, IBV_EVENT_QP_ACCESS_ERR) << ibv_event_type_str(event->event_type);
    EXPECT_EQ(event->element.qp, pair.b.qp.get());
}

TEST_F(Errors, AnOperationThatTheQueuePairDoesNotAllowIsToldToTheRespondersOwner) {
    Options closed = impatient();
    closed.access = 0;
    Loopback pair{device, impatient(), closed};
    const Buffer open{pair.b_domain.get(), 4096};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(open)), 0);
    EXPECT_NE(next(pair.a.sends).status, IBV_WC_SUCCESS);
    const auto event = next_failure(device.context());
    ASSERT_TRUE(event.has_value()) << "no asynchronous event came";
    EXPECT_TRUE(event->event_type == IBV_EVENT_QP_REQ_ERR ||
                event->event_type == IBV_EVENT_QP_ACCESS_ERR)
        << ibv_event_type_str(event->event_type);
    EXPECT_EQ(event->element.qp, pair.b.qp.get());
}

TEST_F(Errors, AnOverrunCompletionQueueIsTold) {
    Options options;
    options.queue_entries = 4;
    options.max_send = 200;
    Loopback pair{device, options};
    const int room = pair.a.sends->cqe;
    ASSERT_LT(room, 190) << "the device gave far more than was asked";
    for (int i = 0; i < room + 4; ++i) {
        ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    }
    // In the other direction, to let them all complete.
    ASSERT_EQ(pair.b.read(2, {pair.b_memory.slice(0, 8)}, at(pair.a_memory)), 0);
    EXPECT_COMPLETES(pair.b.sends, 2, IBV_WC_RDMA_READ);
    ASSERT_TRUE(eventually([&] {
        ibv_wc completion{};
        static_cast<void>(ibv_poll_cq(pair.a.sends.get(), 1, &completion));
        return poll_for(device.context()->async_fd);
    })) << "no asynchronous event came";
    const auto event = next_failure(device.context());
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->event_type, IBV_EVENT_CQ_ERR) << ibv_event_type_str(event->event_type);
    EXPECT_EQ(event->element.cq, pair.a.sends.get());
}

TEST_F(Errors, AMessageInReadyToReceiveTellsThatCommunicationIsEstablished) {
    Endpoint a{device, domain.get()};
    Endpoint b{device, domain.get()};
    const Buffer memory{domain.get(), 4096};
    ASSERT_EQ(b.to(IBV_QPS_INIT), 0);
    ASSERT_EQ(b.receive(2, {memory.slice(0, 64)}), 0);
    ASSERT_EQ(b.to(IBV_QPS_RTR, a.name()), 0);
    a.connect(b.name());
    ASSERT_EQ(a.send(1, {memory.slice(64, 8)}), 0);
    EXPECT_COMPLETES(b.receives, 2, IBV_WC_RECV);
    const auto event = next_event(device.context());
    ASSERT_TRUE(event.has_value()) << "no asynchronous event came";
    EXPECT_EQ(event->event_type, IBV_EVENT_COMM_EST);
    EXPECT_EQ(event->element.qp, b.qp.get());
}

}  // namespace
}  // namespace millrace::conformance
