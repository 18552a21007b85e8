// Protection: access flags, keys, bounds and protection domains, of the requester's memory and of
// the responder's (InfiniBand specification 1.2.1 vol. 1, 10.6, 9.7.4.1 and 9.9; ibv_reg_mr(3)).
#include <gtest/gtest.h>

#include <cstdint>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class Protection : public OnDevice {
  protected:
    Loopback pair{device, impatient()};

    /// The request that was posted fails with `status`; nothing arrived; the requester is in ERR.
    void expect_refused(ibv_wc_status status) {
        EXPECT_FAILS(pair.a.sends, 1, status);
        EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
    }
    void expect_remote_access_error() { expect_refused(IBV_WC_REM_ACCESS_ERR); }
};

// --- registration -------------------------------------------------------------------------------

TEST_F(Protection, RemoteWriteOrAtomicWithoutLocalWriteIsNotRegistered) {
    for (const int access : {int{IBV_ACCESS_REMOTE_WRITE}, int{IBV_ACCESS_REMOTE_ATOMIC}}) {
        const Region region{ibv_reg_mr(domain.get(), pair.a_memory.data(), 4096, access)};
        EXPECT_EQ(region, nullptr) << access;
    }
    const Region region{ibv_reg_mr(domain.get(), pair.a_memory.data(), 4096, 0)};
    EXPECT_NE(region, nullptr) << "local reading needs no flag";
}

TEST_F(Protection, MemoryThatIsNotMappedIsNotRegistered) {
    void* const hole = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(hole, MAP_FAILED);
    ASSERT_EQ(munmap(hole, 8192), 0);
    const Region region{ibv_reg_mr(domain.get(), hole, 4096, int{IBV_ACCESS_LOCAL_WRITE})};
    EXPECT_EQ(region, nullptr);
}

TEST_F(Protection, RegionsTellWhatTheyAre) {
    const Buffer memory{domain.get(), 12345};
    EXPECT_EQ(memory.region()->addr, memory.data());
    EXPECT_EQ(memory.region()->length, 12345U);
    EXPECT_EQ(memory.region()->pd, domain.get());
    EXPECT_EQ(memory.region()->context, device.context());
}

TEST_F(Protection, TheSameMemoryMayBeRegisteredTwiceWithKeysOfItsOwn) {
    const Region again{made(
        ibv_reg_mr(pair.b_domain.get(), pair.b_memory.data(), 4096, static_cast<int>(all_access)),
        "ibv_reg_mr")};
    EXPECT_NE(again->rkey, pair.b_memory.rkey());
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 64)}, {pair.b_memory.address(), again->rkey}),
              0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 64));
}

TEST_F(Protection, ARegionMayHaveAddressesOfItsOwn) {
    constexpr std::uint64_t first = 0x10000;
    const Region region{ibv_reg_mr_iova(pair.b_domain.get(), pair.b_memory.data() + 4096, 4096,
                                        first, static_cast<int>(all_access))};
    if (region == nullptr && says_unsupported(errno)) {
        CONFORMANCE_LACKS("iova", "ibv_reg_mr_iova");
    }
    ASSERT_NE(region, nullptr) << std::strerror(errno);
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 64)}, {first + 100, region->rkey}), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 4196, 64));
    ASSERT_EQ(pair.b.write(2, {{first + 100, 64, region->lkey}}, at(pair.a_memory, 8192)), 0);
    EXPECT_COMPLETES(pair.b.sends, 2, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.a_memory, 8192, 64));
    ASSERT_EQ(
        pair.a.write(3, {pair.a_memory.slice(0, 64)}, {pair.b_memory.address(4196), region->rkey}),
        0);
    EXPECT_FAILS(pair.a.sends, 3, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Protection, ReregisteringTakesAccessAway) {
    Buffer memory{pair.b_domain.get(), 4096};
    const int error = ibv_rereg_mr(memory.region(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    if (error != 0 && says_unsupported(errno)) CONFORMANCE_LACKS("rereg", "ibv_rereg_mr");
    ASSERT_EQ(error, 0);
    ASSERT_EQ(pair.a.read(1, {pair.a_memory.slice(0, 8)}, at(memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_READ);
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 8)}, at(memory)), 0);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_REM_ACCESS_ERR);
}

// --- the requester's memory ---------------------------------------------------------------------

TEST_F(Protection, AnUnknownLocalKeyIsALocalProtectionError) {
    ibv_sge wrong = pair.a_memory.slice(0, 8);
    wrong.lkey ^= 0x5a5a00;
    // Drivers that look at the key while posting may refuse it at once.
    if (pair.a.write(1, {wrong}, at(pair.b_memory)) != 0) return;
    expect_refused(IBV_WC_LOC_PROT_ERR);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Protection, ALocalRangeBeyondItsRegionIsALocalProtectionError) {
    const Buffer small{pair.a_domain.get(), 100};
    ASSERT_EQ(pair.a.write(1, {small.slice(93, 8)}, at(pair.b_memory)), 0);
    expect_refused(IBV_WC_LOC_PROT_ERR);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Protection, ALocalRangeBeforeItsRegionIsALocalProtectionError) {
    const Region inner{
        made(ibv_reg_mr(pair.a_domain.get(), pair.a_memory.data() + 4096, 4096, 0), "ibv_reg_mr")};
    ASSERT_EQ(pair.a.write(1, {{pair.a_memory.address(4095), 8, inner->lkey}}, at(pair.b_memory)),
              0);
    expect_refused(IBV_WC_LOC_PROT_ERR);
}

TEST_F(Protection, ALocalKeyOfAnotherDomainIsALocalProtectionError) {
    const Buffer foreign{domain.get(), 4096};
    ASSERT_EQ(pair.a.write(1, {foreign.slice(0, 8)}, at(pair.b_memory)), 0);
    expect_refused(IBV_WC_LOC_PROT_ERR);
}

TEST_F(Protection, AReadIntoMemoryWithoutLocalWriteIsALocalProtectionError) {
    const Buffer read_only{pair.a_domain.get(), 4096, 0};
    pair.b_memory.fill(1);
    ASSERT_EQ(pair.a.read(1, {read_only.slice(0, 8)}, at(pair.b_memory)), 0);
    expect_refused(IBV_WC_LOC_PROT_ERR);
    EXPECT_TRUE(read_only.untouched());
}

TEST_F(Protection, AWriteFromMemoryWithoutAnyFlagIsAllowed) {
    Buffer read_only{pair.a_domain.get(), 4096, 0};
    read_only.fill(3);
    ASSERT_EQ(pair.a.write(1, {read_only.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(read_only, 0, pair.b_memory, 0, 8));
}

TEST_F(Protection, AStaleLocalKeyIsALocalProtectionError) {
    Buffer memory{pair.a_domain.get(), 4096};
    const ibv_sge slice = memory.slice(0, 8);
    ASSERT_EQ(memory.deregister(), 0);
    if (pair.a.write(1, {slice}, at(pair.b_memory)) != 0) return;
    expect_refused(IBV_WC_LOC_PROT_ERR);
}

TEST_F(Protection, ALaterSliceIsCheckedLikeTheFirst) {
    ibv_sge wrong = pair.a_memory.slice(100, 8);
    wrong.lkey ^= 0x5a5a00;
    if (pair.a.write(1, {pair.a_memory.slice(0, 8), wrong}, at(pair.b_memory)) != 0) return;
    expect_refused(IBV_WC_LOC_PROT_ERR);
}

// --- the responder's memory ---------------------------------------------------------------------

TEST_F(Protection, AnUnknownRemoteKeyIsARemoteAccessError) {
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)},
                           {pair.b_memory.address(), pair.b_memory.rkey() ^ 0x5a5a00}),
              0);
    expect_remote_access_error();
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Protection, AnUnknownRemoteKeyOfAReadIsARemoteAccessError) {
    ASSERT_EQ(pair.a.read(1, {pair.a_memory.slice(0, 8)},
                          {pair.b_memory.address(), pair.b_memory.rkey() ^ 0x5a5a00}),
              0);
    expect_remote_access_error();
}

TEST_F(Protection, AWriteThatEndsBeyondTheRegionIsARemoteAccessError) {
    const Buffer small{pair.b_domain.get(), 100};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(small, 93)), 0);
    expect_remote_access_error();
    EXPECT_TRUE(small.untouched());
}

TEST_F(Protection, AWriteThatEndsWithTheRegionIsAllowed) {
    const Buffer small{pair.b_domain.get(), 100};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(small, 92)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, small, 92, 8));
}

TEST_F(Protection, AWriteThatBeginsBeforeTheRegionIsARemoteAccessError) {
    const Region inner{made(ibv_reg_mr(pair.b_domain.get(), pair.b_memory.data() + 4096, 4096,
                                       static_cast<int>(all_access)),
                            "ibv_reg_mr")};
    ASSERT_EQ(
        pair.a.write(1, {pair.a_memory.slice(0, 8)}, {pair.b_memory.address(4092), inner->rkey}),
        0);
    expect_remote_access_error();
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Protection, AnAddressThatWrapsAroundIsARemoteAccessError) {
    ASSERT_EQ(
        pair.a.write(1, {pair.a_memory.slice(0, 16)}, {~std::uint64_t{7}, pair.b_memory.rkey()}),
        0);
    expect_remote_access_error();
}

TEST_F(Protection, AWriteToMemoryWithoutRemoteWriteIsARemoteAccessError) {
    const Buffer guarded{pair.b_domain.get(), 4096,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(guarded)), 0);
    expect_remote_access_error();
    EXPECT_TRUE(guarded.untouched());
}

TEST_F(Protection, AReadOfMemoryWithoutRemoteReadIsARemoteAccessError) {
    Buffer guarded{pair.b_domain.get(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    guarded.fill(1);
    ASSERT_EQ(pair.a.read(1, {pair.a_memory.slice(0, 8)}, at(guarded)), 0);
    expect_remote_access_error();
    EXPECT_TRUE(pair.a_memory.untouched());
}

TEST_F(Protection, ARemoteKeyOfAnotherDomainIsARemoteAccessError) {
    const Buffer foreign{domain.get(), 4096};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(foreign)), 0);
    expect_remote_access_error();
    EXPECT_TRUE(foreign.untouched());
}

TEST_F(Protection, AKeyIsWorthNothingAfterDeregistration) {
    Buffer memory{pair.b_domain.get(), 4096};
    const Target target = at(memory);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, target), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    ASSERT_EQ(memory.deregister(), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, target), 0);
    expect_remote_access_error();
}

TEST_F(Protection, AKeyOfADeregisteredRegionIsNotTheKeyOfTheNextOne) {
    for (int round = 0; round < 50; ++round) {
        Buffer memory{pair.b_domain.get(), 4096};
        const std::uint32_t before = memory.rkey();
        ASSERT_EQ(memory.deregister(), 0);
        const Buffer next_memory{pair.b_domain.get(), 4096};
        EXPECT_NE(next_memory.rkey(), before);
    }
}

TEST_F(Protection, AViolationPutsTheResponderIntoErrorAsWell) {
    ASSERT_EQ(pair.b.receive(7, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)},
                           {pair.b_memory.address(), pair.b_memory.rkey() ^ 0x5a5a00}),
              0);
    expect_remote_access_error();
    EXPECT_EQ(state_once(pair.b, IBV_QPS_ERR), IBV_QPS_ERR);
    EXPECT_FAILS(pair.b.receives, 7, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(Protection, AZeroLengthWriteDoesNotLookAtTheKey) {
    ASSERT_EQ(pair.a.write(1, {}, {1, 0xdead00}), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    ASSERT_EQ(pair.a.read(2, {}, {1, 0xdead00}), 0);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_READ);
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
}

// --- what the queue pair allows -----------------------------------------------------------------

class QueuePairAccess : public OnDevice {
  protected:
    static Options allowing(unsigned access) {
        Options options = impatient();
        options.access = access;
        return options;
    }
};

// The specification calls it an invalid request; drivers that answer "access" instead exist.
void expect_not_allowed(const ibv_wc& completion) {
    EXPECT_EQ(completion.wr_id, 1U);
    EXPECT_TRUE(completion.status == IBV_WC_REM_INV_REQ_ERR ||
                completion.status == IBV_WC_REM_ACCESS_ERR)
        << ibv_wc_status_str(completion.status);
}

TEST_F(QueuePairAccess, WithoutRemoteWriteRefusesWritesToMemoryThatAllowsThem) {
    Loopback pair{device, impatient(), allowing(IBV_ACCESS_REMOTE_READ)};
    const Buffer open{pair.b_domain.get(), 4096};
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(open)), 0);
    expect_not_allowed(next(pair.a.sends));
    EXPECT_TRUE(open.untouched());
    EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
}

TEST_F(QueuePairAccess, WithoutRemoteReadRefusesReadsOfMemoryThatAllowsThem) {
    Loopback pair{device, impatient(), allowing(IBV_ACCESS_REMOTE_WRITE)};
    const Buffer open{pair.b_domain.get(), 4096};
    ASSERT_EQ(pair.a.read(1, {pair.a_memory.slice(0, 8)}, at(open)), 0);
    expect_not_allowed(next(pair.a.sends));
    EXPECT_EQ(state_once(pair.a, IBV_QPS_ERR), IBV_QPS_ERR);
}

TEST_F(QueuePairAccess, WithoutAnyAccessStillReceives) {
    Loopback pair{device, impatient(), allowing(0)};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 64)}), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
    EXPECT_COMPLETES(pair.b.receives, 2, IBV_WC_RECV);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 64));
}

// --- receive buffers ----------------------------------------------------------------------------

TEST_F(Protection, AReceiveWithAWrongKeyFailsBothSides) {
    ibv_sge wrong = pair.b_memory.slice(0, 64);
    wrong.lkey ^= 0x5a5a00;
    if (pair.b.receive(2, {wrong}) != 0) return;  // looked at while posting
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 64)}), 0);
    EXPECT_FAILS(pair.b.receives, 2, IBV_WC_LOC_PROT_ERR);
    expect_refused(IBV_WC_REM_OP_ERR);
    EXPECT_EQ(state_once(pair.b, IBV_QPS_ERR), IBV_QPS_ERR);
}

TEST_F(Protection, AReceiveIntoMemoryWithoutLocalWriteFailsBothSides) {
    const Buffer read_only{pair.b_domain.get(), 4096, 0};
    ASSERT_EQ(pair.b.receive(2, {read_only.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 64)}), 0);
    EXPECT_FAILS(pair.b.receives, 2, IBV_WC_LOC_PROT_ERR);
    expect_refused(IBV_WC_REM_OP_ERR);
}

TEST_F(Protection, AReceiveThatIsTooShortFailsBothSides) {
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 63)}), 0);
    ASSERT_EQ(pair.b.receive(3, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 64)}), 0);
    EXPECT_FAILS(pair.b.receives, 2, IBV_WC_LOC_LEN_ERR);
    EXPECT_FAILS(pair.b.receives, 3, IBV_WC_WR_FLUSH_ERR);
    expect_refused(IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(state_once(pair.b, IBV_QPS_ERR), IBV_QPS_ERR);
}

}  // namespace
}  // namespace millrace::conformance
