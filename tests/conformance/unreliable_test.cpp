// Unreliable connections: what is lost is lost silently, for both sides (InfiniBand specification
// 1.2.1 vol. 1, 9.8; the opcodes of UC in ibv_post_send(3)).
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class Unreliable : public OnDevice {
  protected:
    void SetUp() override {
        Options options;
        options.type = IBV_QPT_UC;
        options.inline_bytes = 32;
        options.access = IBV_ACCESS_REMOTE_WRITE;
        try {
            both.emplace(device, options);
        } catch (const std::system_error& error) {
            if (!says_unsupported(error.code().value())) throw;
            CONFORMANCE_LACKS("uc", error.what());
        }
    }
    std::optional<Loopback> both;
};

TEST_F(Unreliable, SendsAndWritesArriveWhenTheReceiverIsReady) {
    Loopback& pair = *both;
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{1}, std::size_t{device.mtu_bytes()},
          std::size_t{device.mtu_bytes()} * 3 + 5}) {
        SCOPED_TRACE(length);
        pair.a_memory.fill(static_cast<unsigned>(length));
        std::memset(pair.b_memory.data(), 0, pair.b_memory.size());
        std::vector<ibv_sge> slices;
        if (length > 0) slices.push_back(pair.a_memory.slice(0, length));
        ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 32768)}), 0);
        ASSERT_EQ(pair.a.send(1, slices), 0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
        const ibv_wc received = next(pair.b.receives);
        ASSERT_EQ(received.status, IBV_WC_SUCCESS) << ibv_wc_status_str(received.status);
        EXPECT_EQ(received.byte_len, length);
        EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, length));

        ASSERT_EQ(pair.b.receive(3, {}), 0);
        ASSERT_EQ(pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 4, slices, at(pair.b_memory, 32768),
                              IBV_SEND_SIGNALED, htonl(77)),
                  0);
        EXPECT_COMPLETES(pair.a.sends, 4, IBV_WC_RDMA_WRITE);
        const ibv_wc written = next(pair.b.receives);
        EXPECT_EQ(written.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        EXPECT_EQ(ntohl(written.imm_data), 77U);
        EXPECT_EQ(written.byte_len, length);
        EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 32768, length));
    }
}

TEST_F(Unreliable, ASendWithoutAReceiveIsDroppedAndSucceeds) {
    Loopback& pair = *both;
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
    EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
    // What comes later is received by the receive that is posted then: the dropped one is gone.
    pair.a_memory.fill(3);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.send(3, {pair.a_memory.slice(0, 24)}), 0);
    EXPECT_EQ(next(pair.b.receives).byte_len, 24U);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 24));
}

TEST_F(Unreliable, AWriteWithAWrongKeyIsSilentForTheRequester) {
    Loopback& pair = *both;
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)},
                           {pair.b_memory.address(), pair.b_memory.rkey() ^ 0x5a5a00}),
              0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Unreliable, APeerThatIsGoneIsSilent) {
    Loopback& pair = *both;
    pair.b.qp.reset();
    for (std::uint64_t id = 0; id < 40; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
        EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
    }
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS);
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Unreliable, ALocalErrorIsReported) {
    Loopback& pair = *both;
    const Buffer foreign{domain.get(), 4096};
    ASSERT_EQ(pair.a.write(1, {foreign.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Unreliable, AfterALocalErrorTheSendQueueIsInErrorAndTheReceiveQueueGoesOn) {
    Loopback& pair = *both;
    const Buffer foreign{domain.get(), 4096};
    ASSERT_EQ(pair.a.receive(9, {pair.a_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.write(1, {foreign.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_NE(next(pair.a.sends).status, IBV_WC_SUCCESS);
    EXPECT_EQ(state_once(pair.a, IBV_QPS_SQE), IBV_QPS_SQE);
    ASSERT_EQ(pair.b.send(2, {pair.b_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(pair.a.receives, 9, IBV_WC_RECV);
    ibv_qp_attr given{};
    given.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ibv_modify_qp(pair.a.qp.get(), &given, IBV_QP_STATE), 0) << "SQE to RTS";
    ASSERT_EQ(pair.b.receive(3, {pair.b_memory.slice(4096, 64)}), 0);
    ASSERT_EQ(pair.a.send(4, {pair.a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(pair.b.receives, 3, IBV_WC_RECV);
}

TEST_F(Unreliable, ReadsAndAtomicsAreRefused) {
    Loopback& pair = *both;
    for (const ibv_wr_opcode opcode :
         {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        EXPECT_TRUE(refused_or_fails(
            pair.a, pair.a.post(opcode, 1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory))))
            << opcode;
    }
    EXPECT_TRUE(pair.b_memory.untouched());
}

TEST_F(Unreliable, SendsAreReceivedInOrder) {
    Loopback& pair = *both;
    for (std::uint64_t id = 0; id < 16; ++id) {
        ASSERT_EQ(pair.b.receive(id, {pair.b_memory.slice(64 * id, 64)}), 0);
    }
    for (std::uint64_t id = 0; id < 16; ++id) {
        pair.a_memory.set_word(id, 8 * id);
        ASSERT_EQ(pair.a.send(id, {pair.a_memory.slice(8 * id, 8)}), 0);
    }
    for (std::uint64_t id = 0; id < 16; ++id) {
        EXPECT_COMPLETES(pair.b.receives, id, IBV_WC_RECV);
        EXPECT_EQ(pair.b_memory.word(64 * id), id);
        EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_SEND);
    }
}

}  // namespace
}  // namespace millrace::conformance
