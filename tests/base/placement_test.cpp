// Pinning threads to the cores that the process may use.
#include "millrace/base/placement.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

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

TEST(Placement, MovesAThreadToAnotherCoreAndLeavesItAllOfThem) {
    if (available_cores().size() < 2) GTEST_SKIP() << "one core";
    std::thread{[] {
        bind_this_thread(available_cores());
        const std::string before = describe_placement();
        EXPECT_TRUE(leave_this_core());
        EXPECT_EQ(describe_placement(), before);
    }}.join();
}

TEST(Placement, DoesNotMoveAThreadThatIsPinned) {
    std::thread{[] {
        const int core = available_cores().front();
        pin_this_thread(core);
        EXPECT_FALSE(leave_this_core());
        EXPECT_EQ(current_core(), core);
    }}.join();
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

TEST(Placement, ReadsListsOfCoresAsTheKernelWritesThem) {
    using Cores = std::vector<int>;
    EXPECT_EQ(parse_core_list("0-3,8\n"), (Cores{0, 1, 2, 3, 8}));
    EXPECT_EQ(parse_core_list("5"), Cores{5});
    EXPECT_EQ(parse_core_list("0,2,4-5\n"), (Cores{0, 2, 4, 5}));
    for (const char* const none : {"", "\n", "x", "1-", "3-1", "1;2", "-1", "0-100000"}) {
        EXPECT_TRUE(parse_core_list(none).empty()) << none;
    }
}

TEST(Placement, TellsTheCoresOfANodeThatMayBeUsed) {
    const auto cores = available_cores();
    const auto nodes =
        std::filesystem::path{testing::TempDir()} / ("nodes-" + std::to_string(getpid()));
    const auto write = [&](const std::string& node, const std::string& list) {
        std::filesystem::create_directories(nodes / node);
        std::ofstream{nodes / node / "cpulist"} << list << '\n';
    };
    write("node0", std::to_string(cores.front()));
    write("node1", "0-8191");
    write("node2", "");
    EXPECT_EQ(cores_of_node(0, nodes), std::vector<int>{cores.front()});
    EXPECT_EQ(cores_of_node(1, nodes), cores);
    EXPECT_TRUE(cores_of_node(2, nodes).empty()) << "memory alone";
    EXPECT_TRUE(cores_of_node(3, nodes).empty());
    EXPECT_TRUE(cores_of_node(-1, nodes).empty());
    std::filesystem::remove_all(nodes);
    EXPECT_EQ(cores_of_node(0, nodes), cores) << "no nodes are known";
    EXPECT_TRUE(cores_of_node(1, nodes).empty());
}

TEST(Placement, BindsAThreadToSeveralCores) {
    std::thread{[] {
        const auto cores = available_cores();
        bind_this_thread(cores);
        EXPECT_THAT(cores, testing::Contains(current_core()));
        pin_this_thread(cores.back());
        EXPECT_EQ(current_core(), cores.back());
        EXPECT_THROW(bind_this_thread(std::vector<int>{cores.front(), 1'000'000}), Error);
        EXPECT_EQ(current_core(), cores.back());
    }}.join();
}

TEST(Placement, SaysHowManyCoresThereAre) {
    EXPECT_THAT(describe_placement(),
                HasSubstr(std::to_string(available_cores().size()) + " core"));
}

}  // namespace
}  // namespace millrace::base
