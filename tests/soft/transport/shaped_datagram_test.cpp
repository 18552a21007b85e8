// Mode shaped, datagrams: they are in flight between the two ends; nothing but a missing receive
// loses one.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "soft/mode_scope.hpp"
#include "soft/station.hpp"
#include "soft/words.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

using soft::cable_now;

constexpr std::size_t header = 40;

struct Ends {
    explicit Ends(std::uint32_t slots = 16) {
        StationOptions options;
        options.send_wr = slots;
        options.receive_wr = 256;
        station.emplace(options);
        left = station->datagram();
        right = station->datagram();
        to = station->handle();
    }
    int send(std::uint64_t id, std::uint64_t word, unsigned flags = IBV_SEND_SIGNALED) {
        std::memcpy(station->memory, &word, sizeof word);
        return station->send_to(left, to, right->qp_num, id, 0, sizeof word, flags);
    }
    [[nodiscard]] std::uint64_t received(std::size_t offset) const {
        std::uint64_t word = 0;
        std::memcpy(&word, station->memory + offset + header, sizeof word);
        return word;
    }
    std::optional<Station> station;
    ibv_qp* left = nullptr;
    ibv_qp* right = nullptr;
    ibv_ah* to = nullptr;
};

[[nodiscard]] std::string with_latency(std::int64_t milliseconds) {
    return "shaped:unlimited,latency=" + std::to_string(milliseconds) + "ms";
}
/// A test that does something while a datagram is on its way tries again with more time where this
/// thread came too late for that.
constexpr std::int64_t longest_latency = 8000;

TEST(ShapedDatagrams, CompleteWhenTheyHaveLeftAndArriveOneLatencyLater) {
    for (std::int64_t latency = 50; latency < longest_latency; latency *= 4) {
        const ModeScope mode{with_latency(latency)};
        Ends ends;
        const std::int64_t start = cable_now();
        ASSERT_EQ(ends.send(1, 11), 0);
        const auto left = ends.station->complete();
        ASSERT_TRUE(left);
        EXPECT_EQ(left->wr_id, 1U);
        EXPECT_EQ(left->opcode, IBV_WC_SEND);
        // Its buffer is the program's again, and a receive in time is enough.
        std::memset(ends.station->memory, 0x55, 64);
        ASSERT_EQ(ends.station->receive(ends.right, 2, 4096, 100), 0);
        if (cable_now() - start >= latency * ms) continue;
        const auto arrived = ends.station->complete();
        ASSERT_TRUE(arrived);
        EXPECT_GE(cable_now() - start, latency * ms);
        EXPECT_EQ(arrived->wr_id, 2U);
        EXPECT_EQ(arrived->byte_len, header + 8);
        EXPECT_EQ(arrived->src_qp, ends.left->qp_num);
        EXPECT_EQ(ends.received(4096), 11U);
        return;
    }
    FAIL() << "the receive was never in time";
}

TEST(ShapedDatagrams, TakeTheirTimeOnThePort) {
    // 100 x 4096 bytes at 100 Mb/s: 32 ms.
    const ModeScope mode{"shaped:100m,latency=1us"};
    Ends ends{128};
    const std::int64_t start = cable_now();
    for (std::uint64_t i = 0; i < 100; ++i) {
        ASSERT_EQ(ends.station->send_to(ends.left, ends.to, ends.right->qp_num, i, 0, 4096), 0);
    }
    for (std::uint64_t i = 0; i < 100; ++i) {
        const auto wc = ends.station->complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
    }
    EXPECT_GE(cable_now() - start, 32 * ms);
}

TEST(ShapedDatagrams, AreDroppedWhenThereIsNoReceiveOnArrival) {
    const ModeScope mode{"shaped:unlimited,latency=1ms"};
    Ends ends;
    ASSERT_EQ(ends.send(1, 1), 0);
    ASSERT_TRUE(ends.station->complete());
    const std::int64_t arrived = cable_now() + 5 * ms;
    // Polls let it arrive, and this thread may be without a processor while it is due.
    for (int polls_behind = 0; polls_behind < 1000;) {
        EXPECT_FALSE(ends.station->poll_once());
        if (cable_now() >= arrived) ++polls_behind;
    }
    ASSERT_EQ(ends.station->receive(ends.right, 2, 4096, 100), 0);
    ASSERT_EQ(ends.send(3, 3, 0), 0);
    const auto wc = ends.station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 2U);
    EXPECT_EQ(ends.received(4096), 3U);
}

TEST(ShapedDatagrams, KeepTheirOrderThroughManyLapsWithJitterAndNoneIsLost) {
    const ModeScope mode{"shaped:unlimited,latency=100us,jitter=300us"};
    Ends ends{4};
    constexpr std::uint64_t count = 2000;
    constexpr std::uint64_t receives = 200;
    for (std::uint64_t i = 0; i < receives; ++i) {
        ASSERT_EQ(ends.station->receive(ends.right, i, 4096 + 64 * i, 64), 0);
    }
    std::uint64_t sent = 0;
    std::uint64_t completed = 0;
    std::uint64_t arrived = 0;
    const std::int64_t end = cable_now() + 100'000 * ms;
    while (arrived < count && cable_now() < end) {
        // Fewer on the way than there are receives.
        if (sent < count && sent - completed < 4 && sent - arrived < receives) {
            ASSERT_EQ(ends.send(1000, sent), 0);
            ++sent;
        }
        const auto wc = ends.station->poll_once();
        if (!wc) continue;
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        if (wc->wr_id == 1000) {
            ++completed;
            continue;
        }
        ASSERT_EQ(ends.received(4096 + 64 * wc->wr_id), arrived);
        ++arrived;
        ASSERT_EQ(ends.station->receive(ends.right, wc->wr_id, 4096 + 64 * wc->wr_id, 64), 0);
    }
    EXPECT_EQ(arrived, count);
}

TEST(ShapedDatagrams, ALocalErrorComesInItsTurnAndWhatFollowsIsFlushed) {
    // 4096 bytes take 3.3 ms.
    const ModeScope mode{"shaped:10m,latency=1ms"};
    Ends ends;
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(ends.station->receive(ends.right, 10 + i, 8192 + 8192 * i, 8192), 0);
    }
    ASSERT_EQ(ends.station->send_to(ends.left, ends.to, ends.right->qp_num, 1, 0, 4096), 0);
    ibv_sge foreign = ends.station->sge(0, 8);
    foreign.lkey ^= 0x5a5a00;
    ibv_send_wr wr{};
    wr.wr_id = 2;
    wr.sg_list = &foreign;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = ends.to;
    wr.wr.ud.remote_qpn = ends.right->qp_num;
    wr.wr.ud.remote_qkey = ends.station->options.qkey;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(ends.left, &wr, &bad), 0);
    ASSERT_EQ(ends.send(3, 3), 0);
    std::map<std::uint64_t, ibv_wc_status> seen;
    std::vector<std::uint64_t> order;
    for (int i = 0; i < 4; ++i) {
        const auto wc = ends.station->complete();
        ASSERT_TRUE(wc) << i;
        seen[wc->wr_id] = wc->status;
        if (wc->wr_id < 10) order.push_back(wc->wr_id);
    }
    EXPECT_EQ(order, (std::vector<std::uint64_t>{1, 2, 3}));
    EXPECT_EQ(seen[1], IBV_WC_SUCCESS);
    EXPECT_EQ(seen[2], IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(seen[3], IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(seen[10], IBV_WC_SUCCESS) << "what came before the error has arrived";
    EXPECT_EQ(ends.left->state, IBV_QPS_SQE);
    ASSERT_EQ(to_state(ends.left, IBV_QPS_RTS), 0);
    ASSERT_EQ(ends.send(4, 4, 0), 0);
    const auto wc = ends.station->complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 11U);
    EXPECT_EQ(ends.received(16384), 4U);
}

TEST(ShapedDatagrams, ThatHaveNotLeftWhenTheirQueuePairGoesToErrorAreFlushed) {
    const ModeScope mode{"shaped:1m,latency=1us,header=4096"};
    constexpr std::uint64_t count = 128;  // 66 ms each, 8 s together
    Ends ends{count};
    for (std::uint64_t i = 1; i <= count; ++i) {
        ASSERT_EQ(ends.station->receive(ends.right, 1000 + i, 8192, 8192), 0);
        ASSERT_EQ(ends.station->send_to(ends.left, ends.to, ends.right->qp_num, i, 0, 4096), 0);
    }
    std::map<std::uint64_t, ibv_wc_status> seen;
    std::uint64_t left = 0;
    const auto take_one = [&] {
        const auto wc = ends.station->complete();
        ASSERT_TRUE(wc) << seen.size() << " of " << count + left;
        EXPECT_TRUE(seen.emplace(wc->wr_id, wc->status).second) << wc->wr_id;
        if (wc->wr_id <= count && wc->status == IBV_WC_SUCCESS) ++left;
    };
    while (left == 0 && !HasFatalFailure()) take_one();
    ASSERT_EQ(to_state(ends.left, IBV_QPS_ERR), 0);
    // More may have left by then: each of those arrives, and no other.
    while (seen.size() < count + left && !HasFatalFailure()) take_one();
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_TRUE(ends.station->quiet());
    EXPECT_LT(left, count);
    for (std::uint64_t i = 1; i <= count; ++i) {
        EXPECT_EQ(seen.at(i), i <= left ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR) << i;
        EXPECT_EQ(seen.contains(1000 + i), i <= left) << i;
    }
}

TEST(ShapedDatagrams, ThatHaveLeftArriveThoughTheirQueuePairIsDestroyed) {
    for (std::int64_t latency = 20; latency < longest_latency; latency *= 4) {
        const ModeScope mode{with_latency(latency)};
        Ends ends;
        ASSERT_EQ(ends.station->receive(ends.right, 2, 4096, 100), 0);
        const std::int64_t start = cable_now();
        ASSERT_EQ(ends.send(1, 77), 0);
        const auto left = ends.station->complete();
        ASSERT_TRUE(left);
        // Of two queue pairs, either may be polled first where both completions are there.
        if (left->wr_id == 2) continue;
        ASSERT_EQ(left->wr_id, 1U);
        const bool was_on_its_way = cable_now() - start < latency * ms;
        ends.station->destroy(ends.left);
        const auto arrived = ends.station->complete();
        ASSERT_TRUE(arrived);
        EXPECT_EQ(arrived->wr_id, 2U);
        EXPECT_EQ(ends.received(4096), 77U);
        if (was_on_its_way) return;
    }
    FAIL() << "it was never on its way when its queue pair was destroyed";
}

}  // namespace
}  // namespace millrace::test
