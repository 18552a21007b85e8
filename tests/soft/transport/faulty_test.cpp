// Mode faulty: reliable connections hide what goes wrong until they give up; unreliable ones do
// not; and all of it comes again with the same seed.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"
#include "soft/words.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

constexpr std::size_t page_size = 4096;

/// A lost request is found missing after half a millisecond.
[[nodiscard]] EndpointOptions impatient() {
    EndpointOptions options;
    options.timeout = 7;
    options.bytes = 1 << 20;
    return options;
}

// --- reliable connections -----------------------------------------------------------------------

TEST(FaultyReliable, WritesAllArriveInOrderThoughManyAreSentInVain) {
    const ModeScope mode{"faulty:seed=3,loss=20%"};
    Pair pair{impatient(), impatient()};
    constexpr std::uint64_t count = 300;
    std::uint64_t posted = 0;
    std::uint64_t last_seen = 0;
    for (std::uint64_t done = 0; done < count;) {
        if (posted < count && posted - done < 8) {
            ++posted;
            put_word(pair.left.memory + 8 * posted, posted);
            ASSERT_EQ(
                pair.left.write(posted, 8 * posted, 8, pair.right.address(), pair.right.mr->rkey),
                0);
            continue;
        }
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        ASSERT_EQ(wc->wr_id, ++done);
        const std::uint64_t seen = word_at(pair.right.memory);
        EXPECT_GE(seen, done) << "complete, and not there";
        EXPECT_GE(seen, last_seen) << "an older one came later";
        last_seen = seen;
    }
    EXPECT_EQ(word_at(pair.right.memory), count);
}

TEST(FaultyReliable, SendsArriveOnceEachAndInOrder) {
    const ModeScope mode{"faulty:seed=5,loss=20%,rnr=10%,duplicate=50%,reorder=50%"};
    Pair pair{impatient(), impatient()};
    for (std::uint64_t i = 1; i <= 200; ++i) {
        ASSERT_EQ(pair.right.receive(i, 0, 8), 0);
        put_word(pair.left.memory, i);
        ASSERT_EQ(pair.left.send(i, 0, 8), 0);
        const auto received = pair.right.complete();
        ASSERT_TRUE(received);
        ASSERT_EQ(received->status, IBV_WC_SUCCESS);
        EXPECT_EQ(received->wr_id, i);
        EXPECT_EQ(word_at(pair.right.memory), i);
        const auto sent = pair.left.complete();
        ASSERT_TRUE(sent);
        ASSERT_EQ(sent->status, IBV_WC_SUCCESS);
    }
    ASSERT_EQ(pair.right.receive(7, 0, 8), 0);
    EXPECT_FALSE(pair.right.complete(std::chrono::milliseconds{20})) << "one came twice";
}

TEST(FaultyReliable, AnAnswerMayComeBeforeTheCompletionOfWhatItAnswers) {
    bool seen = false;
    for (int seed = 1; seed <= 20 && !seen; ++seed) {
        const ModeScope mode{"faulty:seed=" + std::to_string(seed) + ",loss=30%"};
        Pair pair{impatient(), impatient()};
        for (std::uint64_t i = 0; i < 4 && !seen; ++i) {
            put_word(pair.right.memory, 0);
            put_word(pair.left.memory, 1);
            ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
            while (word_at(pair.right.memory) == 0 && !pair.left.poll_once()) {
            }
            if (word_at(pair.right.memory) == 0) continue;
            const std::int64_t patience = soft::cable_now() + 200'000;
            bool complete = false;
            while (!complete && soft::cable_now() < patience) {
                complete = pair.left.poll_once().has_value();
            }
            seen = !complete;
        }
    }
    EXPECT_TRUE(seen);
}

TEST(FaultyReliable, GivesUpAfterTheRetriesThatTheQueuePairHas) {
    const ModeScope mode{"faulty:loss=100%"};
    EndpointOptions options = impatient();
    options.retry_cnt = 2;
    options.timeout = 12;  // 16.8 ms
    Pair pair{options, options};
    const std::int64_t start = soft::cable_now();
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_EQ(pair.left.write(2, 0, 8, pair.right.address(), pair.right.mr->rkey, 0), 0);
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 1U);
    EXPECT_EQ(wc->status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(soft::cable_now() - start, 3 * (std::int64_t{4096} << 12));
    EXPECT_EQ(pair.left.qp->state, IBV_QPS_ERR);
    wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 2U);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
}

TEST(FaultyReliable, WhatWasGivenUpMayHaveBeenExecutedOrNot) {
    std::set<bool> landed;
    std::set<ibv_wc_status> statuses;
    for (int seed = 1; seed <= 40; ++seed) {
        const ModeScope mode{"faulty:loss=0%,exhaust=100%,seed=" + std::to_string(seed)};
        EndpointOptions options = impatient();
        options.retry_cnt = 1;
        options.rnr_retry = 1;
        Pair pair{options, options};
        const bool sends = seed % 2 == 0;
        ASSERT_EQ(pair.right.receive(2, 64, 8), 0);
        put_word(pair.left.memory, 9);
        ASSERT_EQ(sends ? pair.left.send(1, 0, 8)
                        : pair.left.write(1, 0, 8, pair.right.address(64), pair.right.mr->rkey),
                  0);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        ASSERT_NE(wc->status, IBV_WC_SUCCESS);
        statuses.insert(wc->status);
        if (wc->status == IBV_WC_RETRY_EXC_ERR) landed.insert(word_at(pair.right.memory + 64) == 9);
    }
    EXPECT_EQ(statuses, (std::set<ibv_wc_status>{IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR}));
    EXPECT_EQ(landed, (std::set<bool>{false, true}));
}

TEST(FaultyReliable, AQueuePairThatGaveUpWorksAgainAfterAReset) {
    const ModeScope mode{"faulty:loss=0%,exhaust=20%,seed=4"};
    EndpointOptions options = impatient();
    options.retry_cnt = 0;
    Pair pair{options, options};
    int failures = 0;
    for (std::uint64_t i = 1; i <= 40; ++i) {
        put_word(pair.left.memory, i);
        ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        ASSERT_EQ(wc->wr_id, i);
        if (wc->status == IBV_WC_SUCCESS) {
            EXPECT_EQ(word_at(pair.right.memory), i);
            continue;
        }
        ++failures;
        ASSERT_EQ(pair.left.to_state(IBV_QPS_RESET), 0);
        ASSERT_EQ(pair.right.to_state(IBV_QPS_RESET), 0);
        ASSERT_EQ(pair.left.connect(pair.right.qp->qp_num), 0);
        ASSERT_EQ(pair.right.connect(pair.left.qp->qp_num), 0);
    }
    EXPECT_GT(failures, 0);
    EXPECT_LT(failures, 40);
}

// --- unreliable connections ---------------------------------------------------------------------

[[nodiscard]] EndpointOptions impatient_unreliable() {
    EndpointOptions options = impatient();
    options.type = IBV_QPT_UC;
    return options;
}

TEST(FaultyUnreliable, AWriteIsThereOrNotOrHasLandedInPartAndTheSenderNeverKnows) {
    const ModeScope mode{"faulty:seed=2,loss=50%"};
    Pair pair{impatient_unreliable(), impatient_unreliable()};
    constexpr std::size_t length = 4 * page_size;
    std::memset(pair.left.memory, 0x77, length);
    std::set<std::size_t> kinds;
    for (std::uint64_t i = 0; i < 40; ++i) {
        std::memset(pair.right.memory, 0, length);
        ASSERT_EQ(pair.left.write(i, 0, length, pair.right.address(), pair.right.mr->rkey), 0);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        std::size_t landed = 0;
        while (landed < length && pair.right.memory[landed] == std::byte{0x77}) ++landed;
        for (std::size_t at = landed; at < length; ++at) {
            ASSERT_EQ(pair.right.memory[at], std::byte{0}) << "behind a gap";
        }
        EXPECT_EQ(landed % page_size, 0U) << "packets come as a whole";
        kinds.insert(landed / page_size);
    }
    EXPECT_EQ(kinds, (std::set<std::size_t>{0, 1, 2, 3, 4}));
}

TEST(FaultyUnreliable, ALostMessageLeavesItsReceiveToTheNext) {
    const ModeScope mode{"faulty:seed=2,loss=30%"};
    Pair pair{impatient_unreliable(), impatient_unreliable()};
    std::vector<std::uint64_t> received;
    std::uint64_t next_receive = 0;
    ASSERT_EQ(pair.right.receive(next_receive, 0, 8), 0);
    for (std::uint64_t i = 1; i <= 100; ++i) {
        put_word(pair.left.memory, i);
        ASSERT_EQ(i % 2 == 0 ? pair.left.send(i, 0, 8)
                             : pair.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, i, {pair.left.sge(0, 8)},
                                              IBV_SEND_SIGNALED, pair.right.address(),
                                              pair.right.mr->rkey, 1),
                  0);
        const auto sent = pair.left.complete();
        ASSERT_TRUE(sent);
        ASSERT_EQ(sent->status, IBV_WC_SUCCESS);
        // Not inline: it is complete when it has landed, or not.
        const auto wc = pair.right.poll_once();
        if (!wc) continue;
        EXPECT_EQ(wc->wr_id, next_receive);
        received.push_back(word_at(pair.right.memory));
        ASSERT_EQ(pair.right.receive(++next_receive, 0, 8), 0);
    }
    EXPECT_GT(received.size(), 50U);
    EXPECT_LT(received.size(), 90U);
    EXPECT_TRUE(std::is_sorted(received.begin(), received.end()));
}

TEST(FaultyUnreliable, TheSendersOwnMistakeIsFoundThoughTheMessageIsLost) {
    const ModeScope mode{"faulty:loss=100%"};
    Pair pair{impatient_unreliable(), impatient_unreliable()};
    ibv_sge foreign = pair.left.sge(0, 8);
    foreign.lkey ^= 0x5a5a00;
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 1, {foreign}, 0, pair.right.address(),
                             pair.right.mr->rkey),
              0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_LOC_PROT_ERR);
}

// --- death --------------------------------------------------------------------------------------

TEST(FaultyDeath, ComesWithTheOperationThatWasNamedAndThePeerIsTold) {
    const ModeScope mode{"faulty:loss=0%,die=3"};
    RemotePair pair{impatient()};
    ASSERT_EQ(pair.left.receive(9, 0, 8), 0);
    ASSERT_EQ(pair.left.receive(10, 0, 8), 0);
    ASSERT_EQ(pair.left.receive(11, 0, 8), 0);
    EXPECT_EQ(pair.right.ask("send 1 0 8"), "0");
    EXPECT_EQ(pair.right.ask("complete"), "1 0 8");
    EXPECT_EQ(pair.right.ask("send 2 0 8"), "0");
    EXPECT_EQ(pair.right.ask("complete"), "2 0 8");
    EXPECT_EQ(pair.right.ask("send 3 0 8"), "gone");
    EXPECT_TRUE(pair.right.child.wait().killed_by(SIGKILL));
    for (std::uint64_t id = 9; id <= 11; ++id) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc) << id;
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, id < 11 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
    }
}

// --- settings -----------------------------------------------------------------------------------

TEST(FaultyMode, FaultsAreEachEndsOwnAndTheLinkIsBoth) {
    std::optional<ModeScope> mode{"faulty:seed=1,loss=5%"};
    Endpoint here;
    mode.emplace("faulty:seed=2,die=7,loss=0%");
    Endpoint there;
    EXPECT_EQ(here.connect(there.qp->qp_num), 0);
    EXPECT_EQ(there.connect(here.qp->qp_num), 0);
    for (const char* other : {"shaped", "faulty:latency=2us", "faulty:40g"}) {
        mode.emplace(other);
        Endpoint stranger;
        EXPECT_EQ(stranger.to_init(), 0);
        EXPECT_EQ(stranger.to_rtr(here.qp->qp_num), EINVAL) << other;
    }
}

}  // namespace
}  // namespace millrace::test
