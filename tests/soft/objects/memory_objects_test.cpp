// Registered memory beyond plain regions: re-registration, zero-based regions, device memory, the
// null region, and what the device refuses.
#include <cstdint>
#include <thread>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr int place = IBV_REREG_MR_CHANGE_TRANSLATION;
constexpr int access_only = IBV_REREG_MR_CHANGE_ACCESS;
constexpr int domain = IBV_REREG_MR_CHANGE_PD;

ibv_wc_status write_with(Endpoint& end, std::uint64_t address, std::uint32_t key) {
    EXPECT_EQ(end.write(1, 0, 8, address, key), 0);
    return status_of(end);
}

TEST(Reregistration, MovesTheRegionToOtherMemory) {
    Pair pair;
    auto* const other = static_cast<std::byte*>(map_shareable(8192));
    const std::uint32_t old_key = pair.right.mr->rkey;
    ASSERT_EQ(soft::rereg_mr(pair.right.mr, place, nullptr, other, 8192, 0), 0);
    EXPECT_EQ(pair.right.mr->addr, other);
    EXPECT_EQ(pair.right.mr->length, 8192U);
    EXPECT_NE(pair.right.mr->rkey, old_key);
    std::memset(pair.left.memory, 0x17, 8);
    EXPECT_EQ(write_with(pair.left, reinterpret_cast<std::uint64_t>(other), pair.right.mr->rkey),
              IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(other, pair.left.memory, 8), 0);
    EXPECT_EQ(pair.right.memory[0], std::byte{0});
    EXPECT_EQ(write_with(pair.left, pair.right.address(), old_key), IBV_WC_REM_ACCESS_ERR);
    munmap(other, 8192);
}

TEST(Reregistration, ChangesWhatPeersMayDo) {
    Pair pair;
    ASSERT_EQ(soft::rereg_mr(pair.right.mr, access_only, nullptr, nullptr, 0,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
              0);
    EXPECT_EQ(pair.right.mr->addr, pair.right.memory);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(0, 8)}, IBV_SEND_SIGNALED,
                             pair.right.address(), pair.right.mr->rkey),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(write_with(pair.left, pair.right.address(), pair.right.mr->rkey),
              IBV_WC_REM_ACCESS_ERR);
}

TEST(Reregistration, MovesTheRegionToAnotherProtectionDomain) {
    Pair pair;
    ibv_pd* const other = soft::alloc_pd(pair.right.context);
    ASSERT_EQ(soft::rereg_mr(pair.right.mr, domain, other, nullptr, 0, 0), 0);
    EXPECT_EQ(pair.right.mr->pd, other);
    EXPECT_EQ(soft::dealloc_pd(other), EBUSY);
    EXPECT_EQ(write_with(pair.left, pair.right.address(), pair.right.mr->rkey),
              IBV_WC_REM_ACCESS_ERR)
        << "the queue pair is in the old one";
    ASSERT_EQ(soft::rereg_mr(pair.right.mr, domain, pair.right.pd, nullptr, 0, 0), 0);
    EXPECT_EQ(soft::dealloc_pd(other), 0);
}

TEST(Reregistration, LeavesTheRegionAsItWasWhenItIsRefused) {
    Pair pair;
    const ibv_mr before = *pair.right.mr;
    const auto refused = [&](int flags, void* address, std::size_t length, unsigned access) {
        errno = 0;
        const int result = soft::rereg_mr(pair.right.mr, flags, nullptr, address, length, access);
        return result == IBV_REREG_MR_ERR_INPUT ? errno : -1;
    };
    EXPECT_EQ(refused(0, nullptr, 0, 0), EINVAL);
    EXPECT_EQ(refused(1 << 7, nullptr, 0, 0), EINVAL);
    EXPECT_EQ(refused(place, nullptr, 4096, 0), EINVAL);
    EXPECT_EQ(refused(place, pair.right.memory, 0, 0), EINVAL);
    EXPECT_EQ(refused(place, reinterpret_cast<void*>(4096), 4096, 0), EFAULT);
    EXPECT_EQ(refused(access_only, nullptr, 0, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    EXPECT_EQ(refused(domain, nullptr, 0, 0), EINVAL);
    EXPECT_EQ(pair.right.mr->rkey, before.rkey);
    EXPECT_EQ(pair.right.mr->addr, before.addr);
    EXPECT_EQ(write_with(pair.left, pair.right.address(), before.rkey), IBV_WC_SUCCESS);
}

TEST(Reregistration, WhileAStoppedPeerMayBeCopyingLeavesNothingValid) {
    bool hit = false;
    const base::Deadline patience = patience_for_a_coincidence();
    for (int round = 0; !hit && !patience.expired(); ++round) {
        SCOPED_TRACE(round);
        // A peer that is stopped in the middle of a copy. Most of its time it is.
        EndpointOptions large;
        large.bytes = 1 << 20;
        Endpoint target{large};
        RemoteEndpoint peer;
        ASSERT_EQ(target.connect(peer.qpn), 0);
        ASSERT_EQ(peer.ask("connect " + std::to_string(target.qp->qp_num)), "0");
        ASSERT_EQ(peer.ask("flood 1048576 " + std::to_string(target.address()) + ' ' +
                           std::to_string(target.mr->rkey)),
                  "flooding");
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
        ASSERT_TRUE(peer.child.stop());
        const int result =
            soft::rereg_mr(target.mr, access_only, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE);
        if (result != 0) {
            hit = true;
            EXPECT_EQ(result, IBV_REREG_MR_ERR_CMD);
            EXPECT_EQ(soft::rereg_mr(target.mr, access_only, nullptr, nullptr, 0, 0),
                      IBV_REREG_MR_ERR_INPUT)
                << "it can only be deregistered";
        }
        (void)peer.child.kill_and_wait();
    }
    EXPECT_TRUE(hit);
}

TEST(ZeroBasedRegion, IsAddressedFromZero) {
    Pair pair;
    ibv_mr* const region =
        soft::reg_mr(pair.right.pd, pair.right.memory + 4096, 4096, pair.right.address(4096),
                     pair.right.options.access | IBV_ACCESS_ZERO_BASED);
    ASSERT_NE(region, nullptr);
    std::memset(pair.left.memory, 0x21, 8);
    EXPECT_EQ(write_with(pair.left, 16, region->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(pair.right.memory + 4096 + 16, pair.left.memory, 8), 0);
    EXPECT_EQ(write_with(pair.left, 4096 - 7, region->rkey), IBV_WC_REM_ACCESS_ERR);
    soft::dereg_mr(region);
}

TEST(Registration, IgnoresOptionalAccessFlagsAndRefusesUnknownOnes) {
    Endpoint end;
    ibv_mr* const region =
        soft::reg_mr(end.pd, end.memory, 4096, end.address(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | (1U << 29));
    ASSERT_NE(region, nullptr);
    soft::dereg_mr(region);
    errno = 0;
    EXPECT_EQ(soft::reg_mr(end.pd, end.memory, 4096, end.address(), 1U << 8), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(soft::reg_mr(end.pd, end.memory, 4096, end.address(), IBV_ACCESS_ON_DEMAND), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
}

// --- device memory
// ----------------------------------------------------------------------------------

TEST(DeviceMemory, IsWrittenByPeersAndReadByCopy) {
    RemotePair pair;
    ibv_alloc_dm_attr attributes{};
    attributes.length = 5000;
    ibv_dm* const memory = ibv_alloc_dm(pair.left.context, &attributes);
    ASSERT_NE(memory, nullptr);
    ibv_mr* const region =
        ibv_reg_dm_mr(pair.left.pd, memory, 1000, 4000,
                      IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(ibv_free_dm(memory), EBUSY) << "a region of it is registered";
    ASSERT_EQ(pair.right.ask("fill 0 64 77"), "ok");
    ASSERT_EQ(pair.right.ask("write 1 0 64 8 " + std::to_string(region->rkey)), "0");
    ASSERT_EQ(pair.right.ask("complete"), "1 0 64");
    unsigned char bytes[66];
    ASSERT_EQ(ibv_memcpy_from_dm(bytes, memory, 1007, sizeof bytes), 0);
    EXPECT_EQ(bytes[0], 0);
    EXPECT_EQ(bytes[1], 77);
    EXPECT_EQ(bytes[64], 77);
    EXPECT_EQ(bytes[65], 0);
    EXPECT_EQ(soft::dereg_mr(region), 0);
    EXPECT_EQ(ibv_free_dm(memory), 0);
}

TEST(DeviceMemory, IsSentFrom) {
    Pair pair;
    ibv_alloc_dm_attr attributes{};
    attributes.length = 64;
    ibv_dm* const memory = ibv_alloc_dm(pair.left.context, &attributes);
    ASSERT_NE(memory, nullptr);
    ASSERT_EQ(ibv_memcpy_to_dm(memory, 8, "from the device", 16), 0);
    ibv_mr* const region = ibv_reg_dm_mr(pair.left.pd, memory, 0, 64, IBV_ACCESS_ZERO_BASED);
    ASSERT_NE(region, nullptr);
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_SEND, 2, {ibv_sge{8, 16, region->lkey}}), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_STREQ(reinterpret_cast<const char*>(pair.right.memory), "from the device");
    EXPECT_EQ(soft::dereg_mr(region), 0);
    EXPECT_EQ(ibv_free_dm(memory), 0);
}

TEST(DeviceMemory, RefusesWhatItDoesNotHold) {
    Endpoint end;
    ibv_alloc_dm_attr attributes{};
    EXPECT_EQ(ibv_alloc_dm(end.context, &attributes), nullptr) << "of no length";
    attributes.length = std::size_t{1} << 40;
    EXPECT_EQ(ibv_alloc_dm(end.context, &attributes), nullptr);
    attributes.length = 64;
    attributes.log_align_req = 20;
    EXPECT_EQ(ibv_alloc_dm(end.context, &attributes), nullptr);
    attributes.log_align_req = 6;
    ibv_dm* const memory = ibv_alloc_dm(end.context, &attributes);
    ASSERT_NE(memory, nullptr);
    char bytes[65];
    EXPECT_EQ(ibv_memcpy_from_dm(bytes, memory, 0, 65), EINVAL);
    EXPECT_EQ(ibv_memcpy_to_dm(memory, 60, bytes, 5), EINVAL);
    errno = 0;
    EXPECT_EQ(ibv_reg_dm_mr(end.pd, memory, 60, 5, IBV_ACCESS_ZERO_BASED), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_reg_dm_mr(end.pd, memory, 0, 64, IBV_ACCESS_LOCAL_WRITE), nullptr)
        << "it has no address to be based on";
    EXPECT_EQ(ibv_free_dm(memory), 0);
    ibv_device_attr_ex device{};
    verbs_context* const extended = verbs_get_ctx(end.context);
    ASSERT_NE(extended, nullptr);
    ASSERT_NE(extended->query_device_ex, nullptr);
    ASSERT_EQ(extended->query_device_ex(end.context, nullptr, &device, sizeof device), 0);
    EXPECT_GE(device.max_dm_size, 64U);
}

// --- regions of no length
// ---------------------------------------------------------------------------

TEST(RegionOfNoLength, HoldsNothing) {
    RemotePair pair;
    ibv_mr* const empty =
        soft::reg_mr(pair.left.pd, pair.left.memory + 100, 0,
                     reinterpret_cast<std::uintptr_t>(pair.left.memory + 100),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    ASSERT_NE(empty, nullptr);
    EXPECT_EQ(empty->length, 0U);
    EXPECT_NE(empty->rkey, pair.left.mr->rkey);
    // A message of no bytes may name it.
    ASSERT_EQ(pair.right.ask("receive 1 0 64"), "0");
    ASSERT_EQ(
        pair.left.post(IBV_WR_SEND, 1,
                       {ibv_sge{reinterpret_cast<std::uintptr_t>(empty->addr), 0, empty->lkey}}),
        0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    ASSERT_EQ(pair.right.ask("complete"), "1 0 0");
    // One of a single byte may not, from here or from there.
    const auto address = std::to_string(reinterpret_cast<std::uintptr_t>(empty->addr));
    ASSERT_EQ(pair.right.ask("write 2 0 1 " + address + ' ' + std::to_string(empty->rkey)), "0");
    EXPECT_EQ(pair.right.ask("complete"), "2 " + std::to_string(IBV_WC_REM_ACCESS_ERR) + " 0");
    EXPECT_EQ(soft::dereg_mr(empty), 0);
}

TEST(RegionOfNoLength, MayLieWhereNothingIsMapped) {
    Endpoint end;
    ibv_mr* const empty = soft::reg_mr(end.pd, reinterpret_cast<void*>(4096), 0, 0, 0);
    ASSERT_NE(empty, nullptr);
    EXPECT_EQ(soft::dereg_mr(empty), 0);
}

TEST(RegionOfNoLength, IsOfDeviceMemoryAsWell) {
    Endpoint end;
    ibv_alloc_dm_attr attributes{};
    attributes.length = 64;
    ibv_dm* const memory = ibv_alloc_dm(end.context, &attributes);
    ASSERT_NE(memory, nullptr);
    ibv_mr* const empty =
        ibv_reg_dm_mr(end.pd, memory, 64, 0, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(empty, nullptr);
    EXPECT_EQ(soft::dereg_mr(empty), 0);
    EXPECT_EQ(ibv_free_dm(memory), 0);
}

// --- the null region
// --------------------------------------------------------------------------------

TEST(NullRegion, ReadsAsZeroAndKeepsNothing) {
    for (const bool shared : {true, false}) {
        EndpointOptions options;
        options.shared_memory = shared;
        RemotePair pair{options,
                        shared ? std::vector<std::string>{} : std::vector<std::string>{"private"}};
        ibv_mr* const null = ibv_alloc_null_mr(pair.left.pd);
        ASSERT_NE(null, nullptr);
        ASSERT_EQ(pair.right.ask("fill 0 20000 65"), "ok");
        // WRITE zeros over 9000 of them, the bytes in the middle from our buffer.
        std::memset(pair.left.memory, 66, 100);
        ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 1,
                                 {ibv_sge{123, 5000, null->lkey}, pair.left.sge(0, 100),
                                  ibv_sge{0, 3900, null->lkey}},
                                 IBV_SEND_SIGNALED, pair.right.address, pair.right.rkey),
                  0);
        EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
        EXPECT_EQ(pair.right.ask("check 0 5000 0"), "same");
        EXPECT_EQ(pair.right.ask("check 5000 100 66"), "same");
        EXPECT_EQ(pair.right.ask("check 5100 3900 0"), "same");
        EXPECT_EQ(pair.right.ask("check 9000 100 65"), "same");
        // READ: only the second piece is kept.
        ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 2,
                                 {ibv_sge{0, 9000, null->lkey}, pair.left.sge(200, 8)},
                                 IBV_SEND_SIGNALED, pair.right.address, pair.right.rkey),
                  0);
        EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
        EXPECT_EQ(pair.left.memory[200], std::byte{65});
        EXPECT_EQ(soft::dereg_mr(null), 0);
    }
}

TEST(NullRegion, IsNotForPeers) {
    Pair pair;
    ibv_mr* const null = ibv_alloc_null_mr(pair.right.pd);
    ASSERT_NE(null, nullptr);
    EXPECT_EQ(write_with(pair.left, 0, null->rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(soft::rereg_mr(null, access_only, nullptr, nullptr, 0, 1), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(soft::dereg_mr(null), 0);
}

}  // namespace
}  // namespace millrace::test
