// Unreliable datagrams: addresses, Q_Keys, the room for the global route header, and what is
// dropped (InfiniBand specification 1.2.1 vol. 1, 9.8.3, 10.2.2.4, 11.2.2; ibv_create_ah(3),
// ibv_post_recv(3)).
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

constexpr std::size_t header = 40;  ///< bytes that every datagram's receive begins with

class Datagram : public OnDevice {
  protected:
    void SetUp() override {
        try {
            a.emplace(device, domain.get(), options());
            b.emplace(device, domain.get(), options());
        } catch (const std::system_error& error) {
            if (!says_unsupported(error.code().value())) throw;
            CONFORMANCE_LACKS("ud", error.what());
        }
        a->connect({});
        b->connect({});
        ibv_ah_attr path = device.loopback();
        address.reset(made(ibv_create_ah(domain.get(), &path), "ibv_create_ah"));
    }
    static Options options() {
        Options result;
        result.type = IBV_QPT_UD;
        result.inline_bytes = 64;
        return result;
    }
    int send(Endpoint& from, const Endpoint& to, std::uint64_t id, std::vector<ibv_sge> sges,
             std::uint32_t key = queue_key, unsigned flags = IBV_SEND_SIGNALED,
             std::optional<std::uint32_t> immediate = {}) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        wr.opcode = immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
        wr.imm_data = htonl(immediate.value_or(0));
        wr.send_flags = flags;
        wr.wr.ud.ah = address.get();
        wr.wr.ud.remote_qpn = to.qp->qp_num;
        wr.wr.ud.remote_qkey = key;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(from.qp.get(), &wr, &bad);
    }

    std::optional<Endpoint> a;
    std::optional<Endpoint> b;
    Address address;
    Buffer a_memory{domain.get(), 32768};
    Buffer b_memory{domain.get(), 32768};
};

TEST_F(Datagram, ArrivesBehindTheRoomForItsHeaderAndNamesItsSender) {
    for (const std::size_t length :
         {std::size_t{1}, std::size_t{64}, std::size_t{device.mtu_bytes()}}) {
        SCOPED_TRACE(length);
        a_memory.fill(static_cast<unsigned>(length));
        ASSERT_EQ(b->receive(2, {b_memory.slice(0, header + 8192)}), 0);
        ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, length)}), 0);
        EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
        const ibv_wc received = next(b->receives);
        ASSERT_EQ(received.status, IBV_WC_SUCCESS) << ibv_wc_status_str(received.status);
        EXPECT_EQ(received.opcode, IBV_WC_RECV);
        EXPECT_EQ(received.wr_id, 2U);
        EXPECT_EQ(received.byte_len, header + length) << "the header's room counts";
        EXPECT_EQ(received.src_qp, a->qp->qp_num);
        EXPECT_EQ(received.qp_num, b->qp->qp_num);
        if (device.global()) {
            EXPECT_NE(received.wc_flags & IBV_WC_GRH, 0U);
        } else {
            EXPECT_EQ(received.slid, device.port_attributes().lid);
        }
        EXPECT_TRUE(same(a_memory, 0, b_memory, header, length));
    }
}

TEST_F(Datagram, CarriesImmediateData) {
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 8)}, queue_key, IBV_SEND_SIGNALED, 0xfeed), 0);
    const ibv_wc received = next(b->receives);
    EXPECT_NE(received.wc_flags & IBV_WC_WITH_IMM, 0U);
    EXPECT_EQ(ntohl(received.imm_data), 0xfeedU);
}

TEST_F(Datagram, ScattersHeaderAndDataOverTheSlices) {
    a_memory.fill(1);
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, header), b_memory.slice(1000, 10),
                             b_memory.slice(2000, 100)}),
              0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 20), a_memory.slice(100, 5)}), 0);
    EXPECT_EQ(next(b->receives).byte_len, header + 25);
    EXPECT_TRUE(same(a_memory, 0, b_memory, 1000, 10));
    EXPECT_TRUE(same(a_memory, 10, b_memory, 2000, 10));
    EXPECT_TRUE(same(a_memory, 100, b_memory, 2010, 5));
}

TEST_F(Datagram, MayBeInline) {
    const char text[] = "carried in the request";
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {{reinterpret_cast<std::uint64_t>(text), sizeof text, 0}}, queue_key,
                   IBV_SEND_SIGNALED | IBV_SEND_INLINE),
              0);
    EXPECT_EQ(next(b->receives).byte_len, header + sizeof text);
    EXPECT_STREQ(reinterpret_cast<const char*>(b_memory.data() + header), text);
}

TEST_F(Datagram, WithAWrongQueueKeyIsDroppedSilently) {
    a_memory.fill(1);
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 8)}, queue_key + 1), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    ASSERT_EQ(send(*a, *b, 3, {a_memory.slice(0, 9)}), 0);
    const ibv_wc received = next(b->receives);
    EXPECT_EQ(received.wr_id, 2U);
    EXPECT_EQ(received.byte_len, header + 9) << "the first one did not use the receive";
    EXPECT_EQ(a->state(), IBV_QPS_RTS);
    EXPECT_EQ(b->state(), IBV_QPS_RTS);
}

TEST_F(Datagram, WithTheKeysHighBitSetUsesTheSendersOwnKey) {
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 8)}, 0x80000000U | 0x777), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    ASSERT_EQ(send(*a, *b, 3, {a_memory.slice(0, 9)}), 0);
    EXPECT_EQ(next(b->receives).byte_len, header + 8);
}

TEST_F(Datagram, WithoutAReceiveIsDroppedSilently) {
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    // That it has left does not say that it is there: what was sent behind it has to be.
    Endpoint other{device, domain.get(), options()};
    other.connect({});
    ASSERT_EQ(other.receive(4, {b_memory.slice(8192, 4096)}), 0);
    ASSERT_EQ(send(*a, other, 5, {a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(other.receives, 4, IBV_WC_RECV);
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 3, {a_memory.slice(0, 9)}), 0);
    EXPECT_EQ(next(b->receives).byte_len, header + 9);
}

TEST_F(Datagram, ToNobodyIsSilent) {
    const std::uint32_t gone = b->qp->qp_num;
    b->qp.reset();
    Endpoint other{device, domain.get(), options()};
    ASSERT_NE(gone, a->qp->qp_num);
    ibv_sge slice = a_memory.slice(0, 8);
    ibv_send_wr wr{};
    wr.wr_id = 1;
    wr.sg_list = &slice;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = address.get();
    wr.wr.ud.remote_qpn = gone;
    wr.wr.ud.remote_qkey = queue_key;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a->qp.get(), &wr, &bad), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    EXPECT_EQ(a->state(), IBV_QPS_RTS);
}

// C10-93.1.1: nothing of it may be emitted, and no error may be made of it.
TEST_F(Datagram, LongerThanAPacketIsNotSentAndNoError) {
    const std::size_t length = device.mtu_bytes() + 1;
    ASSERT_LE(length + header, b_memory.size());
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, header + length)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, length)}), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    ASSERT_EQ(send(*a, *b, 3, {a_memory.slice(0, 9)}), 0);
    EXPECT_COMPLETES(a->sends, 3, IBV_WC_SEND);
    EXPECT_EQ(next(b->receives).byte_len, header + 9) << "the receive was left to the second one";
}

TEST_F(Datagram, ThatDoesNotFitNeverWritesBeyondTheReceive) {
    a_memory.fill(1);
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, header + 16)}), 0);
    ASSERT_EQ(b->receive(3, {b_memory.slice(8192, header + 64)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 64)}), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    ASSERT_EQ(send(*a, *b, 4, {a_memory.slice(0, 8)}), 0);
    // Dropped, or told to the receiver: releases of the specification differ. Never a success.
    const ibv_wc first = next(b->receives);
    EXPECT_EQ(first.wr_id, 2U);
    if (first.status == IBV_WC_SUCCESS) {
        EXPECT_EQ(first.byte_len, header + 8) << "the long one was dropped, this is the second";
    } else {
        EXPECT_EQ(first.status, IBV_WC_LOC_LEN_ERR) << ibv_wc_status_str(first.status);
    }
    EXPECT_EQ(b_memory.count(std::byte{0}, header + 16, 4096), 4096U);
}

TEST_F(Datagram, NeedsALocalBufferOfItsDomain) {
    const Domain other{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    const Buffer foreign{other.get(), 4096};
    if (send(*a, *b, 1, {foreign.slice(0, 8)}) != 0) return;
    EXPECT_FAILS(a->sends, 1, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Datagram, AfterALocalErrorTheSendQueueIsInErrorAndTheReceiveQueueGoesOn) {
    const Domain other{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    const Buffer foreign{other.get(), 4096};
    ASSERT_EQ(a->receive(9, {a_memory.slice(0, 4096)}), 0);
    if (send(*a, *b, 1, {foreign.slice(0, 8)}) != 0) GTEST_SKIP() << "refused while posting";
    EXPECT_FAILS(a->sends, 1, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(state_once(*a, IBV_QPS_SQE), IBV_QPS_SQE);
    ASSERT_EQ(send(*b, *a, 2, {b_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(a->receives, 9, IBV_WC_RECV);
    ibv_qp_attr given{};
    given.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(a->qp.get(), &given, IBV_QP_STATE), 0) << "SQE to RTS";
    ASSERT_EQ(b->receive(3, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 4, {a_memory.slice(0, 8)}), 0);
    EXPECT_COMPLETES(b->receives, 3, IBV_WC_RECV);
}

TEST_F(Datagram, OnlySendsAreAllowed) {
    for (const ibv_wr_opcode opcode :
         {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        EXPECT_TRUE(refused_or_fails(*a, a->post(opcode, 1, {a_memory.slice(0, 8)}, at(b_memory))))
            << opcode;
    }
    EXPECT_TRUE(b_memory.untouched());
}

TEST_F(Datagram, ReachesItsOwnQueuePair) {
    ASSERT_EQ(a->receive(2, {a_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(send(*a, *a, 1, {a_memory.slice(8192, 8)}), 0);
    EXPECT_COMPLETES(a->receives, 2, IBV_WC_RECV);
}

TEST_F(Datagram, ReceiverAnswersWithAnAddressMadeFromTheCompletion) {
    a_memory.fill(1);
    ASSERT_EQ(b->receive(2, {b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(a->receive(5, {a_memory.slice(8192, 4096)}), 0);
    ASSERT_EQ(send(*a, *b, 1, {a_memory.slice(0, 8)}), 0);
    ibv_wc received = next(b->receives);
    ASSERT_EQ(received.status, IBV_WC_SUCCESS);
    Address forth = std::move(address);
    address.reset(
        made(ibv_create_ah_from_wc(domain.get(), &received,
                                   reinterpret_cast<ibv_grh*>(b_memory.data()), device.port()),
             "ibv_create_ah_from_wc"));
    ASSERT_EQ(received.src_qp, a->qp->qp_num);
    ASSERT_EQ(send(*b, *a, 6, {b_memory.slice(header, 8)}), 0);
    EXPECT_COMPLETES(a->receives, 5, IBV_WC_RECV);
    EXPECT_TRUE(same(a_memory, 0, a_memory, 8192 + header, 8));
}

TEST_F(Datagram, SeveralSendersShareOneReceiver) {
    std::vector<std::unique_ptr<Endpoint>> senders;
    std::map<std::uint32_t, std::uint64_t> seen;  // per sender: how many came
    for (int i = 0; i < 4; ++i) {
        senders.push_back(std::make_unique<Endpoint>(device, domain.get(), options()));
        senders.back()->connect({});
    }
    for (std::uint64_t round = 0; round < 25; ++round) {
        for (std::uint64_t i = 0; i < 4; ++i) {
            ASSERT_EQ(b->receive(i, {b_memory.slice(4096 * i, 4096)}), 0);
        }
        for (const auto& sender : senders) {
            a_memory.set_word(round);
            ASSERT_EQ(send(*sender, *b, round, {a_memory.slice(0, 8)}), 0);
            EXPECT_COMPLETES(sender->sends, round, IBV_WC_SEND);
        }
        for (int i = 0; i < 4; ++i) {
            const ibv_wc received = next(b->receives);
            ASSERT_EQ(received.status, IBV_WC_SUCCESS);
            EXPECT_EQ(b_memory.word(4096 * received.wr_id + header), round);
            ++seen[received.src_qp];
        }
    }
    EXPECT_EQ(seen.size(), 4U);
    for (const auto& [sender, count] : seen) EXPECT_EQ(count, 25U) << sender;
}

TEST_F(Datagram, AnAddressHandleKeepsItsDomainBusy) {
    const Domain own{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    ibv_ah_attr path = device.loopback();
    Address handle{made(ibv_create_ah(own.get(), &path), "ibv_create_ah")};
    EXPECT_EQ(ibv_dealloc_pd(own.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_ah(handle.release()), 0);
}

// --- multicast ----------------------------------------------------------------------------------

TEST_F(Datagram, ToAGroupReachesEveryMemberOnce) {
    if (device.attributes().max_mcast_grp == 0) {
        CONFORMANCE_LACKS("multicast", "max_mcast_grp is 0");
    }
    ibv_gid group{};
    group.raw[0] = 0xff;
    group.raw[1] = 0x0e;
    const pid_t process = getpid();  // other programs use this device, too
    std::memcpy(&group.raw[8], &process, sizeof process);
    group.raw[15] = 0x42;
    constexpr std::uint16_t group_lid = 0xc001;
    Endpoint c{device, domain.get(), options()};
    c.connect({});
    for (Endpoint* end : {&*b, &c}) {
        const int error = ibv_attach_mcast(end->qp.get(), &group, group_lid);
        if (says_unsupported(error)) CONFORMANCE_LACKS("multicast", "ibv_attach_mcast");
        ASSERT_EQ(error, 0);
        ASSERT_EQ(end->receive(1, {b_memory.slice(0, 4096)}), 0);
        ASSERT_EQ(end->receive(2, {b_memory.slice(4096, 4096)}), 0);
    }
    ibv_ah_attr path = device.path(group_lid, group);
    path.is_global = 1;
    path.grh.dgid = group;
    address.reset(made(ibv_create_ah(domain.get(), &path), "ibv_create_ah"));
    a_memory.fill(7);
    const auto post = [&](std::uint64_t id, std::size_t length) {
        ibv_sge slice = a_memory.slice(0, length);
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &slice;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.ud.ah = address.get();
        wr.wr.ud.remote_qpn = 0xffffff;
        wr.wr.ud.remote_qkey = queue_key;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(a->qp.get(), &wr, &bad);
    };
    ASSERT_EQ(post(1, 8), 0);
    EXPECT_COMPLETES(a->sends, 1, IBV_WC_SEND);
    for (Endpoint* end : {&*b, &c}) {
        const ibv_wc received = next(end->receives);
        EXPECT_EQ(received.status, IBV_WC_SUCCESS);
        EXPECT_EQ(received.byte_len, header + 8);
    }
    ASSERT_EQ(ibv_detach_mcast(c.qp.get(), &group, group_lid), 0);
    ASSERT_EQ(post(2, 9), 0);
    EXPECT_EQ(next(b->receives).byte_len, header + 9);
    EXPECT_FALSE(poll_once(c.receives.get()).has_value());
    ASSERT_EQ(ibv_detach_mcast(b->qp.get(), &group, group_lid), 0);
}

}  // namespace
}  // namespace millrace::conformance
