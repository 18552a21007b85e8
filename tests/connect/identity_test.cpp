// What two processes are told whose soft devices cannot reach each other: in what they differ, and
// what helps.
#include "identity.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::connect {
namespace {

using testing::HasSubstr;

struct Fabric {
    std::string fabric = "default";
    std::string user = "0";
    std::string host = "vm";
    std::string boot = "01234567-89ab";
    std::string network = "4026531840";
    std::string processes = "4026531836";
    std::string mode = "fast";
    std::string wire{};  ///< the address that its wire has alone

    [[nodiscard]] std::string text() const {
        return "fabric '" + fabric + "' of user " + user + " on " + host + " (boot " + boot +
               ", network namespace " + network + ", process namespace " + processes + "), mode " +
               mode + (wire.empty() ? "" : ", wire at " + wire);
    }
};

TEST(Identity, OfThisProcessIsOfTheFormThatIsCompared) {
    const std::string own = soft_fabric();
    const auto at = [&](const char* words) { return own.find(words); };
    EXPECT_EQ(at("fabric '"), 0U);
    EXPECT_LT(at("' of user "), at(" on "));
    EXPECT_LT(at(" on "), at(" (boot "));
    EXPECT_LT(at(" (boot "), at(", network namespace "));
    EXPECT_LT(at(", network namespace "), at(", process namespace "));
    EXPECT_LT(at(", process namespace "), at("), mode "));
    EXPECT_NE(at("), mode "), std::string::npos);
}

TEST(Identity, NamesWhatPartsTwoSoftDevicesAndTheRemedy) {
    const struct {
        std::string Fabric::*part;
        std::string value;
        const char* what;
        const char* remedy;
    } cases[] = {
        {&Fabric::fabric, "other", "fabric", "MILLRACE_FABRIC"},
        {&Fabric::user, "1000", "user", "one user"},
        {&Fabric::host, "container", "host name", "--uts=host"},
        {&Fabric::boot, "76543210-89ab", "machine", "RDMA network"},
        {&Fabric::network, "4026532000", "network namespace", "--network=host"},
        {&Fabric::processes, "4026532001", "pid namespace", "--pid=host"},
        {&Fabric::mode, "strict", "mode", "MILLRACE_SOFT_MODE"},
    };
    for (const auto& one : cases) {
        const Fabric own;
        Fabric others;
        others.*one.part = one.value;
        const std::string mine = own.text();
        const std::string theirs = others.text();
        const auto partings = what_parts(mine, theirs);
        ASSERT_EQ(partings.size(), 1U) << one.what;
        EXPECT_THAT(std::string{partings[0].what}, HasSubstr(one.what));
        EXPECT_THAT(std::string{partings[0].own}, HasSubstr(own.*one.part));
        EXPECT_THAT(std::string{partings[0].others}, HasSubstr(one.value));
        EXPECT_THAT(std::string{partings[0].remedy}, HasSubstr(one.remedy));
    }
}

TEST(Identity, PartsTwoAddressesOfOneMachineAndOneFromNone) {
    const std::string two = Fabric{.wire = "127.0.0.2"}.text();
    const std::string three = Fabric{.wire = "127.0.0.3"}.text();
    const auto hosts = what_parts(two, three);
    ASSERT_EQ(hosts.size(), 1U);
    EXPECT_EQ(hosts[0].what, "address on the wire");
    EXPECT_EQ(hosts[0].own, "127.0.0.2");
    EXPECT_EQ(hosts[0].others, "127.0.0.3");
    const std::string none = Fabric{}.text();
    const auto one = what_parts(two, none);
    ASSERT_EQ(one.size(), 1U);
    EXPECT_EQ(one[0].others, "none of its own");
    const std::string strict = Fabric{.mode = "strict", .wire = "127.0.0.2"}.text();
    EXPECT_EQ(what_parts(two, strict).size(), 1U) << "the address is no part of the mode";
}

TEST(Identity, KnowsProcessesOfOneMachineByItsBoot) {
    const std::string own = Fabric{}.text();
    const std::string container =
        Fabric{.user = "7", .host = "pod", .network = "4026532000"}.text();
    EXPECT_TRUE(is_one_machine(own, container));
    EXPECT_FALSE(is_one_machine(own, Fabric{.boot = "fedcba98-7654"}.text()));
    EXPECT_FALSE(is_one_machine("", "")) << "it says nothing of its machine";
}

TEST(Identity, NamesAllThatPartsTwoContainersAndOfTwoMachinesThatTheyAreTwo) {
    const std::string own = Fabric{}.text();
    const std::string container =
        Fabric{.host = "pod", .network = "4026532000", .processes = "4026532001"}.text();
    EXPECT_EQ(what_parts(own, container).size(), 3U);
    const std::string machine = Fabric{.user = "1", .boot = "fedcba98-7654"}.text();
    const auto partings = what_parts(own, machine);
    ASSERT_EQ(partings.size(), 1U);
    EXPECT_THAT(std::string{partings[0].what}, HasSubstr("machine"));
}

TEST(Identity, OfAnotherFormDiffersInNothingThatIsKnown) {
    const std::string own = Fabric{}.text();
    EXPECT_TRUE(what_parts(own, "a later build's words").empty());
    EXPECT_TRUE(what_parts(own, "").empty());
}

}  // namespace
}  // namespace millrace::connect
