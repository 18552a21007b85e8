// Pinning threads to the cores that the process may use.
#include "millrace/base/placement.hpp"

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.hpp"

namespace millrace::base {
namespace {

using testing::HasSubstr;

TEST(Placement, ListsTheCoresOnceEachInAscendingOrder) {
    const auto cores = available_cores();
    ASSERT_FALSE(cores.empty());
    EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
    EXPECT_EQ(std::adjacent_find(cores.begin(), cores.end()), cores.end());
}

TEST(Placement, PinsAThreadToEachCoreInTurn) {
    for (const int core : available_cores()) {
        std::thread{[core] {
            pin_this_thread(core);
            EXPECT_EQ(current_core(), core);
            EXPECT_THAT(describe_placement(), HasSubstr("pinned to core " + std::to_string(core)));
        }}.join();
    }
}

TEST(Placement, StillListsAllCoresAfterAThreadIsPinned) {
    const auto before = available_cores();
    std::thread{[&] {
        pin_this_thread(before.front());
        EXPECT_EQ(available_cores(), before);
    }}.join();
}

TEST(Placement, LeavesOtherThreadsWhereTheyAre) {
    const auto before = describe_placement();
    std::thread{[] { pin_this_thread(available_cores().back()); }}.join();
    EXPECT_EQ(describe_placement(), before);
}

TEST(Placement, RefusesCoresThatDoNotExist) {
    for (const int core : {-1, 8191, 1'000'000}) {
        try {
            pin_this_thread(core);
            FAIL() << "pinned to core " << core;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
            EXPECT_THAT(error.object(), HasSubstr(std::to_string(core)));
            EXPECT_FALSE(error.remedy().empty());
        }
    }
}

TEST(Placement, SaysHowManyCoresThereAre) {
    EXPECT_THAT(describe_placement(),
                HasSubstr(std::to_string(available_cores().size()) + " core"));
}

}  // namespace
}  // namespace millrace::base
