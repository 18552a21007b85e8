// Objects that no table bounds: as many as ibv_query_device says can be made, and no more.
#include <cerrno>
#include <functional>
#include <vector>

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

}  // namespace
}  // namespace millrace::test
