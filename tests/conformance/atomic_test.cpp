// Atomic operations: compare and swap, fetch and add, on eight aligned bytes (InfiniBand
// specification 1.2.1 vol. 1, 9.4.5, 10.7.2; ibv_post_send(3)).
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class Atomic : public OnDevice {
  protected:
    void SetUp() override {
        if (device.attributes().atomic_cap == IBV_ATOMIC_NONE) {
            CONFORMANCE_LACKS("atomics", "atomic_cap is IBV_ATOMIC_NONE");
        }
        both.emplace(device, impatient());
    }
    int post(Endpoint& from, ibv_wr_opcode opcode, std::uint64_t id, ibv_sge into, Target target,
             std::uint64_t first, std::uint64_t second = 0) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &into;
        wr.num_sge = 1;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.atomic.remote_addr = target.address;
        wr.wr.atomic.rkey = target.rkey;
        wr.wr.atomic.compare_add = first;
        wr.wr.atomic.swap = second;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(from.qp.get(), &wr, &bad);
    }
    int add(std::uint64_t id, ibv_sge into, Target target, std::uint64_t value) {
        return post(both->a, IBV_WR_ATOMIC_FETCH_AND_ADD, id, into, target, value);
    }
    int swap(std::uint64_t id, ibv_sge into, Target target, std::uint64_t compare,
             std::uint64_t value) {
        return post(both->a, IBV_WR_ATOMIC_CMP_AND_SWP, id, into, target, compare, value);
    }
    std::optional<Loopback> both;
};

TEST_F(Atomic, FetchAndAddReturnsTheOldValueAndWraps) {
    Loopback& pair = *both;
    pair.b_memory.set_word(~std::uint64_t{0} - 1, 64);
    for (std::uint64_t round = 0; round < 5; ++round) {
        ASSERT_EQ(add(round, pair.a_memory.slice(0, 8), at(pair.b_memory, 64), 1), 0);
        const ibv_wc done = next(pair.a.sends);
        EXPECT_EQ(done.status, IBV_WC_SUCCESS) << ibv_wc_status_str(done.status);
        EXPECT_EQ(done.opcode, IBV_WC_FETCH_ADD);
        EXPECT_EQ(done.wr_id, round);
        EXPECT_EQ(done.byte_len, 8U);
        EXPECT_EQ(pair.a_memory.word(0), ~std::uint64_t{0} - 1 + round);
    }
    EXPECT_EQ(pair.b_memory.word(64), 3U);
    EXPECT_EQ(pair.b_memory.word(56), 0U);
    EXPECT_EQ(pair.b_memory.word(72), 0U);
}

TEST_F(Atomic, CompareAndSwapSwapsOnlyWhenEqualAndReturnsTheOldValue) {
    Loopback& pair = *both;
    pair.b_memory.set_word(5);
    ASSERT_EQ(swap(1, pair.a_memory.slice(0, 8), at(pair.b_memory), 4, 9), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_COMP_SWAP);
    EXPECT_EQ(pair.a_memory.word(0), 5U);
    EXPECT_EQ(pair.b_memory.word(), 5U);
    ASSERT_EQ(swap(2, pair.a_memory.slice(8, 8), at(pair.b_memory), 5, 9), 0);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_COMP_SWAP);
    EXPECT_EQ(pair.a_memory.word(8), 5U);
    EXPECT_EQ(pair.b_memory.word(), 9U);
}

TEST_F(Atomic, OperationsOfOneQueuePairRunInOrder) {
    Loopback& pair = *both;
    for (std::uint64_t i = 0; i < 10; ++i) {
        ASSERT_EQ(add(i, pair.a_memory.slice(8 * i, 8), at(pair.b_memory), 1), 0);
    }
    for (std::uint64_t i = 0; i < 10; ++i) EXPECT_COMPLETES(pair.a.sends, i, IBV_WC_FETCH_ADD);
    for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(pair.a_memory.word(8 * i), i);
    EXPECT_EQ(pair.b_memory.word(), 10U);
}

TEST_F(Atomic, OperationsOfSeveralQueuePairsOnOneWordAreAllCounted) {
    Loopback& pair = *both;
    Options options = impatient();
    Endpoint c{device, pair.a_domain.get(), options};
    Endpoint d{device, pair.b_domain.get(), options};
    c.connect(d.name());
    d.connect(c.name());
    for (int round = 0; round < 50; ++round) {
        ASSERT_EQ(post(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, pair.a_memory.slice(0, 8),
                       at(pair.b_memory), 1),
                  0);
        ASSERT_EQ(post(c, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, pair.a_memory.slice(8, 8),
                       at(pair.b_memory), 1),
                  0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_FETCH_ADD);
        EXPECT_COMPLETES(c.sends, 2, IBV_WC_FETCH_ADD);
        EXPECT_NE(pair.a_memory.word(0), pair.a_memory.word(8)) << "two saw the same value";
    }
    EXPECT_EQ(pair.b_memory.word(), 100U);
}

TEST_F(Atomic, AMisalignedTargetIsAnInvalidRequest) {
    Loopback& pair = *both;
    if (add(1, pair.a_memory.slice(0, 8), at(pair.b_memory, 4), 1) ==
        0) {  // else seen while posting
        EXPECT_FAILS(pair.a.sends, 1, IBV_WC_REM_INV_REQ_ERR);
    }
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Atomic, MemoryWithoutRemoteAtomicIsARemoteAccessError) {
    Loopback& pair = *both;
    const Buffer guarded{pair.b_domain.get(), 4096,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    ASSERT_EQ(add(1, pair.a_memory.slice(0, 8), at(guarded), 1), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(guarded.untouched());
}

TEST_F(Atomic, AQueuePairWithoutRemoteAtomicRefuses) {
    Options closed = impatient();
    closed.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    Loopback pair{device, impatient(), closed};
    const Buffer open{pair.b_domain.get(), 4096};
    ASSERT_EQ(post(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, pair.a_memory.slice(0, 8), at(open), 1),
              0);
    const ibv_wc refused = next(pair.a.sends);
    EXPECT_TRUE(refused.status == IBV_WC_REM_INV_REQ_ERR || refused.status == IBV_WC_REM_ACCESS_ERR)
        << ibv_wc_status_str(refused.status);
    EXPECT_TRUE(open.untouched());
}

TEST_F(Atomic, TheResultNeedsLocalWrite) {
    Loopback& pair = *both;
    const Buffer read_only{pair.a_domain.get(), 4096, 0};
    ASSERT_EQ(add(1, read_only.slice(0, 8), at(pair.b_memory), 1), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Atomic, AWrongKeyOrARangeBeyondTheRegionIsARemoteAccessError) {
    Loopback& pair = *both;
    const Buffer small{pair.b_domain.get(), 16};
    ASSERT_EQ(add(1, pair.a_memory.slice(0, 8), at(small, 16), 1), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Atomic, FollowTheWritesBeforeThem) {
    Loopback& pair = *both;
    for (std::uint64_t round = 1; round <= 30; ++round) {
        pair.a_memory.set_word(1000 * round, 64);
        ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(64, 8)}, at(pair.b_memory), 0), 0);
        ASSERT_EQ(add(round, pair.a_memory.slice(0, 8), at(pair.b_memory), 1), 0);
        EXPECT_COMPLETES(pair.a.sends, round, IBV_WC_FETCH_ADD);
        EXPECT_EQ(pair.a_memory.word(0), 1000 * round);
        EXPECT_EQ(pair.b_memory.word(), 1000 * round + 1);
    }
}

}  // namespace
}  // namespace millrace::conformance
