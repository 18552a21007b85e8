// The decisions of mode faulty: as often as set, the same for the same seed, and within what the
// rules of verbs let a program see.
#include "transport/fault_plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace millrace::test {
namespace {

using soft::DatagramFate;
using soft::FaultPlan;
using soft::FaultSettings;
using soft::ReliableFate;
using soft::RetryLimits;
using soft::UnreliableFate;

[[nodiscard]] FaultSettings nothing() {
    FaultSettings settings;
    settings.loss = settings.not_ready = settings.duplicate = settings.reorder = 0;
    return settings;
}

constexpr int many = 100'000;

TEST(FaultPlan, DoesNothingWhereNothingIsSet) {
    FaultPlan plan{nothing(), 3, 0};
    for (int i = 0; i < 1000; ++i) {
        const ReliableFate reliable = plan.reliable({7, 0, true, true});
        EXPECT_EQ(reliable.lost_requests + reliable.lost_answers + reliable.not_ready, 0U);
        EXPECT_EQ(reliable.exhausted, IBV_WC_SUCCESS);
        EXPECT_FALSE(plan.unreliable(9).lost);
        const DatagramFate datagram = plan.datagram();
        EXPECT_FALSE(datagram.lost);
        EXPECT_EQ(datagram.late_ns, 0);
        EXPECT_EQ(datagram.copy_ns, 0);
    }
}

TEST(FaultPlan, LosesAsMuchAsIsSet) {
    FaultSettings settings = nothing();
    settings.loss = 50'000;
    FaultPlan plan{settings, 3, 0};
    int reliable = 0;
    int unreliable = 0;
    int datagrams = 0;
    for (int i = 0; i < many; ++i) {
        const ReliableFate fate = plan.reliable({});
        reliable += fate.lost_requests + fate.lost_answers != 0 ? 1 : 0;
        unreliable += plan.unreliable(1).lost ? 1 : 0;
        datagrams += plan.datagram().lost ? 1 : 0;
    }
    for (const int lost : {reliable, unreliable, datagrams}) {
        EXPECT_GT(lost, many * 48 / 1000);
        EXPECT_LT(lost, many * 52 / 1000);
    }
}

[[nodiscard]] auto first_fates(std::uint64_t seed, std::uint64_t number) {
    FaultSettings settings;
    settings.loss = settings.duplicate = settings.reorder = 300'000;
    FaultPlan plan{settings, seed, number};
    std::vector<std::tuple<std::uint32_t, bool, std::int64_t, std::int64_t>> fates;
    for (int i = 0; i < 50; ++i) {
        const ReliableFate reliable = plan.reliable({});
        const DatagramFate datagram = plan.datagram();
        fates.emplace_back(reliable.lost_requests * 100 + reliable.lost_answers, datagram.lost,
                           datagram.late_ns, datagram.copy_ns);
    }
    return fates;
}

TEST(FaultPlan, IsTheSameForTheSameSeedAndQueuePair) {
    EXPECT_EQ(first_fates(3, 1), first_fates(3, 1));
    EXPECT_NE(first_fates(3, 1), first_fates(4, 1));
    EXPECT_NE(first_fates(3, 1), first_fates(3, 2));
}

TEST(FaultPlan, AReliableRequestIsTriedAsOftenAsTheQueuePairSays) {
    FaultSettings settings = nothing();
    settings.loss = 700'000;
    FaultPlan plan{settings, 5, 0};
    int exhausted = 0;
    int executed_all_the_same = 0;
    for (int i = 0; i < many; ++i) {
        const ReliableFate fate = plan.reliable({3, 7, true, false});
        const std::uint32_t lost = fate.lost_requests + fate.lost_answers;
        if (fate.exhausted == IBV_WC_SUCCESS) {
            EXPECT_LE(lost, 3U);
            EXPECT_TRUE(fate.executed);
            continue;
        }
        EXPECT_EQ(fate.exhausted, IBV_WC_RETRY_EXC_ERR);
        EXPECT_EQ(lost, 4U);
        EXPECT_EQ(fate.executed, fate.lost_answers != 0);
        ++exhausted;
        executed_all_the_same += fate.executed ? 1 : 0;
    }
    EXPECT_GT(exhausted, many / 5);  // 0.7 to the fourth: 24 %
    EXPECT_LT(exhausted, many * 3 / 10);
    EXPECT_GT(executed_all_the_same, 0);
    EXPECT_LT(executed_all_the_same, exhausted);
}

TEST(FaultPlan, NeverGivesUpWithoutATimeout) {
    FaultSettings settings = nothing();
    settings.loss = 900'000;
    settings.exhaust = 500'000;
    FaultPlan plan{settings, 5, 0};
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(plan.reliable({7, 7, false, false}).exhausted, IBV_WC_SUCCESS);
    }
}

TEST(FaultPlan, AReceiverIsNotReadyOnlyForWhatNeedsAReceive) {
    FaultSettings settings = nothing();
    settings.not_ready = 600'000;
    FaultPlan plan{settings, 5, 0};
    int exhausted = 0;
    for (int i = 0; i < 10'000; ++i) {
        EXPECT_EQ(plan.reliable({7, 1, true, false}).not_ready, 0U);
        EXPECT_EQ(plan.reliable({7, 7, true, true}).exhausted, IBV_WC_SUCCESS) << "for ever";
        const ReliableFate fate = plan.reliable({7, 1, true, true});
        EXPECT_LE(fate.not_ready, 2U);
        if (fate.exhausted == IBV_WC_SUCCESS) continue;
        EXPECT_EQ(fate.exhausted, IBV_WC_RNR_RETRY_EXC_ERR);
        EXPECT_FALSE(fate.executed);
        ++exhausted;
    }
    EXPECT_GT(exhausted, 3000);
    EXPECT_LT(exhausted, 4200);
}

TEST(FaultPlan, ALostMessageNeverLandsAsAWhole) {
    FaultSettings settings = nothing();
    settings.loss = 1'000'000;
    FaultPlan plan{settings, 5, 0};
    std::vector<int> seen(5, 0);
    for (int i = 0; i < 1000; ++i) {
        const UnreliableFate fate = plan.unreliable(5);
        ASSERT_TRUE(fate.lost);
        ASSERT_LT(fate.packets, 5U);
        ++seen[fate.packets];
    }
    for (const int count : seen) EXPECT_GT(count, 100);
    EXPECT_EQ(plan.unreliable(1).packets, 0U);
    EXPECT_EQ(plan.unreliable(0).packets, 0U);
}

}  // namespace
}  // namespace millrace::test
