// UD queue pairs: what arrives, what is dropped, and what a receive looks like. Within a process,
// and from two others.
#include <endian.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <thread>

#include "layout/block_layout.hpp"
#include "soft/station.hpp"
#include "support/child_process.hpp"

namespace millrace::test {
namespace {

class Datagrams : public testing::TestWithParam<bool> {
  protected:
    Datagrams() {
        StationOptions options;
        options.shared_memory = GetParam();
        station.emplace(options);
        left = station->datagram();
        right = station->datagram();
        local = station->handle();
    }
    std::optional<Station> station;
    ibv_qp* left = nullptr;
    ibv_qp* right = nullptr;
    ibv_ah* local = nullptr;
};
INSTANTIATE_TEST_SUITE_P(SoftDevice, Datagrams, testing::Bool(),
                         [](const auto& chosen) { return chosen.param ? "shared" : "private"; });

TEST_P(Datagrams, ArriveBehindRoomForTheGlobalHeader) {
    std::memset(station->memory, 7, 100);
    std::memset(station->memory + 4096, 1, 200);
    ASSERT_EQ(station->receive(right, 5, 4096, 140), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 100), 0);
    std::map<std::uint64_t, ibv_wc> seen;
    for (int i = 0; i < 2; ++i) {
        const auto wc = station->complete();
        ASSERT_TRUE(wc);
        seen[wc->wr_id] = *wc;
    }
    ASSERT_TRUE(seen.contains(5) && seen.contains(9));
    EXPECT_EQ(seen[9].opcode, IBV_WC_SEND);
    EXPECT_EQ(seen[9].qp_num, left->qp_num);
    EXPECT_EQ(seen[5].status, IBV_WC_SUCCESS);
    EXPECT_EQ(seen[5].opcode, IBV_WC_RECV);
    EXPECT_EQ(seen[5].byte_len, 140U);
    EXPECT_EQ(seen[5].src_qp, left->qp_num);
    EXPECT_EQ(seen[5].qp_num, right->qp_num);
    EXPECT_EQ(seen[5].slid, 1);
    EXPECT_EQ(seen[5].sl, 3);
    EXPECT_EQ(seen[5].wc_flags, 0U);
    for (int i = 0; i < 40; ++i) EXPECT_EQ(station->memory[4096 + i], std::byte{1}) << i;
    for (int i = 40; i < 140; ++i) EXPECT_EQ(station->memory[4096 + i], std::byte{7}) << i;
    EXPECT_EQ(station->memory[4096 + 140], std::byte{1});
}

TEST_P(Datagrams, CarryImmediateDataAndTheGlobalHeaderThatAnswersAreMadeFrom) {
    ibv_ah* const global = station->handle(true);
    ASSERT_EQ(station->receive(right, 5, 4096, 1000), 0);
    ASSERT_EQ(station->send_to(left, global, right->qp_num, 9, 0, 6, 0, std::nullopt, 77), 0);
    auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wc_flags, unsigned{IBV_WC_GRH} | unsigned{IBV_WC_WITH_IMM});
    EXPECT_EQ(wc->imm_data, 77U);
    auto* const grh = reinterpret_cast<ibv_grh*>(station->memory + 4096);
    ibv_gid own;
    ASSERT_EQ(soft::query_gid(station->context, 1, 0, &own), 0);
    EXPECT_EQ(be32toh(grh->version_tclass_flow), 0x65aabcdeU);
    EXPECT_EQ(be16toh(grh->paylen), 12 + 8 + 4 + 8 + 4);
    EXPECT_EQ(grh->next_hdr, 0x1b);
    EXPECT_EQ(grh->hop_limit, 7);
    EXPECT_EQ(std::memcmp(grh->sgid.raw, own.raw, 16), 0);
    EXPECT_EQ(std::memcmp(grh->dgid.raw, own.raw, 16), 0);

    ibv_ah* const back = soft::create_ah_from_wc(station->pd, &*wc, grh, 1);
    ASSERT_NE(back, nullptr);
    station->handles.push_back(back);
    ASSERT_EQ(station->receive(left, 6, 8192, 100), 0);
    ASSERT_EQ(station->send_to(right, back, wc->src_qp, 10, 0, 6, 0), 0);
    wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 6U);
    EXPECT_EQ(wc->src_qp, right->qp_num);
    EXPECT_NE(wc->wc_flags & IBV_WC_GRH, 0U);
}

TEST_P(Datagrams, AreGatheredAndScattered) {
    for (int i = 0; i < 300; ++i) station->memory[i] = static_cast<std::byte>(i);
    ibv_sge to[2] = {station->sge(4096, 50), station->sge(8192, 300)};
    ibv_recv_wr receive{};
    receive.wr_id = 1;
    receive.sg_list = to;
    receive.num_sge = 2;
    ibv_recv_wr* bad_receive = nullptr;
    ASSERT_EQ(ibv_post_recv(right, &receive, &bad_receive), 0);
    ibv_sge from[2] = {station->sge(0, 30), station->sge(30, 220)};
    ibv_send_wr send{};
    send.sg_list = from;
    send.num_sge = 2;
    send.opcode = IBV_WR_SEND;
    send.wr.ud.ah = local;
    send.wr.ud.remote_qpn = right->qp_num;
    send.wr.ud.remote_qkey = station->options.qkey;
    ibv_send_wr* bad_send = nullptr;
    ASSERT_EQ(ibv_post_send(left, &send, &bad_send), 0);
    const auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->byte_len, 290U);
    EXPECT_EQ(std::memcmp(station->memory, station->memory + 4096 + 40, 10), 0);
    EXPECT_EQ(std::memcmp(station->memory + 10, station->memory + 8192, 240), 0);
}

TEST_P(Datagrams, OfTheWrongQueueKeyAreDropped) {
    ASSERT_EQ(station->receive(right, 5, 4096, 1000), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 8, 0, 0x4321), 0);
    EXPECT_TRUE(station->quiet());
    // The highest bit says: that of the sending queue pair.
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 8, 0, 0x80000000), 0);
    const auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 5U);
}

TEST_P(Datagrams, WithoutAReceiveAreDroppedAndTheSendCompletes) {
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 8), 0);
    auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    ASSERT_EQ(station->receive(right, 5, 4096, 1000), 0);
    EXPECT_TRUE(station->quiet()) << "it is gone";
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 8, 0), 0);
    wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 5U);
}

TEST_P(Datagrams, LongerThanTheReceiveAreDroppedAndLeaveIt) {
    ASSERT_EQ(station->receive(right, 5, 4096, 100), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 61, 0), 0);
    EXPECT_TRUE(station->quiet());
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 60, 0), 0);
    const auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->byte_len, 100U);
}

TEST_P(Datagrams, UpToTheMtuTravelAndLongerOnesAreNotSent) {
    std::memset(station->memory, 3, 5000);
    ASSERT_EQ(station->receive(right, 5, 8192, 8192), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 4097), 0);
    auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->opcode, IBV_WC_SEND);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_TRUE(station->quiet());
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 4096, 0), 0);
    wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->byte_len, 4136U);
    EXPECT_EQ(std::memcmp(station->memory, station->memory + 8192 + 40, 4096), 0);
}

TEST_P(Datagrams, ToNobodyAreDropped) {
    constexpr std::uint32_t of_last_node = 0xffeU << 12;  // low numbers are those of other tests
    for (const std::uint32_t nobody : {0U, 0xffffffU, right->qp_num + 1000, of_last_node}) {
        EXPECT_EQ(station->send_to(left, local, nobody, 9, 0, 8, 0), 0) << nobody;
    }
    ibv_ah_attr elsewhere{};
    elsewhere.port_num = 1;
    elsewhere.dlid = 17;
    ASSERT_EQ(station->receive(right, 5, 4096, 100), 0);
    EXPECT_EQ(station->send_to(left, station->handle(elsewhere), right->qp_num, 9, 0, 8, 0), 0);
    EXPECT_TRUE(station->quiet());
}

TEST_P(Datagrams, FindTheQueuePairThatTookTheNumberOfAnother) {
    const std::uint32_t number = right->qp_num;
    ASSERT_EQ(station->receive(right, 5, 4096, 100), 0);
    ASSERT_EQ(station->send_to(left, local, number, 9, 0, 8, 0), 0);
    ASSERT_TRUE(station->complete());
    station->destroy(right);
    ASSERT_EQ(station->send_to(left, local, number, 9, 0, 8, 0), 0);
    EXPECT_TRUE(station->quiet());
    std::vector<ibv_qp*> others;
    for (int i = 0; i < 5000 && (others.empty() || others.back()->qp_num != number); ++i) {
        others.push_back(station->make(IBV_QPT_UD));
        if (others.back()->qp_num != number && others.size() > 64) {
            station->destroy(others.front());
            others.erase(others.begin());
        }
    }
    ASSERT_EQ(others.back()->qp_num, number) << "numbers are used again";
    ASSERT_EQ(station->bring_up(others.back()), 0);
    ASSERT_EQ(station->receive(others.back(), 6, 4096, 100), 0);
    ASSERT_EQ(station->send_to(left, local, number, 9, 0, 8, 0), 0);
    const auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 6U);
}

TEST_P(Datagrams, AreReceivedInRtrAndNotBefore) {
    ibv_qp* const late = station->make(IBV_QPT_UD);
    QueuePairStep step = step_to_init(IBV_QPT_UD, {.qkey = station->options.qkey});
    step.mask &= ~IBV_QP_PKEY_INDEX;
    EXPECT_EQ(step.take(late), EINVAL);
    step.mask |= IBV_QP_PKEY_INDEX;
    ASSERT_EQ(step.take(late), 0);
    ASSERT_EQ(station->receive(late, 5, 4096, 100), 0);
    ASSERT_EQ(station->send_to(left, local, late->qp_num, 9, 0, 8, 0), 0);
    EXPECT_TRUE(station->quiet());
    ASSERT_EQ(to_state(late, IBV_QPS_RTR), 0);
    EXPECT_EQ(station->send_to(late, local, left->qp_num, 9, 0, 8, 0), EINVAL);
    ASSERT_EQ(station->send_to(left, local, late->qp_num, 9, 0, 8, 0), 0);
    EXPECT_TRUE(station->complete());
}

TEST_P(Datagrams, KeepComingThroughManyLapsOfASmallQueue) {
    StationOptions options;
    options.shared_memory = GetParam();
    options.receive_wr = 2;
    options.send_wr = 1;
    Station small{options};
    ibv_qp* const from = small.datagram();
    ibv_qp* const to = small.datagram();
    ibv_ah* const ah = small.handle();
    for (std::uint64_t round = 0; round < 2000; ++round) {
        const std::size_t at = 4096 + (round % 2) * 4096;
        ASSERT_EQ(small.receive(to, round, at, 100), 0) << round;
        std::memcpy(small.memory, &round, sizeof round);
        ASSERT_EQ(small.send_to(from, ah, to->qp_num, round, 0, 8), 0) << round;
        int receives = 0;
        for (int i = 0; i < 2; ++i) {
            const auto wc = small.complete();
            ASSERT_TRUE(wc) << round;
            EXPECT_EQ(wc->wr_id, round);
            receives += wc->opcode == IBV_WC_RECV ? 1 : 0;
        }
        EXPECT_EQ(receives, 1);
        EXPECT_EQ(std::memcmp(small.memory + at + 40, &round, sizeof round), 0);
    }
}

TEST_P(Datagrams, AreInlineUpToTheLimit) {
    ASSERT_EQ(station->receive(right, 5, 4096, 1000), 0);
    std::array<char, 128> message{};
    message.fill('x');
    ibv_sge piece{reinterpret_cast<std::uint64_t>(message.data()), 128, 0};
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE;
    wr.wr.ud.ah = local;
    wr.wr.ud.remote_qpn = right->qp_num;
    wr.wr.ud.remote_qkey = station->options.qkey;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(left, &wr, &bad), 0);
    ASSERT_TRUE(station->complete());
    EXPECT_EQ(std::memcmp(message.data(), station->memory + 4096 + 40, 128), 0);
    piece.length = 129;
    EXPECT_EQ(ibv_post_send(left, &wr, &bad), EINVAL);
    EXPECT_EQ(bad, &wr);
    piece.length = 8;
    wr.opcode = IBV_WR_RDMA_WRITE;
    EXPECT_EQ(ibv_post_send(left, &wr, &bad), EINVAL) << "UD knows no WRITE";
}

TEST_P(Datagrams, FromMemoryThatIsNotThereEndSendingUntilItIsTakenUpAgain) {
    ASSERT_EQ(station->receive(left, 1, 4096, 100), 0);
    ibv_sge piece = station->sge(0, 8);
    piece.lkey += 256;
    ibv_send_wr wr{};
    wr.wr_id = 2;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = local;
    wr.wr.ud.remote_qpn = right->qp_num;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(left, &wr, &bad), 0);
    EXPECT_EQ(left->state, IBV_QPS_SQE);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 3, 0, 8, 0), 0);
    std::map<std::uint64_t, ibv_wc_status> seen;
    for (int i = 0; i < 2; ++i) {
        const auto wc = station->complete();
        ASSERT_TRUE(wc);
        seen[wc->wr_id] = wc->status;
    }
    EXPECT_EQ(seen, (std::map<std::uint64_t, ibv_wc_status>{{2, IBV_WC_LOC_PROT_ERR},
                                                            {3, IBV_WC_WR_FLUSH_ERR}}));
    EXPECT_TRUE(station->quiet());
    ASSERT_EQ(station->send_to(right, local, left->qp_num, 5, 0, 8, 0), 0);
    auto wc = station->complete();
    ASSERT_TRUE(wc) << "it still receives";
    EXPECT_EQ(wc->wr_id, 1U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    ASSERT_EQ(to_state(left, IBV_QPS_RTS), 0);
    ASSERT_EQ(station->receive(right, 4, 4096, 100), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 5, 0, 8, 0), 0);
    wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 4U);
}

TEST_P(Datagrams, StopInErrorAndGoOnAfterAReset) {
    ASSERT_EQ(station->receive(left, 1, 4096, 100), 0);
    ASSERT_EQ(to_state(left, IBV_QPS_ERR), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 3, 0, 8, 0), 0);
    ASSERT_EQ(station->send_to(right, local, left->qp_num, 5, 0, 8, 0), 0);
    std::map<std::uint64_t, ibv_wc_status> seen;
    for (int i = 0; i < 2; ++i) {
        const auto wc = station->complete();
        ASSERT_TRUE(wc);
        seen[wc->wr_id] = wc->status;
    }
    EXPECT_EQ(seen, (std::map<std::uint64_t, ibv_wc_status>{{1, IBV_WC_WR_FLUSH_ERR},
                                                            {3, IBV_WC_WR_FLUSH_ERR}}));
    ASSERT_EQ(to_state(left, IBV_QPS_RESET), 0);
    ASSERT_EQ(station->bring_up(left), 0);
    ASSERT_EQ(station->receive(left, 4, 4096, 100), 0);
    ASSERT_EQ(station->send_to(right, local, left->qp_num, 5, 0, 8, 0), 0);
    const auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 4U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
}

TEST_P(Datagrams, IntoMemoryThatIsNotThereEndTheReceiver) {
    ibv_sge piece = station->sge(0, 800);
    piece.lkey += 256;
    ibv_recv_wr wr{};
    wr.wr_id = 2;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(right, &wr, &bad), 0);
    ASSERT_EQ(station->receive(right, 3, 4096, 100), 0);
    ASSERT_EQ(station->send_to(left, local, right->qp_num, 9, 0, 8, 0), 0);
    auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 2U);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR);
    wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 3U);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(left->state, IBV_QPS_RTS) << "the sender is not to blame";
}

TEST_P(Datagrams, PostedTooManyReceivesAreRefused) {
    for (int i = 0; i < 16; ++i) ASSERT_EQ(station->receive(right, 1, 4096, 100), 0);
    EXPECT_EQ(station->receive(right, 1, 4096, 100), ENOMEM);
    ASSERT_EQ(to_state(right, IBV_QPS_ERR), 0);
    for (int i = 0; i < 16; ++i) {
        const auto wc = station->complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_TRUE(station->quiet());
    ASSERT_EQ(station->receive(right, 8, 4096, 100), 0) << "flushed, too";
    const auto wc = station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 8U);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
}

TEST(DatagramEvents, WakeASleeperAndOnlyForWhatItHasNotPolled) {
    StationOptions options;
    options.events = true;
    Station station{options};
    ibv_qp* const left = station.datagram();
    ibv_qp* const right = station.datagram();
    ibv_ah* const ah = station.handle();
    ASSERT_EQ(fcntl(station.channel->fd, F_SETFL, O_NONBLOCK), 0);
    ibv_cq* cq = nullptr;
    void* of = nullptr;
    for (int i = 0; i < 3; ++i) ASSERT_EQ(station.receive(right, 1, 4096, 100), 0);
    ASSERT_EQ(station.send_to(left, ah, right->qp_num, 9, 0, 8, 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(station.cq, 0), 0);
    ASSERT_EQ(soft::get_cq_event(station.channel, &cq, &of), 0) << "it is there already";
    soft::ack_cq_events(cq, 1);
    ASSERT_TRUE(station.complete());
    ASSERT_EQ(ibv_req_notify_cq(station.cq, 0), 0);
    EXPECT_EQ(soft::get_cq_event(station.channel, &cq, &of), -1) << "it has been polled";
    ASSERT_EQ(station.send_to(left, ah, right->qp_num, 9, 0, 8, 0), 0);
    ASSERT_EQ(soft::get_cq_event(station.channel, &cq, &of), 0);
    EXPECT_EQ(cq, station.cq);
    soft::ack_cq_events(cq, 1);
    ASSERT_TRUE(station.complete());
    ASSERT_EQ(ibv_req_notify_cq(station.cq, 1), 0);
    ASSERT_EQ(station.send_to(left, ah, right->qp_num, 9, 0, 8, IBV_SEND_SOLICITED), 0);
    ASSERT_EQ(soft::get_cq_event(station.channel, &cq, &of), 0);
    soft::ack_cq_events(cq, 1);
}

// --- several processes --------------------------------------------------------------------------

/// Sends to the queue pairs named, `count` messages each: its first argument and a number in each.
MILLRACE_CHILD(datagram_sender) {
    StationOptions options;
    options.shared_memory = arguments.at(0) == "shared";
    Station station{options};
    ibv_qp* const qp = station.datagram();
    ibv_ah* const ah = station.handle();
    say(std::to_string(qp->qp_num));
    const auto peer = static_cast<std::uint32_t>(std::stoul(hear().value()));
    const auto count = std::stoul(hear().value());
    for (std::uint64_t number = 0; number < count; ++number) {
        std::uint64_t words[8];
        std::fill(std::begin(words), std::end(words), number);
        std::memcpy(station.memory, words, sizeof words);
        if (station.send_to(qp, ah, peer, 1, 0, sizeof words) != 0) return 2;
        const auto wc = station.complete();
        if (!wc || wc->status != IBV_WC_SUCCESS) return 3;
    }
    say("sent");
    return 0;
}

class DatagramProcesses : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SoftDevice, DatagramProcesses, testing::Bool(),
                         [](const auto& chosen) { return chosen.param ? "shared" : "private"; });

TEST_P(DatagramProcesses, TwoSendToOneThatHasReceivesForAllAndNothingIsLostOrTorn) {
    StationOptions options;
    options.receive_wr = 8192;
    options.bytes = 8192 * 128;
    options.completions = 16384;
    options.shared_memory = GetParam();
    Station station{options};
    ibv_qp* const qp = station.datagram();
    for (std::uint64_t i = 0; i < 4096; ++i) ASSERT_EQ(station.receive(qp, i, i * 128, 128), 0);
    std::vector<ChildProcess> children;
    std::map<std::uint32_t, std::uint64_t> next;
    for (int i = 0; i < 2; ++i) {
        children.push_back(ChildProcess::start("datagram_sender", {i == 0 ? "shared" : "private"}));
        const auto number = children.back().read_line();
        ASSERT_TRUE(number);
        next[static_cast<std::uint32_t>(std::stoul(*number))] = 0;
    }
    for (auto& child : children) {
        ASSERT_TRUE(child.write_line(std::to_string(qp->qp_num)));
        ASSERT_TRUE(child.write_line("2000"));
    }
    for (int i = 0; i < 4000; ++i) {
        const auto wc = station.complete();
        ASSERT_TRUE(wc) << i;
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        ASSERT_EQ(wc->byte_len, 104U);
        ASSERT_TRUE(next.contains(wc->src_qp));
        std::uint64_t words[8];
        std::memcpy(words, station.memory + wc->wr_id * 128 + 40, sizeof words);
        EXPECT_TRUE(std::all_of(std::begin(words), std::end(words),
                                [&](std::uint64_t word) { return word == words[0]; }));
        EXPECT_EQ(words[0], next[wc->src_qp]++) << "in order from each";
    }
    for (auto& child : children) EXPECT_TRUE(child.wait().success());
    EXPECT_TRUE(station.quiet());
}

// A sender that is stopped between claiming a receive and filling it lets others pass after 10 ms.
// When it goes on, its next message must not overtake the one that waited.
TEST_P(DatagramProcesses, ASenderThatIsStoppedNowAndThenStaysInOrder) {
    constexpr std::uint64_t receives = 4096;
    // More than senders get rid of while a busy machine does not let the receiver run.
    constexpr std::uint64_t last_number = 100'000 - 1;
    StationOptions options;
    options.receive_wr = 8192;
    options.bytes = receives * 128;
    options.completions = 16384;
    options.shared_memory = GetParam();
    Station station{options};
    ibv_qp* const qp = station.datagram();
    for (std::uint64_t i = 0; i < receives; ++i) {
        ASSERT_EQ(station.receive(qp, i, i * 128, 128), 0);
    }
    std::vector<ChildProcess> children;
    std::map<std::uint32_t, std::uint64_t> next;
    for (int i = 0; i < 2; ++i) {
        children.push_back(ChildProcess::start("datagram_sender", {"private"}));
        const auto number = children.back().read_line();
        ASSERT_TRUE(number);
        next[static_cast<std::uint32_t>(std::stoul(*number))] = 0;
    }
    for (auto& child : children) {
        ASSERT_TRUE(child.write_line(std::to_string(qp->qp_num)));
        ASSERT_TRUE(child.write_line(std::to_string(last_number + 1)));
    }
    std::atomic<bool> over{false};
    std::thread stopper{[&] {
        while (!over) {
            if (!children.front().stop()) return;  // it is done
            std::this_thread::sleep_for(std::chrono::milliseconds{15});
            children.front().resume();
            std::this_thread::sleep_for(std::chrono::milliseconds{2});
        }
    }};
    std::uint64_t disordered = 0;
    std::uint64_t taken = 0;
    // What finds no receive is lost, the last ones perhaps too: the senders say when they are done.
    std::size_t done = 0;
    const base::Deadline limit = base::Deadline::after(std::chrono::seconds{100});
    while (!limit.expired()) {
        const auto wc = station.complete(std::chrono::milliseconds{100});
        if (!wc) {
            if (done == children.size()) break;
            if (children[done].read_line(std::chrono::milliseconds{0}) == "sent") ++done;
            continue;
        }
        if (wc->status != IBV_WC_SUCCESS || !next.contains(wc->src_qp)) break;
        std::uint64_t number = 0;
        std::memcpy(&number, station.memory + wc->wr_id * 128 + 40, sizeof number);
        if (number < next[wc->src_qp]) ++disordered;
        next[wc->src_qp] = number + 1;
        ++taken;
        EXPECT_EQ(station.receive(qp, wc->wr_id, wc->wr_id * 128, 128), 0);
    }
    over = true;
    stopper.join();
    EXPECT_EQ(done, children.size());
    EXPECT_GT(taken, receives);
    EXPECT_EQ(disordered, 0U);
    for (auto& child : children) EXPECT_TRUE(child.wait().success());
}

TEST_P(DatagramProcesses, ASenderNeverWritesToMemoryThatWasDeregistered) {
    StationOptions options;
    options.receive_wr = 64;
    options.shared_memory = GetParam();
    Station station{options};
    ibv_qp* const qp = station.datagram();
    ChildProcess child = ChildProcess::start("datagram_sender", {"shared"});
    ASSERT_TRUE(child.read_line());
    ASSERT_TRUE(child.write_line(std::to_string(qp->qp_num)));
    ASSERT_TRUE(child.write_line("100000000"));
    for (int round = 0; round < 100; ++round) {
        ibv_mr* const mr = soft::reg_mr(station.pd, station.memory + 65536, 65536,
                                        reinterpret_cast<std::uint64_t>(station.memory + 65536),
                                        IBV_ACCESS_LOCAL_WRITE);
        ASSERT_NE(mr, nullptr);
        for (std::size_t i = 0; i < 64; ++i) {
            ibv_sge piece{reinterpret_cast<std::uint64_t>(station.memory + 65536 + i * 1024), 1024,
                          mr->lkey};
            ibv_recv_wr wr{};
            wr.sg_list = &piece;
            wr.num_sge = 1;
            ibv_recv_wr* bad = nullptr;
            ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
        }
        ASSERT_TRUE(station.complete()) << "it flows";
        ASSERT_EQ(soft::dereg_mr(mr), 0);
        std::memset(station.memory + 65536, round, 65536);
        std::this_thread::sleep_for(std::chrono::microseconds{200});
        EXPECT_TRUE(std::all_of(station.memory + 65536, station.memory + 131072,
                                [&](std::byte value) { return value == std::byte(round); }));
        // What came meanwhile met receives whose memory is not there.
        ASSERT_EQ(to_state(qp, IBV_QPS_RESET), 0);
        while (station.poll_once()) {
        }
        ASSERT_EQ(station.bring_up(qp), 0);
    }
    child.kill_and_wait();
}

}  // namespace
}  // namespace millrace::test
