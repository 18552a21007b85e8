// Queue pairs whose peer is on the wire: which ones are, what travels, and how errors end. Both
// ends are in this process, which sends to itself through its port; two processes, all the rules of
// verbs over the wire and other people's programs: tests/conformance, tests/drop_in.
#include "wire/connected.hpp"

#include <endian.h>
#include <netinet/ip.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "../roce/packet.hpp"
#include "datagram/address_handle.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "soft/endpoint.hpp"
#include "soft/events.hpp"
#include "soft/fabric_name.hpp"
#include "soft/mode_scope.hpp"
#include "support/setting_scope.hpp"
#include "wire/wire_port.hpp"
#include "wire/wire_route.hpp"

namespace millrace::test {
namespace {

using soft::WireCount;

class Connected : public testing::Test {
  protected:
    static constexpr unsigned all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    static EndpointOptions with_all_access() {
        EndpointOptions options;
        options.access = all_access;
        options.qp_access = all_access & ~unsigned{IBV_ACCESS_LOCAL_WRITE};
        return options;
    }
    /// Of the process that has opened `end`'s device.
    static std::uint64_t counted(const Endpoint& end, WireCount what) {
        return soft::context_of(end.context)->process->wire()->counted(what);
    }
    static ibv_gid gid_of(std::uint32_t ip) { return soft::gid_of({ip, soft::public_wire_port}); }

    SettingScope fabric{"MILLRACE_FABRIC", fabric_of_test()};
    SettingScope wire{"MILLRACE_WIRE", "127.0.0.2,always"};
};

TEST_F(Connected, WriteGoesInPacketsAndLandsWhole) {
    Pair pair;
    for (std::size_t i = 0; i < 30'000; ++i) pair.left.memory[i] = static_cast<std::byte>(i % 251);
    const std::uint64_t before = counted(pair.left, WireCount::packets_sent);
    ASSERT_EQ(pair.left.write(1, 0, 30'000, pair.right.address(7), pair.right.mr->rkey), 0);
    const auto done = pair.left.complete();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->byte_len, 30'000U);
    EXPECT_EQ(std::memcmp(pair.right.memory + 7, pair.left.memory, 30'000), 0);
    EXPECT_GE(counted(pair.left, WireCount::packets_sent), before + 9) << "8 of 4 KiB, an answer";
    EXPECT_EQ(soft::map_remote(pair.left.qp, pair.right.address(), pair.right.mr->rkey, 8), nullptr)
        << "nobody stores into the memory of another host";
}

TEST_F(Connected, SendWaitsForItsReceive) {
    Pair pair;
    pair.left.memory[0] = std::byte{42};
    ASSERT_EQ(pair.left.post(IBV_WR_SEND_WITH_IMM, 1, {pair.left.sge(0, 10'000)}, IBV_SEND_SIGNALED,
                             0, 0, 77),
              0);
    EXPECT_FALSE(pair.left.complete(std::chrono::milliseconds{30}));
    ASSERT_EQ(pair.right.receive(2, 20'000, 10'000), 0);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->wr_id, 2U);
    EXPECT_EQ(received->byte_len, 10'000U);
    EXPECT_EQ(received->imm_data, 77U);
    EXPECT_EQ(received->src_qp, pair.left.qp->qp_num);
    EXPECT_EQ(pair.right.memory[20'000], std::byte{42});
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
}

TEST_F(Connected, ReadAndAtomicBringWhatIsThere) {
    Pair pair{with_all_access(), with_all_access()};
    pair.right.word(0) = 40;
    ASSERT_EQ(pair.left.fetch_add(1, 64, pair.right.address(0), pair.right.mr->rkey, 2), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 2, {pair.left.sge(128, 9'000)}, IBV_SEND_SIGNALED,
                             pair.right.address(0), pair.right.mr->rkey),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.left.word(64), 40U);
    EXPECT_EQ(pair.left.word(128), 42U) << "the READ came after the atomic";
    EXPECT_EQ(pair.right.word(0), 42U);
}

TEST_F(Connected, BothEndsHearOfAWrongKey) {
    Pair pair;
    ASSERT_EQ(pair.right.receive(3, 0, 64), 0);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey + 1), 0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(status_of(pair.left), IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(status_of(pair.right), IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_ERR);
    ibv_async_event event{};
    ASSERT_EQ(soft::get_async_event(pair.right.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    soft::ack_async_event(&event);
}

TEST_F(Connected, APeerThatAnswersNothingIsGivenUp) {
    EndpointOptions options;
    options.timeout = 8;  // 1 ms
    options.retry_cnt = 2;
    Pair pair{options, options};
    ASSERT_EQ(pair.right.to_state(IBV_QPS_RESET), 0);
    const std::uint64_t before = counted(pair.left, WireCount::retries_exhausted);
    const std::uint64_t repeated = counted(pair.left, WireCount::retransmissions);
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(counted(pair.left, WireCount::retries_exhausted), before + 1);
    EXPECT_EQ(counted(pair.left, WireCount::retransmissions), repeated + 2);
}

/// Takes packets of a queue pair that is not connected, and is held up by each until it is let go.
class HeldUp final : public soft::WireReceiver {
  public:
    explicit HeldUp(const Endpoint& end)
        : qpn_{end.qp->qp_num}, port_{*soft::context_of(end.context)->process->wire()} {
        EXPECT_TRUE(port_.add(qpn_, *this, {}));
    }
    ~HeldUp() {
        let_go(~0U);
        port_.remove(qpn_);
    }
    HeldUp(const HeldUp&) = delete;
    HeldUp& operator=(const HeldUp&) = delete;

    /// Sends it a packet.
    void send() {
        roce::Packet packet{};
        packet.destination = qpn_;
        const auto route = port_.route(port_.own());
        {
            soft::WireOutlet outlet{*route};
            std::uint8_t* const room =
                outlet.begin(roce::header_bytes(packet.service, packet.kind));
            ASSERT_NE(room, nullptr);
            roce::compose(packet, room);
            outlet.commit();
        }
        port_.flush();
    }
    /// So many of its packets have come, and the last of them holds up who takes packets.
    [[nodiscard]] bool holds(unsigned packets) {
        std::unique_lock held{mutex_};
        return changed_.wait_for(held, std::chrono::seconds{20}, [&] { return came_ >= packets; });
    }
    void let_go(unsigned packets) {
        const std::lock_guard held{mutex_};
        passes_ = packets;
        changed_.notify_all();
    }

  private:
    void arrived(const soft::WirePacket&) noexcept override {
        std::unique_lock held{mutex_};
        ++came_;
        changed_.notify_all();
        changed_.wait(held, [&] { return passes_ >= came_; });
    }
    bool settled(std::int64_t, Answers) noexcept override { return false; }

    const std::uint32_t qpn_;
    soft::WirePort& port_;
    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned came_ = 0;
    unsigned passes_ = 0;
};

// The program has seen what came, and ends its queue pair before the packet was acknowledged.
TEST_F(Connected, WhatHasComeIsAcknowledgedByAQueuePairThatEnds) {
    EndpointOptions options;
    options.timeout = 17;  // half a second
    options.retry_cnt = 2;
    Pair pair{options, options};
    const Endpoint other;
    HeldUp held_up{other};
    held_up.send();
    ASSERT_TRUE(held_up.holds(1)) << "nobody takes packets now";
    pair.left.word(0) = 42;
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    held_up.send();
    held_up.let_go(1);
    ASSERT_TRUE(held_up.holds(2)) << "of those that came together, before any is answered";
    EXPECT_EQ(pair.right.word(0), 42U);
    ASSERT_EQ(pair.right.to_state(IBV_QPS_ERR), 0);
    held_up.let_go(2);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
}

// Who polls may leave an acknowledgement for the next post or look, of which there is none.
TEST_F(Connected, WhatWasTakenIsAcknowledgedBeforeItsQueuePairGoes) {
    EndpointOptions options;
    options.timeout = 17;  // half a second
    options.retry_cnt = 2;
    for (int round = 0; round < 30; ++round) {
        Pair pair{options, options};
        ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
        ibv_wc none;
        for (int polls = 0; polls < 5'000; ++polls) {
            ASSERT_EQ(ibv_poll_cq(pair.right.cq, 1, &none), 0);
        }
        ASSERT_EQ(pair.left.send(1, 0, 64), 0);
        ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
        ASSERT_EQ(soft::destroy_qp(std::exchange(pair.right.qp, nullptr)), 0);
        ASSERT_EQ(status_of(pair.left), IBV_WC_SUCCESS) << round;
    }
}

TEST_F(Connected, AgainAfterReset) {
    Pair pair;
    for (std::uint64_t id = 1; id <= 3; ++id) {
        ASSERT_EQ(pair.left.write(id, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
        EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
        for (Endpoint* const end : {&pair.left, &pair.right}) {
            ASSERT_EQ(end->to_state(IBV_QPS_RESET), 0);
        }
        ASSERT_EQ(pair.left.connect(pair.right.qp->qp_num), 0);
        ASSERT_EQ(pair.right.connect(pair.left.qp->qp_num), 0);
    }
}

TEST_F(Connected, ASleeperIsWokenByTheEngine) {
    Pair pair{with_events(), with_events()};
    ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    ASSERT_EQ(pair.left.send(1, 0, 64), 0);
    EXPECT_TRUE(is_readable(pair.right.channel->fd, 10'000)) << "and nobody polls";
    EXPECT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
}

TEST_F(Connected, UnreliableMessagesArriveToo) {
    EndpointOptions options;
    options.type = IBV_QPT_UC;
    Pair pair{options, options};
    ASSERT_EQ(pair.right.receive(2, 0, 9'000), 0);
    pair.left.memory[8'999] = std::byte{9};
    ASSERT_EQ(pair.left.send(1, 0, 9'000), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[8'999], std::byte{9});
}

/// A datagram to `gid`, what stood before it at its receiver, and where that says that it came
/// from.
struct SentDatagram {
    explicit SentDatagram(const ibv_gid& gid) {
        EndpointOptions options;
        options.type = IBV_QPT_UD;
        Endpoint from{options};
        Endpoint to{options};
        for (Endpoint* const end : {&from, &to}) EXPECT_EQ(end->connect(0), 0);
        EXPECT_EQ(to.receive(2, 0, 1'000), 0);
        ibv_ah_attr way{};
        way.is_global = 1;
        way.port_num = 1;
        way.grh.dgid = gid;
        way.grh.sgid_index = 1;
        ibv_ah* const handle = soft::create_ah(from.pd, &way);
        if (handle == nullptr) throw std::runtime_error{"no address handle"};
        ibv_sge piece = from.sge(0, 100);
        ibv_send_wr wr{};
        wr.wr_id = 1;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND_WITH_IMM;
        wr.imm_data = 5;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.ud.ah = handle;
        wr.wr.ud.remote_qpn = to.qp->qp_num;
        ibv_send_wr* bad = nullptr;
        from.memory[99] = std::byte{99};
        EXPECT_EQ(ibv_post_send(from.qp, &wr, &bad), 0);
        EXPECT_EQ(status_of(from), IBV_WC_SUCCESS);
        auto received = to.complete();
        if (!received) throw std::runtime_error{"no datagram"};
        EXPECT_EQ(received->byte_len, 140U);
        EXPECT_EQ(received->imm_data, 5U);
        EXPECT_EQ(received->src_qp, from.qp->qp_num);
        EXPECT_NE(received->wc_flags & IBV_WC_GRH, 0U);
        EXPECT_EQ(to.memory[139], std::byte{99});
        std::memcpy(&header, to.memory, sizeof header);
        EXPECT_EQ(soft::init_ah_from_wc(to.context, 1, &*received, &header, &back), 0);
        EXPECT_EQ(std::memcmp(back.grh.dgid.raw, gid.raw, sizeof gid.raw), 0);
        EXPECT_EQ(back.grh.sgid_index, 1);
        EXPECT_EQ(soft::destroy_ah(handle), 0);
    }
    ibv_grh header{};
    ibv_ah_attr back{};
};

TEST_F(Connected, ADatagramBringsAnIpv4HeaderThatLeadsBack) {
    SentDatagram sent{gid_of(0x7f000002)};
    soft::Ipv4InGrh header;
    std::memcpy(&header, &sent.header, sizeof header);
    for (const std::uint8_t zero : header.zeros) EXPECT_EQ(zero, 0);
    EXPECT_EQ(header.header.version, 4);
    std::uint32_t sum = 0;
    std::uint16_t words[10];
    std::memcpy(words, &header.header, sizeof words);
    for (const std::uint16_t word : words) sum += word;
    EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffU);
}

TEST_F(Connected, ADatagramOverIpv6BringsItsHeaderThatLeadsBack) {
    const SettingScope over_ipv6{"MILLRACE_WIRE", "[::1],always"};
    const ibv_gid loopback = soft::IpAddress::parse("::1").value().gid();
    const SentDatagram sent{loopback};
    EXPECT_EQ(be32toh(sent.header.version_tclass_flow) >> 28, 6U);
    EXPECT_EQ(be16toh(sent.header.paylen), 8 + 12 + 8 + 4 + 100 + 4) << "of UDP: headers, ICRC";
    EXPECT_EQ(sent.header.next_hdr, 17);
    for (const ibv_gid& gid : {sent.header.sgid, sent.header.dgid}) {
        EXPECT_EQ(std::memcmp(gid.raw, loopback.raw, sizeof gid.raw), 0);
    }
}

TEST_F(Connected, WhatTheWireDoesNotReachByItsIpIsRefused) {
    const Endpoint end;
    const soft::IpAddress six = soft::IpAddress::parse("fd00::77").value();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = 1;
    attributes.ah_attr.grh.dgid = six.gid();
    EXPECT_EQ(soft::modify_qp(end.qp, &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              EINVAL);
}

/// To queue pair 0x123456 of the host 127.0.0.3, by the GID of that index.
template <std::uint8_t source>
void towards_another_host(ibv_qp_attr& attributes) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = soft::gid_of({0x7f000003, soft::public_wire_port});
    attributes.ah_attr.grh.sgid_index = source;
}
/// To this host, by its GID.
void towards_this_host(ibv_qp_attr& attributes) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = soft::gid_of({0x7f000002, soft::public_wire_port});
    attributes.ah_attr.grh.sgid_index = 1;
}

class Choice : public Connected {
  protected:
    SettingScope named{"MILLRACE_WIRE", "127.0.0.2"};
};

TEST_F(Choice, IsMemoryForAPeerOfThisHost) {
    EndpointOptions options;
    options.alter = towards_this_host;
    Pair pair{options, options};
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(counted(pair.left, WireCount::packets_sent), 0U);
    EXPECT_NE(soft::map_remote(pair.left.qp, pair.right.address(), pair.right.mr->rkey, 8),
              nullptr);
}

TEST_F(Choice, IsTheWireForAnotherHost) {
    EndpointOptions options;
    options.alter = towards_another_host<1>;
    options.timeout = 8;
    options.retry_cnt = 0;
    Endpoint end{options};
    ASSERT_EQ(end.connect(0x123456), 0);
    ASSERT_EQ(end.write(1, 0, 8, 0, 0), 0);
    EXPECT_EQ(status_of(end), IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(counted(end, WireCount::packets_sent), 1U);
}

TEST_F(Choice, IsRefusedWhereTheDeviceModelsALink) {
    const ModeScope mode{"shaped"};
    errno = 0;
    EXPECT_EQ(soft::open_device(soft::device_list(nullptr)[0]), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(Choice, IsRefusedToAQueuePairOnAModelledLink) {
    const Endpoint fast;  // opened with the wire, which the process keeps
    const SettingScope off{"MILLRACE_WIRE", "off"};
    const ModeScope mode{"shaped"};
    EndpointOptions options;
    options.alter = towards_another_host<1>;
    Endpoint end{options};
    ASSERT_EQ(end.to_init(), 0);
    EXPECT_EQ(end.to_rtr(0x123456), EINVAL);
    EXPECT_EQ(state_of(end.qp), IBV_QPS_INIT);
}

}  // namespace
}  // namespace millrace::test
