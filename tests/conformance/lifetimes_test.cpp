// What may be destroyed when, and what the queries answer (ibv_dealloc_pd(3), ibv_destroy_cq(3),
// ibv_dereg_mr(3), ibv_destroy_comp_channel(3), ibv_query_device(3)).
#include <gtest/gtest.h>

#include <cstdint>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

using Lifetimes = OnDevice;

/// Refused with EBUSY, as the result and as errno: programs look at either.
template <class Call>
[[nodiscard]] bool is_busy(const Call& call) {
    errno = 0;
    return call() == EBUSY && errno == EBUSY;
}

TEST_F(Lifetimes, ADomainWithARegionIsBusy) {
    Buffer memory{domain.get(), 4096};
    EXPECT_TRUE(is_busy([&] { return ibv_dealloc_pd(domain.get()); }));
    ASSERT_EQ(memory.deregister(), 0);
    EXPECT_EQ(ibv_dealloc_pd(domain.release()), 0);
}

TEST_F(Lifetimes, ADomainWithAQueuePairIsBusy) {
    {
        const Endpoint end{device, domain.get()};
        EXPECT_TRUE(is_busy([&] { return ibv_dealloc_pd(domain.get()); }));
    }
    EXPECT_EQ(ibv_dealloc_pd(domain.release()), 0);
}

TEST_F(Lifetimes, ACompletionQueueInUseIsBusy) {
    Endpoint end{device, domain.get()};
    EXPECT_TRUE(is_busy([&] { return ibv_destroy_cq(end.sends.get()); }));
    EXPECT_TRUE(is_busy([&] { return ibv_destroy_cq(end.receives.get()); }));
    ASSERT_EQ(ibv_destroy_qp(end.qp.release()), 0);
    EXPECT_EQ(ibv_destroy_cq(end.sends.release()), 0);
    EXPECT_EQ(ibv_destroy_cq(end.receives.release()), 0);
}

TEST_F(Lifetimes, AChannelInUseIsBusy) {
    Channel channel{made(ibv_create_comp_channel(device.context()), "ibv_create_comp_channel")};
    Queue queue{
        made(ibv_create_cq(device.context(), 4, nullptr, channel.get(), 0), "ibv_create_cq")};
    EXPECT_EQ(ibv_destroy_comp_channel(channel.get()), EBUSY);
    ASSERT_EQ(ibv_destroy_cq(queue.release()), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel.release()), 0);
}

TEST_F(Lifetimes, AConnectedQueuePairMayBeDestroyedWithWorkPosted) {
    Loopback pair{device};
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    ASSERT_EQ(pair.a.receive(2, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_EQ(ibv_destroy_qp(pair.a.qp.release()), 0);
    EXPECT_FALSE(poll_once(pair.a.sends.get()).has_value()) << "nobody is left to be told";
}

TEST_F(Lifetimes, QueuePairNumbersAreDistinct) {
    const Endpoint first{device, domain.get()};
    const Endpoint second{device, domain.get()};
    EXPECT_NE(first.qp->qp_num, second.qp->qp_num);
    EXPECT_EQ(first.qp->qp_num & ~0xffffffU, 0U);
}

TEST_F(Lifetimes, ACompletionQueueHasAtLeastTheRoomThatWasAsked) {
    const Queue queue{made(ibv_create_cq(device.context(), 37, this, nullptr, 0), "ibv_create_cq")};
    EXPECT_GE(queue->cqe, 37);
    EXPECT_EQ(queue->cq_context, this);
    EXPECT_EQ(queue->context, device.context());
}

TEST_F(Lifetimes, ACompletionQueueOfNoOrTooManyEntriesIsRefused) {
    const Queue none{ibv_create_cq(device.context(), 0, nullptr, nullptr, 0)};
    EXPECT_EQ(none, nullptr);
    const Queue huge{
        ibv_create_cq(device.context(), device.attributes().max_cqe + 1, nullptr, nullptr, 0)};
    EXPECT_EQ(huge, nullptr);
    const Queue vector{
        ibv_create_cq(device.context(), 4, nullptr, nullptr, device.context()->num_comp_vectors)};
    EXPECT_EQ(vector, nullptr);
}

TEST_F(Lifetimes, TheDeviceTellsLimitsThatMakeSense) {
    const ibv_device_attr& limits = device.attributes();
    EXPECT_GT(limits.max_qp, 0);
    EXPECT_GT(limits.max_qp_wr, 0);
    EXPECT_GT(limits.max_cq, 0);
    EXPECT_GT(limits.max_cqe, 0);
    EXPECT_GT(limits.max_mr, 0);
    EXPECT_GT(limits.max_pd, 0);
    EXPECT_GE(limits.max_sge, 1);
    EXPECT_GE(limits.phys_port_cnt, 1);
    EXPECT_GT(limits.max_mr_size, 0U);
    EXPECT_GE(limits.max_qp_rd_atom, 1);
    EXPECT_GE(limits.max_qp_init_rd_atom, 1);
    EXPECT_GE(device.port_attributes().max_mtu, device.port_attributes().active_mtu);
    EXPECT_GE(device.port_attributes().gid_tbl_len, 1);
    EXPECT_GE(device.port_attributes().pkey_tbl_len, 1);
}

TEST_F(Lifetimes, APortThatDoesNotExistIsAnError) {
    ibv_port_attr attributes{};
    EXPECT_NE(ibv_query_port(device.context(),
                             static_cast<std::uint8_t>(device.attributes().phys_port_cnt + 1),
                             &attributes),
              0);
    EXPECT_NE(ibv_query_port(device.context(), 0, &attributes), 0);
}

TEST_F(Lifetimes, TheFirstPartitionKeyIsTheDefaultOne) {
    __be16 key = 0;
    ASSERT_EQ(ibv_query_pkey(device.context(), device.port(), 0, &key), 0);
    EXPECT_EQ(key, 0xffff);
    EXPECT_NE(ibv_query_pkey(device.context(), device.port(), device.port_attributes().pkey_tbl_len,
                             &key),
              0);
}

TEST_F(Lifetimes, AGidBeyondTheTableIsAnError) {
    ibv_gid gid{};
    EXPECT_EQ(ibv_query_gid(device.context(), device.port(), 0, &gid), 0);
    EXPECT_NE(
        ibv_query_gid(device.context(), device.port(), device.port_attributes().gid_tbl_len, &gid),
        0);
}

TEST_F(Lifetimes, TheDeviceMayBeOpenedTwiceAndBothContextsConnect) {
    const Device again;
    EXPECT_NE(again.context(), device.context());
    const Domain other{made(ibv_alloc_pd(again.context()), "ibv_alloc_pd")};
    Endpoint a{device, domain.get()};
    Endpoint b{again, other.get()};
    Buffer a_memory{domain.get(), 4096};
    const Buffer b_memory{other.get(), 4096};
    a.connect(b.name());
    b.connect(a.name());
    a_memory.fill(1);
    ASSERT_EQ(a.write(1, {a_memory.slice(0, 64)}, at(b_memory)), 0);
    EXPECT_COMPLETES(a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(a_memory, 0, b_memory, 0, 64));
}

TEST_F(Lifetimes, ObjectsOfAnotherContextAreNotMixedIn) {
    const Device again;
    const Queue foreign{
        made(ibv_create_cq(again.context(), 8, nullptr, nullptr, 0), "ibv_create_cq")};
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = foreign.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {1, 1, 1, 1, 0};
    const Pair mixed{ibv_create_qp(domain.get(), &init)};
    EXPECT_EQ(mixed, nullptr);
}

}  // namespace
}  // namespace millrace::conformance
