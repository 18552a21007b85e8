// What a reliable connection carries: lengths, slices, immediate data, completion fields, order
// (InfiniBand specification 1.2.1 vol. 1, 9.4, 9.5, 10.8.3; ibv_post_send(3), ibv_poll_cq(3)).
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class Reliable : public OnDevice {
  protected:
    /// 0, 1, the neighbourhood of one and two packets, odd ends, and 1 MiB.
    [[nodiscard]] std::vector<std::size_t> lengths() const {
        const std::size_t packet = device.mtu_bytes();
        std::vector<std::size_t> all{0,          1,
                                     2,          3,
                                     7,          8,
                                     9,          63,
                                     packet - 1, packet,
                                     packet + 1, 2 * packet - 1,
                                     2 * packet, 2 * packet + 1,
                                     65537,      std::size_t{1} << 20};
        std::sort(all.begin(), all.end());
        return all;
    }
    static constexpr std::size_t room = (std::size_t{1} << 20) + 4096;

    static std::vector<ibv_sge> slices(const Buffer& memory, std::size_t length) {
        if (length == 0) return {};
        return {memory.slice(16, length)};
    }
    /// [16, 16 + length) of `to` is that of `from`, and its neighbours are still zero.
    static void expect_arrived(const Buffer& from, const Buffer& to, std::size_t length) {
        EXPECT_TRUE(same(from, 16, to, 16, length)) << length << " bytes";
        EXPECT_EQ(to.count(std::byte{0}, 0, 16), 16U) << "bytes before the message changed";
        EXPECT_EQ(to.count(std::byte{0}, 16 + length, 64), 64U)
            << "bytes behind the message changed";
    }
};

TEST_F(Reliable, SendCarriesAnyLength) {
    Loopback pair{device, {}, room};
    for (const std::size_t length : lengths()) {
        SCOPED_TRACE(length);
        pair.a_memory.fill(static_cast<unsigned>(length));
        std::memset(pair.b_memory.data(), 0, pair.b_memory.size());
        ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(16, room - 128)}), 0);
        ASSERT_EQ(pair.a.send(1, slices(pair.a_memory, length)), 0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
        const ibv_wc received = next(pair.b.receives);
        ASSERT_EQ(received.status, IBV_WC_SUCCESS) << ibv_wc_status_str(received.status);
        EXPECT_EQ(received.opcode, IBV_WC_RECV);
        EXPECT_EQ(received.wr_id, 2U);
        EXPECT_EQ(received.byte_len, length);
        EXPECT_EQ(received.qp_num, pair.b.qp->qp_num);
        EXPECT_EQ(received.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), 0U);
        expect_arrived(pair.a_memory, pair.b_memory, length);
    }
}

TEST_F(Reliable, WriteCarriesAnyLength) {
    Loopback pair{device, {}, room};
    for (const std::size_t length : lengths()) {
        SCOPED_TRACE(length);
        pair.a_memory.fill(static_cast<unsigned>(length));
        std::memset(pair.b_memory.data(), 0, pair.b_memory.size());
        ASSERT_EQ(pair.a.write(1, slices(pair.a_memory, length), at(pair.b_memory, 16)), 0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
        expect_arrived(pair.a_memory, pair.b_memory, length);
    }
    EXPECT_FALSE(poll_once(pair.b.receives.get()).has_value()) << "the responder is not told";
}

TEST_F(Reliable, ReadCarriesAnyLength) {
    Loopback pair{device, {}, room};
    for (const std::size_t length : lengths()) {
        SCOPED_TRACE(length);
        pair.b_memory.fill(static_cast<unsigned>(length));
        std::memset(pair.a_memory.data(), 0, pair.a_memory.size());
        ASSERT_EQ(pair.a.read(1, slices(pair.a_memory, length), at(pair.b_memory, 16)), 0);
        const ibv_wc done = next(pair.a.sends);
        ASSERT_EQ(done.status, IBV_WC_SUCCESS) << ibv_wc_status_str(done.status);
        EXPECT_EQ(done.opcode, IBV_WC_RDMA_READ);
        EXPECT_EQ(done.byte_len, length);
        expect_arrived(pair.b_memory, pair.a_memory, length);
    }
}

TEST_F(Reliable, WriteWithImmediateCarriesAnyLengthAndTellsIt) {
    Loopback pair{device, {}, room};
    for (const std::size_t length : lengths()) {
        SCOPED_TRACE(length);
        pair.a_memory.fill(static_cast<unsigned>(length));
        std::memset(pair.b_memory.data(), 0, pair.b_memory.size());
        ASSERT_EQ(pair.b.receive(2, {}), 0);
        ASSERT_EQ(pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 1, slices(pair.a_memory, length),
                              at(pair.b_memory, 16), IBV_SEND_SIGNALED,
                              htonl(0xc0ffee00U + static_cast<std::uint32_t>(length & 0xff))),
                  0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
        const ibv_wc received = next(pair.b.receives);
        ASSERT_EQ(received.status, IBV_WC_SUCCESS) << ibv_wc_status_str(received.status);
        EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        EXPECT_EQ(received.wr_id, 2U);
        EXPECT_EQ(received.byte_len, length);
        EXPECT_NE(received.wc_flags & IBV_WC_WITH_IMM, 0U);
        EXPECT_EQ(ntohl(received.imm_data), 0xc0ffee00U + (length & 0xff));
        expect_arrived(pair.a_memory, pair.b_memory, length);
    }
}

TEST_F(Reliable, WriteWithImmediateLeavesTheReceivesBufferAlone) {
    Loopback pair{device};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(4096, 64)}), 0);
    ASSERT_EQ(
        pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 1, {pair.a_memory.slice(0, 64)}, at(pair.b_memory)),
        0);
    EXPECT_COMPLETES(pair.b.receives, 2, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(pair.b_memory.count(std::byte{0}, 4096, 64), 64U);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 64));
}

TEST_F(Reliable, SendWithImmediateCarriesBoth) {
    Loopback pair{device};
    pair.a_memory.fill(4);
    for (const std::uint32_t immediate : {0U, 1U, 0x01020304U, 0xffffffffU}) {
        ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
        ASSERT_EQ(pair.a.post(IBV_WR_SEND_WITH_IMM, 1, {pair.a_memory.slice(0, 48)}, {},
                              IBV_SEND_SIGNALED, htonl(immediate)),
                  0);
        EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
        const ibv_wc received = next(pair.b.receives);
        EXPECT_EQ(received.status, IBV_WC_SUCCESS);
        EXPECT_EQ(received.opcode, IBV_WC_RECV);
        EXPECT_EQ(received.byte_len, 48U);
        EXPECT_NE(received.wc_flags & IBV_WC_WITH_IMM, 0U);
        EXPECT_EQ(ntohl(received.imm_data), immediate);
        EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, 48));
    }
}

TEST_F(Reliable, LengthIsBoundedByThePortsMaximumAlone) {
    // The largest message itself is gigabytes: what is checked is that it is at least what the
    // specification guarantees, and that 16 MiB pass in one request where it allows them.
    const std::size_t limit = device.port_attributes().max_msg_sz;
    EXPECT_GE(limit, device.mtu_bytes());
    const std::size_t length = std::min<std::size_t>(limit, std::size_t{16} << 20);
    Loopback pair{device, {}, length};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.all()}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 0, length));
}

TEST_F(Reliable, AMessageBeyondThePortsMaximumIsNotSent) {
    Options options = impatient();
    options.send_sges = static_cast<std::uint32_t>(device.attributes().max_sge);
    const std::size_t limit = device.port_attributes().max_msg_sz;
    const std::size_t part = limit / options.send_sges + 1;
    if (part > (std::size_t{256} << 20)) GTEST_SKIP() << "max_msg_sz is too large for a test";
    Loopback pair{device, options, part};
    const std::vector<ibv_sge> slices(options.send_sges, pair.a_memory.all());
    // The target is too small as well: a device that looks there first would say so.
    if (pair.a.write(1, slices, at(pair.b_memory)) == 0) {
        EXPECT_FAILS(pair.a.sends, 1, IBV_WC_LOC_LEN_ERR);
    }
    EXPECT_TRUE(pair.b_memory.untouched());
}

// --- slices -------------------------------------------------------------------------------------

TEST_F(Reliable, SlicesAreGatheredAndScatteredInTheirOrder) {
    Loopback pair{device};
    pair.a_memory.fill(2);
    // 10 + 1 + 300 bytes of the sender, 5 + 200 + 1000 of room: the borders do not meet.
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(8000, 5), pair.b_memory.slice(0, 200),
                                 pair.b_memory.slice(4000, 1000)}),
              0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(1000, 10), pair.a_memory.slice(0, 1),
                              pair.a_memory.slice(5000, 300)}),
              0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_SEND);
    const ibv_wc received = next(pair.b.receives);
    EXPECT_EQ(received.byte_len, 311U);
    std::vector<std::byte> sent;
    std::vector<std::byte> arrived;
    const auto append = [](std::vector<std::byte>& to, const Buffer& from, std::size_t offset,
                           std::size_t count) {
        to.insert(to.end(), from.data() + offset, from.data() + offset + count);
    };
    append(sent, pair.a_memory, 1000, 10);
    append(sent, pair.a_memory, 0, 1);
    append(sent, pair.a_memory, 5000, 300);
    append(arrived, pair.b_memory, 8000, 5);
    append(arrived, pair.b_memory, 0, 200);
    append(arrived, pair.b_memory, 4000, 106);
    EXPECT_EQ(sent, arrived);
    EXPECT_EQ(pair.b_memory.count(std::byte{0}, 4106, 894), 894U);
}

TEST_F(Reliable, AWriteGathersAndAReadScatters) {
    Loopback pair{device};
    pair.a_memory.fill(3);
    ASSERT_EQ(pair.a.write(1,
                           {pair.a_memory.slice(100, 7), pair.a_memory.slice(50, 9),
                            pair.a_memory.slice(0, 64)},
                           at(pair.b_memory, 256)),
              0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 100, pair.b_memory, 256, 7));
    EXPECT_TRUE(same(pair.a_memory, 50, pair.b_memory, 263, 9));
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 272, 64));
    ASSERT_EQ(pair.a.read(2, {pair.a_memory.slice(8000, 64), pair.a_memory.slice(9000, 16)},
                          at(pair.b_memory, 256)),
              0);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_READ);
    EXPECT_TRUE(same(pair.a_memory, 8000, pair.b_memory, 256, 64));
    EXPECT_TRUE(same(pair.a_memory, 9000, pair.b_memory, 320, 16));
}

TEST_F(Reliable, SlicesMayComeFromSeveralRegions) {
    Loopback pair{device};
    Buffer other{pair.a_domain.get(), 4096};
    pair.a_memory.fill(1);
    other.fill(2);
    ASSERT_EQ(
        pair.a.write(1, {other.slice(0, 100), pair.a_memory.slice(0, 100)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(other, 0, pair.b_memory, 0, 100));
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 100, 100));
}

TEST_F(Reliable, AReceiveLargerThanTheMessageKeepsItsRest) {
    Loopback pair{device};
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 4096)}), 0);
    ASSERT_EQ(pair.a.send(1, {pair.a_memory.slice(0, 10)}), 0);
    EXPECT_EQ(next(pair.b.receives).byte_len, 10U);
    EXPECT_EQ(pair.b_memory.count(std::byte{0}, 10, 4086), 4086U);
}

// --- inline -------------------------------------------------------------------------------------

TEST_F(Reliable, InlineDataMayChangeAsSoonAsItIsPostedAndNeedsNoKey) {
    Options options;
    options.inline_bytes = 64;
    Loopback pair{device, options};
    std::byte data[64];
    for (unsigned round = 0; round < 50; ++round) {
        std::memset(data, static_cast<int>(round + 1), sizeof data);
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(data), sizeof data, 0};
        ASSERT_EQ(
            pair.a.write(round, {slice}, at(pair.b_memory), IBV_SEND_SIGNALED | IBV_SEND_INLINE),
            0);
        std::memset(data, 0, sizeof data);
        EXPECT_COMPLETES(pair.a.sends, round, IBV_WC_RDMA_WRITE);
        EXPECT_EQ(pair.b_memory.count(static_cast<std::byte>(round + 1), 0, 64), 64U);
    }
}

TEST_F(Reliable, InlineSendsThatHaveToWaitKeepTheirData) {
    Options options;
    options.inline_bytes = 64;
    Loopback pair{device, options};
    std::byte data[32];
    for (unsigned i = 0; i < 8; ++i) {
        std::memset(data, static_cast<int>(i + 1), sizeof data);
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(data), sizeof data, 0};
        ASSERT_EQ(pair.a.send(i, {slice}, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
    }
    std::memset(data, 0xee, sizeof data);
    for (unsigned i = 0; i < 8; ++i) {
        ASSERT_EQ(pair.b.receive(i, {pair.b_memory.slice(32 * i, 32)}), 0);
    }
    for (unsigned i = 0; i < 8; ++i) {
        EXPECT_COMPLETES(pair.b.receives, i, IBV_WC_RECV);
        EXPECT_COMPLETES(pair.a.sends, i, IBV_WC_SEND);
        EXPECT_EQ(pair.b_memory.count(static_cast<std::byte>(i + 1), 32 * i, 32), 32U);
    }
}

TEST_F(Reliable, InlineGathersSeveralSlices) {
    Options options;
    options.inline_bytes = 64;
    Loopback pair{device, options};
    const char text[] = "inline data from two places";
    const ibv_sge first{reinterpret_cast<std::uint64_t>(text), 7, 0};
    const ibv_sge second{reinterpret_cast<std::uint64_t>(text + 7), 20, 0};
    ASSERT_EQ(
        pair.a.write(1, {first, second}, at(pair.b_memory), IBV_SEND_SIGNALED | IBV_SEND_INLINE),
        0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(std::memcmp(pair.b_memory.data(), text, 27), 0);
}

TEST_F(Reliable, InlineDataBeyondTheQueuePairsLimitIsRefusedWhilePosting) {
    Options options;
    options.inline_bytes = 16;
    Loopback pair{device, options};
    const std::uint32_t limit = pair.a.capacity.max_inline_data;
    ASSERT_GE(limit, 16U);
    ASSERT_LT(limit, pair.a_memory.size());
    const unsigned flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, limit)}, at(pair.b_memory), flags), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_NE(pair.a.write(2, {pair.a_memory.slice(0, limit + 1)}, at(pair.b_memory), flags), 0);
    EXPECT_EQ(pair.a.state(), IBV_QPS_RTS) << "a refused request leaves no trace";
    ASSERT_EQ(pair.a.write(3, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.a.sends, 3, IBV_WC_RDMA_WRITE);
}

// --- signaling ----------------------------------------------------------------------------------

TEST_F(Reliable, UnsignaledRequestsLeaveNoCompletion) {
    Loopback pair{device};
    for (std::uint64_t id = 0; id < 5; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 8)}, at(pair.b_memory),
                               id == 4 ? unsigned{IBV_SEND_SIGNALED} : 0U),
                  0);
    }
    EXPECT_COMPLETES(pair.a.sends, 4, IBV_WC_RDMA_WRITE);
    EXPECT_FALSE(poll_once(pair.a.sends.get()).has_value());
}

TEST_F(Reliable, AQueuePairMayBeCreatedToSignalEveryRequest) {
    Options options;
    options.all_signaled = true;
    Loopback pair{device, options};
    for (std::uint64_t id = 0; id < 5; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 8)}, at(pair.b_memory), 0), 0);
    }
    for (std::uint64_t id = 0; id < 5; ++id) EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
}

TEST_F(Reliable, PollReturnsAsManyCompletionsAsAskedAndThereAre) {
    Loopback pair{device};
    for (std::uint64_t id = 0; id < 5; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)), 0);
    }
    ASSERT_EQ(pair.b.receive(9, {}), 0);
    ASSERT_EQ(pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 5, {}, at(pair.b_memory)), 0);
    EXPECT_COMPLETES(pair.b.receives, 9, IBV_WC_RECV_RDMA_WITH_IMM);
    ibv_wc got[8]{};
    int count = 0;
    ASSERT_TRUE(eventually([&] {
        const int now = ibv_poll_cq(pair.a.sends.get(), std::min(2, 8 - count), got + count);
        EXPECT_LE(now, 2);
        count += now;
        return count >= 6;
    }));
    EXPECT_EQ(count, 6);
    for (std::uint64_t id = 0; id < 6; ++id) EXPECT_EQ(got[id].wr_id, id);
    EXPECT_EQ(ibv_poll_cq(pair.a.sends.get(), 8, got), 0);
    EXPECT_EQ(ibv_poll_cq(pair.a.sends.get(), 0, got), 0);
}

TEST_F(Reliable, OneQueueMayTakeTheCompletionsOfBothHalves) {
    const Queue both{
        made(ibv_create_cq(device.context(), 32, nullptr, nullptr, 0), "ibv_create_cq")};
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = both.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    Loopback pair{device};
    const Domain own{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    Endpoint end{device, own.get()};
    end.qp.reset();
    end.qp.reset(made(ibv_create_qp(own.get(), &init), "ibv_create_qp"));
    const Buffer memory{own.get(), 4096};
    end.connect(end.name());  // a queue pair may be its own peer
    ASSERT_EQ(end.receive(1, {memory.slice(0, 64)}), 0);
    ASSERT_EQ(end.send(2, {memory.slice(64, 64)}), 0);
    std::set<std::uint64_t> seen;
    for (int i = 0; i < 2; ++i) {
        const ibv_wc completion = next(both);
        EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
        EXPECT_EQ(completion.opcode, completion.wr_id == 1 ? IBV_WC_RECV : IBV_WC_SEND);
        seen.insert(completion.wr_id);
    }
    EXPECT_EQ(seen.size(), 2U);
}

// --- order --------------------------------------------------------------------------------------

TEST_F(Reliable, SendsAreReceivedInTheOrderOfPosting) {
    Loopback pair{device};
    std::uint64_t posted = 0;
    std::uint64_t sent = 0;
    for (std::uint64_t received = 0; received < 300;) {
        while (posted < received + 16 && posted < 300) {
            ASSERT_EQ(pair.b.receive(posted, {pair.b_memory.slice(8 * (posted % 16), 8)}), 0);
            ++posted;
        }
        while (sent < posted && sent < received + 16) {
            pair.a_memory.set_word(sent, 8 * (sent % 16));
            ASSERT_EQ(pair.a.send(sent, {pair.a_memory.slice(8 * (sent % 16), 8)}), 0);
            ++sent;
        }
        ASSERT_FALSE(HasFailure());
        EXPECT_COMPLETES(pair.b.receives, received, IBV_WC_RECV);
        EXPECT_EQ(pair.b_memory.word(8 * (received % 16)), received);
        EXPECT_COMPLETES(pair.a.sends, received, IBV_WC_SEND);
        ++received;
    }
}

TEST_F(Reliable, ASendIsReceivedAfterTheWritesThatWerePostedBefore) {
    Loopback pair{device};
    for (std::uint64_t round = 1; round <= 100; ++round) {
        pair.a_memory.set_word(round, 0);
        pair.a_memory.set_word(round, 32768);
        ASSERT_EQ(pair.b.receive(round, {pair.b_memory.slice(60000, 8)}), 0);
        ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 40000)}, at(pair.b_memory), 0), 0);
        ASSERT_EQ(pair.a.send(round, {pair.a_memory.slice(60000, 8)}), 0);
        EXPECT_COMPLETES(pair.b.receives, round, IBV_WC_RECV);
        ASSERT_EQ(pair.b_memory.word(0), round);
        ASSERT_EQ(pair.b_memory.word(32768), round);
        EXPECT_COMPLETES(pair.a.sends, round, IBV_WC_SEND);
    }
}

TEST_F(Reliable, AReadSeesTheWritesThatWerePostedBefore) {
    Loopback pair{device};
    for (std::uint64_t round = 1; round <= 50; ++round) {
        pair.a_memory.set_word(round);
        ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, at(pair.b_memory), 0), 0);
        ASSERT_EQ(pair.a.read(round, {pair.a_memory.slice(64, 8)}, at(pair.b_memory)), 0);
        EXPECT_COMPLETES(pair.a.sends, round, IBV_WC_RDMA_READ);
        ASSERT_EQ(pair.a_memory.word(64), round);
    }
}

TEST_F(Reliable, AFencedSendCarriesWhatTheReadBeforeItBrought) {
    Loopback pair{device};
    for (std::uint64_t round = 1; round <= 50; ++round) {
        pair.b_memory.set_word(round);
        pair.a_memory.set_word(0, 64);
        ASSERT_EQ(pair.b.receive(round, {pair.b_memory.slice(128, 8)}), 0);
        ASSERT_EQ(pair.a.read(1, {pair.a_memory.slice(64, 8)}, at(pair.b_memory), 0), 0);
        ASSERT_EQ(
            pair.a.send(round, {pair.a_memory.slice(64, 8)}, IBV_SEND_SIGNALED | IBV_SEND_FENCE),
            0);
        EXPECT_COMPLETES(pair.b.receives, round, IBV_WC_RECV);
        ASSERT_EQ(pair.b_memory.word(128), round);
        EXPECT_COMPLETES(pair.a.sends, round, IBV_WC_SEND);
    }
}

TEST_F(Reliable, CompletionsOfDifferentOperationsComeInTheOrderOfPosting) {
    Loopback pair{device};
    for (std::uint64_t round = 0; round < 20; ++round) {
        ASSERT_EQ(pair.b.receive(round, {pair.b_memory.slice(0, 64)}), 0);
        ASSERT_EQ(pair.a.read(3 * round, {pair.a_memory.slice(64, 64)}, at(pair.b_memory)), 0);
        ASSERT_EQ(pair.a.write(3 * round + 1, {pair.a_memory.slice(0, 64)}, at(pair.b_memory)), 0);
        ASSERT_EQ(pair.a.send(3 * round + 2, {pair.a_memory.slice(0, 64)}), 0);
        EXPECT_COMPLETES(pair.a.sends, 3 * round, IBV_WC_RDMA_READ);
        EXPECT_COMPLETES(pair.a.sends, 3 * round + 1, IBV_WC_RDMA_WRITE);
        EXPECT_COMPLETES(pair.a.sends, 3 * round + 2, IBV_WC_SEND);
        EXPECT_COMPLETES(pair.b.receives, round, IBV_WC_RECV);
    }
}

TEST_F(Reliable, BothDirectionsRunAtOnce) {
    Loopback pair{device};
    pair.a_memory.fill(1);
    pair.b_memory.fill(2);
    for (std::uint64_t id = 0; id < 8; ++id) {
        ASSERT_EQ(pair.a.write(id, {pair.a_memory.slice(0, 4096)}, at(pair.b_memory, 16384)), 0);
        ASSERT_EQ(pair.b.write(id, {pair.b_memory.slice(0, 4096)}, at(pair.a_memory, 16384)), 0);
    }
    for (std::uint64_t id = 0; id < 8; ++id) {
        EXPECT_COMPLETES(pair.a.sends, id, IBV_WC_RDMA_WRITE);
        EXPECT_COMPLETES(pair.b.sends, id, IBV_WC_RDMA_WRITE);
    }
    EXPECT_TRUE(same(pair.a_memory, 0, pair.b_memory, 16384, 4096));
    EXPECT_TRUE(same(pair.b_memory, 0, pair.a_memory, 16384, 4096));
}

TEST_F(Reliable, ManyQueuePairsDoNotMixTheirData) {
    constexpr std::size_t count = 16;
    std::vector<std::unique_ptr<Loopback>> pairs;
    for (std::size_t i = 0; i < count; ++i) {
        pairs.push_back(std::make_unique<Loopback>(device, Options{}, 4096));
        pairs.back()->a_memory.fill(static_cast<unsigned>(i));
    }
    for (auto& pair : pairs) {
        ASSERT_EQ(pair->b.receive(1, {pair->b_memory.slice(0, 4096)}), 0);
        ASSERT_EQ(pair->a.send(2, {pair->a_memory.slice(0, 4096)}), 0);
    }
    for (auto& pair : pairs) {
        const ibv_wc received = next(pair->b.receives);
        EXPECT_EQ(received.status, IBV_WC_SUCCESS);
        EXPECT_EQ(received.qp_num, pair->b.qp->qp_num);
        EXPECT_TRUE(same(pair->a_memory, 0, pair->b_memory, 0, 4096));
        EXPECT_COMPLETES(pair->a.sends, 2, IBV_WC_SEND);
    }
}

}  // namespace
}  // namespace millrace::conformance
