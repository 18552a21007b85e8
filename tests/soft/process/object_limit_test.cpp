// Objects that no table bounds: as many as ibv_query_device says can be made, and no more.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "rpc/allocations.hpp"
#include "soft/station.hpp"

namespace millrace::test {
namespace {

/// Makes as many as there may be beside `already`; one more is refused until one is gone.
template <class Object>
void use_up(int most, int already, const std::function<Object*()>& make,
            const std::function<int(Object*)>& end) {
    std::vector<Object*> made;
    for (int i = already; i < most; ++i) {
        Object* const object = make();
        if (object == nullptr) break;
        made.push_back(object);
    }
    EXPECT_EQ(static_cast<int>(made.size()), most - already);
    errno = 0;
    EXPECT_EQ(make(), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    ASSERT_FALSE(made.empty());
    EXPECT_EQ(end(made.back()), 0);
    made.back() = make();
    EXPECT_NE(made.back(), nullptr);
    for (Object* const object : made) {
        if (object != nullptr) {
            EXPECT_EQ(end(object), 0);
        }
    }
}

struct ObjectLimits : testing::Test {
    void SetUp() override { ASSERT_EQ(soft::query_device(station.context, &device), 0); }
    Station station;
    ibv_device_attr device{};
};

TEST_F(ObjectLimits, HoldForAddressHandles) {
    ibv_ah_attr attributes{};
    attributes.port_num = 1;
    attributes.dlid = 1;
    use_up<ibv_ah>(
        device.max_ah, 0, [&] { return soft::create_ah(station.pd, &attributes); },
        soft::destroy_ah);
}

TEST_F(ObjectLimits, HoldForCompletionQueues) {
    use_up<ibv_cq>(
        device.max_cq, 1, [&] { return soft::create_cq(station.context, 1, nullptr, nullptr, 0); },
        soft::destroy_cq);
}

TEST_F(ObjectLimits, HoldForSharedReceiveQueues) {
    ibv_srq_init_attr init{};
    init.attr = {1, 1, 0};
    use_up<ibv_srq>(
        device.max_srq, 0, [&] { return soft::create_srq(station.pd, &init); }, soft::destroy_srq);
}

/// As many windows as there is room for.
std::vector<ibv_mw*> all_windows(ibv_pd* pd) {
    std::vector<ibv_mw*> made;
    while (ibv_mw* const window = ibv_alloc_mw(pd, IBV_MW_TYPE_1)) made.push_back(window);
    EXPECT_EQ(errno, ENOMEM);
    return made;
}

TEST_F(ObjectLimits, LoseNoKeyToWindows) {
    // Windows have keys of one table with regions, but that of the first place, which is the
    // station's region's.
    std::vector<ibv_mw*> made = all_windows(station.pd);
    const std::size_t room = made.size();
    ASSERT_GT(room, 10U);
    for (ibv_mw* const window : made) EXPECT_EQ(ibv_dealloc_mw(window), 0);

    int failed = 0;
    for (int others = 0;; ++others) {
        const rpc::FailingAllocation short_of_memory{static_cast<std::uint64_t>(others)};
        ibv_mw* const window = ibv_alloc_mw(station.pd, IBV_MW_TYPE_1);
        if (window == nullptr) {
            ++failed;
            continue;
        }
        EXPECT_EQ(ibv_dealloc_mw(window), 0);
        break;
    }
    EXPECT_GE(failed, 2);  // the window's own memory, and its place among the others
    made = all_windows(station.pd);
    EXPECT_EQ(made.size(), room);

    // The place of a region is as good for a window, and the other way round.
    EXPECT_EQ(soft::dereg_mr(std::exchange(station.mr, nullptr)), 0);
    ibv_mw* const last = ibv_alloc_mw(station.pd, IBV_MW_TYPE_1);
    EXPECT_NE(last, nullptr);
    EXPECT_EQ(ibv_alloc_mw(station.pd, IBV_MW_TYPE_1), nullptr);
    EXPECT_EQ(ibv_dealloc_mw(last), 0);
    station.mr = soft::reg_mr(station.pd, station.memory, 4096,
                              reinterpret_cast<std::uint64_t>(station.memory), 0);
    EXPECT_NE(station.mr, nullptr);
    for (ibv_mw* const window : made) EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

}  // namespace
}  // namespace millrace::test
