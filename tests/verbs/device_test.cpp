// Control paths, the list of devices, and what a device says of itself.
#include "millrace/verbs/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/base/error.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::verbs {
namespace {

using testing::HasSubstr;

void expect_complete(const ControlPath& path) {
    EXPECT_FALSE(path.name.empty());
    EXPECT_NE(path.get_device_list, nullptr);
    EXPECT_NE(path.free_device_list, nullptr);
    EXPECT_NE(path.get_device_guid, nullptr);
    EXPECT_NE(path.open_device, nullptr);
    EXPECT_NE(path.close_device, nullptr);
    EXPECT_NE(path.query_device, nullptr);
    EXPECT_NE(path.query_port, nullptr);
    EXPECT_NE(path.query_gid, nullptr);
    EXPECT_NE(path.query_gid_entry, nullptr);
    EXPECT_NE(path.alloc_pd, nullptr);
    EXPECT_NE(path.dealloc_pd, nullptr);
    EXPECT_NE(path.reg_mr, nullptr);
    EXPECT_NE(path.dereg_mr, nullptr);
    EXPECT_NE(path.create_comp_channel, nullptr);
    EXPECT_NE(path.destroy_comp_channel, nullptr);
    EXPECT_NE(path.create_cq, nullptr);
    EXPECT_NE(path.destroy_cq, nullptr);
    EXPECT_NE(path.get_cq_event, nullptr);
    EXPECT_NE(path.ack_cq_events, nullptr);
    EXPECT_NE(path.create_qp, nullptr);
    EXPECT_NE(path.modify_qp, nullptr);
    EXPECT_NE(path.query_qp, nullptr);
    EXPECT_NE(path.destroy_qp, nullptr);
    EXPECT_NE(path.query_qp_data_in_order, nullptr);
}

class Environment {
  public:
    Environment(const char* name, const char* value) : name_{name} {
        if (const char* now = std::getenv(name)) before_ = now, was_set_ = true;
        value != nullptr ? setenv(name, value, 1) : unsetenv(name);
    }
    ~Environment() { was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

  private:
    const char* name_;
    std::string before_;
    bool was_set_ = false;
};

TEST(ControlPaths, AreComplete) {
    expect_complete(soft_control_path());
    if (const ControlPath* system = system_control_path()) expect_complete(*system);
}

TEST(Devices, ListTheSoftDeviceOnceAndLast) {
    const std::vector<Device> list = devices();
    const auto count = std::count_if(list.begin(), list.end(),
                                     [](const Device& d) { return d.name() == "soft0"; });
    EXPECT_EQ(count, 1);
    ASSERT_FALSE(list.empty());
    EXPECT_TRUE(list.back().is_soft());
}

TEST(Devices, AreTheSameWhenListedAgain) {
    const std::vector<Device> first = devices(), second = devices();
    ASSERT_EQ(first.size(), second.size());
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].raw(), second[i].raw());
}

TEST(Devices, AreFoundByName) {
    EXPECT_EQ(find_device("soft0").name(), "soft0");
    EXPECT_TRUE(find_device("soft0").is_soft());
}

TEST(Devices, ThatDoNotExistAreRefusedWithAListOfThoseThatDo) {
    try {
        (void)find_device("mlx9_7");
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::not_found);
        EXPECT_THAT(error.what(), HasSubstr("mlx9_7"));
        EXPECT_THAT(error.what(), HasSubstr("soft0"));
    }
}

TEST(Devices, AreChosenByTheEnvironment) {
    const Environment soft{"MILLRACE_DEVICE", "soft0"};
    EXPECT_EQ(find_device().name(), "soft0");
    const Environment wrong{"MILLRACE_DEVICE", "nonsense"};
    try {
        (void)find_device();
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("MILLRACE_DEVICE"));
    }
    EXPECT_EQ(find_device("soft0").name(), "soft0") << "a name given is stronger";
}

TEST(Devices, FallBackToTheSoftDeviceWithoutHardware) {
    const Environment none{"MILLRACE_DEVICE", nullptr};
    const std::vector<Device> list = devices();
    const bool hardware =
        std::any_of(list.begin(), list.end(), [](const Device& d) { return !d.is_soft(); });
    if (hardware) GTEST_SKIP() << "this machine has other devices";
    EXPECT_EQ(find_device().name(), "soft0");
}

TEST(Device, TellsFactsThatMakeSense) {
    const Device device = find_device();
    const DeviceFacts facts = device.facts();
    EXPECT_EQ(facts.name, device.name());
    EXPECT_EQ(facts.provider, device.is_soft() ? "soft" : "system");
    EXPECT_FALSE(facts.description.empty());
    EXPECT_NE(facts.guid, 0U);
    EXPECT_TRUE(facts.port_active);
    EXPECT_GE(facts.port, 1);
    EXPECT_THAT(facts.link_layer, testing::AnyOf("InfiniBand", "Ethernet"));
    EXPECT_GE(facts.active_mtu, 256);
    EXPECT_GT(facts.max_queue_pairs, 0);
    EXPECT_GT(facts.max_work_requests, 0);
    EXPECT_GT(facts.max_sge, 0);
    EXPECT_GT(facts.max_completion_entries, 0);
    EXPECT_GT(facts.max_region_size, 0U);
    if (facts.link_layer == "Ethernet") {
        EXPECT_GE(facts.gid_index, 0);
        EXPECT_FALSE(facts.gid.empty());
    }
}

TEST(Context, CanBeOpenedTwiceAndMoved) {
    Context one = find_device().open();
    Context two = find_device().open();
    Context moved = std::move(one);
    EXPECT_EQ(moved.name(), two.name());
    EXPECT_GT(moved.attributes().max_qp, 0);
    two = std::move(moved);
    EXPECT_EQ(two.port(two.usable_port()).state, IBV_PORT_ACTIVE);
}

TEST(Context, NamesThePortThatDoesNotExist) {
    const Context context = find_device().open();
    try {
        (void)context.port(99);
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("port 99"));
    }
}

}  // namespace
}  // namespace millrace::verbs
