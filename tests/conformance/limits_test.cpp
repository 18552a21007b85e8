// Limits of a queue pair: its queues' depth, its slices per request, and lists of requests of which
// one is refused (ibv_post_send(3), ibv_post_recv(3), ibv_create_qp(3)).
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

using Limits = OnDevice;

/// Beyond this, a queue for which a handful was asked is taken to have no limit. A device may give
/// more than it says (the kernel's does); it must never give less.
constexpr std::uint32_t most = 200;

TEST_F(Limits, AFullSendQueueRefusesAndGoesOnWhenItHasRoomAgain) {
    Options options;
    options.max_send = 5;
    options.queue_entries = 256;
    options.max_receive = 64;
    Loopback pair{device, options};
    // Nothing receives, so nothing completes.
    std::uint32_t posted = 0;
    int error = 0;
    while (posted < most && (error = pair.a.send(posted, {pair.a_memory.slice(0, 8)})) == 0)
        ++posted;
    EXPECT_EQ(error, ENOMEM);
    EXPECT_GE(posted, pair.a.capacity.max_send_wr) << "as many as the device said";
    EXPECT_FALSE(poll_once(pair.a.sends.get()).has_value());
    for (std::uint32_t i = 0; i < posted; ++i) {
        ASSERT_EQ(pair.b.receive(i, {pair.b_memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(pair.b.receives, i, IBV_WC_RECV);
        EXPECT_COMPLETES(pair.a.sends, i, IBV_WC_SEND);
    }
    ASSERT_EQ(pair.b.receive(77, {pair.b_memory.slice(0, 8)}), 0);
    ASSERT_EQ(pair.a.send(78, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(pair.a.sends, 78, IBV_WC_SEND);
}

TEST_F(Limits, AFullReceiveQueueRefusesAndGoesOnWhenItHasRoomAgain) {
    Options options;
    options.max_receive = 5;
    options.queue_entries = 256;
    Loopback pair{device, options};
    std::uint32_t posted = 0;
    int error = 0;
    while (posted < most && (error = pair.b.receive(posted, {pair.b_memory.slice(0, 8)})) == 0) {
        ++posted;
    }
    EXPECT_EQ(error, ENOMEM);
    EXPECT_GE(posted, pair.b.capacity.max_recv_wr) << "as many as the device said";
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(pair.b.receives, 0, IBV_WC_RECV);
    ASSERT_EQ(pair.b.receive(posted, {pair.b_memory.slice(0, 8)}), 0);
}

TEST_F(Limits, ASignaledCompletionFreesTheSlotsOfAllUnsignaledRequestsBeforeIt) {
    Loopback pair{device};
    const std::uint32_t room = pair.a.capacity.max_send_wr;
    for (int round = 0; round < 20; ++round) {
        for (std::uint32_t i = 0; i < room; ++i) {
            ASSERT_EQ(pair.a.write(i, {pair.a_memory.slice(0, 8)}, at(pair.b_memory),
                                   i + 1 == room ? unsigned{IBV_SEND_SIGNALED} : 0U),
                      0)
                << "round " << round << ", request " << i;
        }
        EXPECT_COMPLETES(pair.a.sends, room - 1, IBV_WC_RDMA_WRITE);
    }
}

TEST_F(Limits, AsManySlicesAsTheQueuePairHasButNotOneMore) {
    Loopback pair{device};
    const std::uint32_t count = pair.a.capacity.max_send_sge;
    pair.a_memory.fill(1);
    std::vector<ibv_sge> slices;
    for (std::uint32_t i = 0; i < count; ++i) slices.push_back(pair.a_memory.slice(3 * i, 3));
    ASSERT_EQ(pair.a.write(1, slices, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 3 * count));
    slices.push_back(pair.a_memory.slice(0, 3));
    EXPECT_NE(pair.a.write(2, slices, at(pair.b_memory)), 0);

    std::vector<ibv_sge> room;
    for (std::uint32_t i = 0; i < pair.b.capacity.max_recv_sge; ++i) {
        room.push_back(pair.b_memory.slice(8192 + 8 * i, 8));
    }
    EXPECT_EQ(pair.b.receive(3, room), 0);
    room.push_back(pair.b_memory.slice(0, 8));
    EXPECT_NE(pair.b.receive(4, room), 0);
}

TEST_F(Limits, AllSlicesOfTheDeviceCanBeUsed) {
    Options options;
    options.send_sges = static_cast<std::uint32_t>(device.attributes().max_sge);
    options.receive_sges = options.send_sges;
    Loopback pair{device, options};
    pair.a_memory.fill(1);
    std::vector<ibv_sge> from;
    std::vector<ibv_sge> into;
    for (std::uint32_t i = 0; i < options.send_sges; ++i) {
        from.push_back(pair.a_memory.slice(16 * i, 5));
        into.push_back(pair.b_memory.slice(16 * i, 5));
    }
    ASSERT_EQ(pair.b.receive(2, into), 0);
    ASSERT_EQ(pair.a.send(1, from), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
    EXPECT_EQ(next(pair.b.receives).byte_len, 5 * options.send_sges);
    for (std::uint32_t i = 0; i < options.send_sges; ++i) {
        EXPECT_TRUE(same(pair.a_memory, 16 * i, pair.b_memory, 16 * i, 5)) << i;
    }
}

// --- lists --------------------------------------------------------------------------------------

struct SendList {
    std::vector<ibv_sge> slices;
    std::vector<ibv_send_wr> requests;

    SendList(const Loopback& pair, std::size_t count) : slices(count), requests(count) {
        for (std::size_t i = 0; i < count; ++i) {
            slices[i] = pair.a_memory.slice(8 * i, 8);
            requests[i].wr_id = i;
            requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
            requests[i].sg_list = &slices[i];
            requests[i].num_sge = 1;
            requests[i].opcode = IBV_WR_RDMA_WRITE;
            requests[i].send_flags = IBV_SEND_SIGNALED;
            requests[i].wr.rdma.remote_addr = pair.b_memory.address(8 * i);
            requests[i].wr.rdma.rkey = pair.b_memory.rkey();
        }
    }
};

TEST_F(Limits, AListOfRequestsIsPostedInItsOrder) {
    Loopback pair{device};
    pair.a_memory.fill(1);
    SendList list{pair, 12};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(pair.a.qp.get(), list.requests.data(), &bad), 0);
    for (std::uint64_t id = 0; id < 12; ++id) EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 96));
}

TEST_F(Limits, TheRequestsBeforeABadOneArePostedTheOthersAreNot) {
    Loopback pair{device};
    pair.a_memory.fill(1);
    SendList list{pair, 5};
    list.requests[2].num_sge = static_cast<int>(pair.a.capacity.max_send_sge) + 1;
    std::vector<ibv_sge> many(pair.a.capacity.max_send_sge + 1, list.slices[2]);
    list.requests[2].sg_list = many.data();
    ibv_send_wr* bad = nullptr;
    EXPECT_NE(ibv_post_send(pair.a.qp.get(), list.requests.data(), &bad), 0);
    EXPECT_EQ(bad, &list.requests[2]);
    for (std::uint64_t id = 0; id < 2; ++id) EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
    // One more behind it: had the rest been posted, it would have completed before this.
    ASSERT_EQ(pair.a.write(99, {pair.a_memory.slice(0, 8)}, at(pair.b_memory, 4096)), 0);
    EXPECT_COMPLETES(pair.a.sends, 99, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(pair.b_memory.count(std::byte{0}, 16, 24), 24U);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 16));
}

TEST_F(Limits, AnUnknownOpcodeIsNotExecuted) {
    Loopback pair{device, impatient()};
    EXPECT_TRUE(refused_or_fails(
        pair.a, pair.a.post(static_cast<ibv_wr_opcode>(200), 1, {pair.a_memory.slice(0, 8)})));
}

TEST_F(Limits, AListThatDoesNotFitIsPostedAsFarAsItFits) {
    Options options;
    options.max_send = 4;
    options.queue_entries = 256;
    Loopback pair{device, options};
    SendList list{pair, most};
    for (ibv_send_wr& request : list.requests) request.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(pair.a.qp.get(), list.requests.data(), &bad), ENOMEM);
    ASSERT_NE(bad, nullptr);
    ASSERT_GE(bad - list.requests.data(), pair.a.capacity.max_send_wr);
    for (const ibv_send_wr* request = list.requests.data(); request != bad; ++request) {
        ASSERT_EQ(pair.b.receive(request->wr_id, {pair.b_memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(pair.a.sends, request->wr_id, IBV_WC_SEND);
        EXPECT_COMPLETES(pair.b.receives, request->wr_id, IBV_WC_RECV);
    }
}

TEST_F(Limits, ReceivesBeforeABadOneArePostedTheOthersAreNot) {
    Loopback pair{device};
    std::array<ibv_recv_wr, 4> list{};
    ibv_sge slice = pair.b_memory.slice(0, 64);
    std::vector<ibv_sge> many(pair.b.capacity.max_recv_sge + 1, slice);
    for (std::size_t i = 0; i < list.size(); ++i) {
        list[i].wr_id = i;
        list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
        list[i].sg_list = i == 2 ? many.data() : &slice;
        list[i].num_sge = i == 2 ? static_cast<int>(many.size()) : 1;
    }
    ibv_recv_wr* bad = nullptr;
    EXPECT_NE(ibv_post_recv(pair.b.qp.get(), list.data(), &bad), 0);
    EXPECT_EQ(bad, &list[2]);
    ASSERT_EQ(pair.b.receive(50, {slice}), 0);
    for (const std::uint64_t id : {0U, 1U, 50U}) {
        ASSERT_EQ(pair.a.send(id, {pair.a_memory.slice(0, 8)}), 0);
        EXPECT_COMPLETES(pair.b.receives, id, IBV_WC_RECV);
    }
}

}  // namespace
}  // namespace millrace::conformance
