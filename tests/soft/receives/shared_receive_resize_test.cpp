// Resizing a shared receive queue (ibv_modify_srq with IBV_SRQ_MAX_WR) while receives are posted,
// taken by several queue pairs of several processes, and completed.
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "soft/shared_receive_sender.hpp"
#include "soft/station.hpp"

namespace millrace::test {
namespace {

int resize(Station& station, std::uint32_t entries) {
    ibv_srq_attr attributes{};
    attributes.max_wr = entries;
    return soft::modify_srq(station.srq, &attributes, IBV_SRQ_MAX_WR);
}

std::uint32_t size_of(Station& station) {
    ibv_srq_attr attributes{};
    EXPECT_EQ(soft::query_srq(station.srq, &attributes), 0);
    return attributes.max_wr;
}

/// Posts until the queue is full; how many that were.
std::uint32_t fill(Station& station, std::uint64_t& id) {
    std::uint32_t posted = 0;
    int error = 0;
    while ((error = station.receive(nullptr, id, 0, 64)) == 0) {
        ++id;
        ++posted;
    }
    EXPECT_EQ(error, ENOMEM);
    return posted;
}

/// Two stations in this process; the first has a shared receive queue.
struct SharingPair {
    SharingPair(std::uint32_t receives, std::uint32_t sends)
        : hub{sharing(receives)}, far{sending(sends)} {
        here = hub.make(IBV_QPT_RC);
        there = far.make(IBV_QPT_RC);
        EXPECT_EQ(hub.connect(here, there->qp_num), 0);
        EXPECT_EQ(far.connect(there, here->qp_num), 0);
    }
    static StationOptions sharing(std::uint32_t receives) {
        StationOptions options;
        options.shared_receives = receives;
        return options;
    }
    static StationOptions sending(std::uint32_t sends) {
        StationOptions options;
        options.send_wr = sends;
        return options;
    }
    Station hub;
    Station far;
    ibv_qp* here;
    ibv_qp* there;
};

TEST(SharedReceiveResize, IsOfferedAndTakesAsManyReceivesAsItSays) {
    Station hub{SharingPair::sharing(4)};
    ibv_device_attr device{};
    ASSERT_EQ(soft::query_device(hub.context, &device), 0);
    EXPECT_NE(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE, 0U);
    std::uint64_t id = 0;
    EXPECT_EQ(fill(hub, id), 4U);
    ASSERT_EQ(resize(hub, 100), 0);
    EXPECT_EQ(size_of(hub), 128U);
    EXPECT_EQ(fill(hub, id), 124U);
    ASSERT_EQ(resize(hub, static_cast<std::uint32_t>(device.max_srq_wr)), 0);
    EXPECT_EQ(fill(hub, id), static_cast<std::uint32_t>(device.max_srq_wr) - 128);
}

TEST(SharedReceiveResize, RefusesWhatCannotBeAndChangesNothingThen) {
    Station hub{SharingPair::sharing(8)};
    for (std::uint64_t i = 0; i < 5; ++i) ASSERT_EQ(hub.receive(nullptr, i, 0, 64), 0);
    EXPECT_EQ(resize(hub, 4), EINVAL) << "five are outstanding";
    EXPECT_EQ(resize(hub, 0), EINVAL);
    EXPECT_EQ(resize(hub, 1U << 20), EINVAL);
    EXPECT_EQ(size_of(hub), 8U);
    ibv_srq_attr attributes{};
    attributes.srq_limit = 5;
    ASSERT_EQ(soft::modify_srq(hub.srq, &attributes, IBV_SRQ_LIMIT), 0);
    ASSERT_EQ(resize(hub, 32), 0);
    attributes = {64, 0, 65};
    EXPECT_EQ(soft::modify_srq(hub.srq, &attributes, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
    EXPECT_EQ(size_of(hub), 32U);
    attributes = {16, 0, 3};
    EXPECT_EQ(soft::modify_srq(hub.srq, &attributes, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0);
    ASSERT_EQ(soft::query_srq(hub.srq, &attributes), 0);
    EXPECT_EQ(attributes.max_wr, 16U);
    EXPECT_EQ(attributes.srq_limit, 3U);
}

TEST(SharedReceiveResize, DoesNotGoBelowTheLimit) {
    Station hub{SharingPair::sharing(16)};
    for (std::uint64_t i = 0; i < 2; ++i) ASSERT_EQ(hub.receive(nullptr, i, 0, 64), 0);
    ibv_srq_attr attributes{};
    attributes.srq_limit = 2;
    ASSERT_EQ(soft::modify_srq(hub.srq, &attributes, IBV_SRQ_LIMIT), 0);
    EXPECT_EQ(resize(hub, 1), EINVAL);
    EXPECT_EQ(resize(hub, 2), 0);
}

TEST(SharedReceiveResize, CountsReceivesThatNobodyHasPolledAsOutstanding) {
    SharingPair pair{8, 16};
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(pair.hub.receive(nullptr, i, 0, 64), 0);
    for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.far.send(pair.there, 1, 0, 8), 0);
    EXPECT_EQ(resize(pair.hub, 2), EINVAL);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(pair.hub.complete());
    EXPECT_EQ(resize(pair.hub, 2), 0);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(pair.hub.complete());
    std::uint64_t id = 0;
    EXPECT_EQ(fill(pair.hub, id), 2U);
}

// Any sizes at any moment, against a model: what is posted, in order, and what is taken.
TEST(SharedReceiveResize, KeepsTheOrderOfReceivesThroughAnySizes) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random{seed};
        SharingPair pair{4, 64};
        std::uint32_t size = 4;
        std::uint64_t id = 0;
        std::deque<std::uint64_t> posted;
        std::deque<std::uint64_t> taken;
        for (int step = 0; step < 2000; ++step) {
            switch (random() % 8) {
                case 0: {
                    const std::uint32_t wanted = 1U << random() % 8;
                    const bool fits = wanted >= posted.size() + taken.size();
                    ASSERT_EQ(resize(pair.hub, wanted), fits ? 0 : EINVAL);
                    if (fits) size = wanted;
                    break;
                }
                case 1:
                case 2:
                case 3: {
                    const bool full = posted.size() + taken.size() == size;
                    ASSERT_EQ(pair.hub.receive(nullptr, id, 0, 64), full ? ENOMEM : 0);
                    if (!full) posted.push_back(id++);
                    break;
                }
                case 4:
                case 5:
                    // As many as the queue pair, made with the queue of four, has room for.
                    if (posted.empty() || taken.size() == 4) break;
                    ASSERT_EQ(pair.far.send(pair.there, 1, 0, 8), 0);
                    ASSERT_TRUE(pair.far.complete());
                    taken.push_back(posted.front());
                    posted.pop_front();
                    break;
                default: {
                    if (taken.empty()) break;
                    const auto wc = pair.hub.complete();
                    ASSERT_TRUE(wc);
                    ASSERT_EQ(wc->wr_id, taken.front());
                    taken.pop_front();
                }
            }
        }
    }
}

TEST(SharedReceiveResize, LetsSendersWaitWhereAQueuePairHasNoRoomForCompletions) {
    SharingPair pair{4, 64};
    ASSERT_EQ(resize(pair.hub, 64), 0);
    std::uint64_t id = 0;
    ASSERT_EQ(fill(pair.hub, id), 64U);
    for (std::uint64_t i = 0; i < 40; ++i) {
        std::memset(pair.far.memory + i, static_cast<int>(i + 1), 1);
        ASSERT_EQ(pair.far.send(pair.there, i, i, 1), 0);
    }
    // Nobody at the far side does anything meanwhile.
    for (std::uint64_t i = 0; i < 40; ++i) {
        const auto wc = pair.hub.complete();
        ASSERT_TRUE(wc) << i;
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->wr_id, i);
    }
    for (std::uint64_t i = 0; i < 40; ++i) {
        const auto wc = pair.far.complete();
        ASSERT_TRUE(wc) << i;
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->wr_id, i);
    }
}

TEST(SharedReceiveResize, KeepsDatagramsThatAQueuePairHasNoRoomFor) {
    Station hub{SharingPair::sharing(4)};
    Station far;
    ibv_qp* const first = hub.datagram();
    ibv_qp* const second = hub.datagram();
    ibv_qp* const sender = far.datagram();
    ibv_ah* const ah = far.handle();
    ASSERT_EQ(resize(hub, 64), 0);
    std::uint64_t id = 0;
    for (int round = 0; round < 5; ++round) {
        fill(hub, id);
        for (std::uint32_t i = 0; i < 64; ++i) {
            ibv_qp* const to = i % 8 == 7 ? second : first;
            ASSERT_EQ(far.send_to(sender, ah, to->qp_num, i, 0, 8), 0);
            ASSERT_TRUE(far.complete());
        }
        std::map<std::uint32_t, std::uint64_t> last;
        std::set<std::uint64_t> seen;
        for (int i = 0; i < 64; ++i) {
            const auto wc = hub.complete();
            ASSERT_TRUE(wc) << round << ' ' << i;
            ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
            EXPECT_TRUE(seen.insert(wc->wr_id).second);
            if (last.contains(wc->qp_num)) {
                EXPECT_GT(wc->wr_id, last[wc->qp_num]) << "in order";
            }
            last[wc->qp_num] = wc->wr_id;
        }
    }
}

// Two processes send while the queue's size goes up and down and receives are posted as there is
// room.
TEST(SharedReceiveResizeProcesses, EachMessageArrivesOnceAndWholeThroughResizes) {
    constexpr std::uint64_t each = 10000;
    StationOptions options = SharingPair::sharing(4);
    Station hub{options};
    std::vector<SharedSender> senders;
    senders.reserve(2);
    std::map<std::uint32_t, std::uint64_t> next;
    for (int i = 0; i < 2; ++i) {
        senders.emplace_back(hub, "shared", each);
        next[senders.back().qp->qp_num] = 0;
    }
    std::atomic<bool> done{false};
    std::thread resizing{[&] {
        std::mt19937 random{7};
        while (!done) {
            const int error = resize(hub, 1U << random() % 10);
            EXPECT_TRUE(error == 0 || error == EINVAL) << error;
            std::this_thread::sleep_for(std::chrono::microseconds{100});
        }
    }};
    // A receive's place in memory is its own as long as it is outstanding.
    std::vector<std::uint64_t> places(1024);
    for (std::uint64_t i = 0; i < places.size(); ++i) places[i] = i;
    const auto refill = [&] {
        while (!places.empty()) {
            const std::uint64_t place = places.back();
            const int error = hub.receive(nullptr, place, place * 64, 64);
            if (error != 0) return error;
            places.pop_back();
        }
        return ENOMEM;
    };
    for (std::uint64_t i = 0; i < 2 * each; ++i) {
        EXPECT_EQ(refill(), ENOMEM);
        const auto wc = hub.complete();
        if (!wc || wc->status != IBV_WC_SUCCESS) {
            ADD_FAILURE() << "after " << i << ": "
                          << (wc ? "status " + std::to_string(wc->status) : "no message");
            break;
        }
        std::uint64_t words[8];
        std::memcpy(words, hub.memory + wc->wr_id * 64, sizeof words);
        EXPECT_TRUE(std::all_of(std::begin(words), std::end(words),
                                [&](std::uint64_t word) { return word == words[0]; }));
        EXPECT_EQ(words[0], next[wc->qp_num]++);
        places.push_back(wc->wr_id);
    }
    done = true;
    resizing.join();
    for (auto& sender : senders) {
        EXPECT_EQ(sender.child.read_line(), "sent");
        sender.child.close_input();
        EXPECT_TRUE(sender.child.wait().success());
    }
}

}  // namespace
}  // namespace millrace::test
