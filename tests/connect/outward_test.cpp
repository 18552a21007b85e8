// Addresses as GIDs, and which of them lead to other hosts.
#include "outward.hpp"

#include <arpa/inet.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/connect/link.hpp"
#include "millrace/verbs/device.hpp"
#include "peers.hpp"
#include "support/child_process.hpp"

namespace millrace::connect {
namespace {

using millrace::test::ChildProcess;
using testing::HasSubstr;
using testing::Not;

ibv_gid gid_written(const char* text) {
    ibv_gid gid{};
    EXPECT_EQ(inet_pton(AF_INET6, text, gid.raw), 1) << text;
    return gid;
}

TEST(Outward, GidsAreWrittenAsTheAddressesThatTheyAre) {
    EXPECT_EQ(text_of(gid_written("::ffff:10.77.0.1")), "10.77.0.1");
    EXPECT_EQ(text_of(gid_written("fd00::7")), "fd00::7");
    EXPECT_EQ(text_of(gid_written("fd4d:5200:1b58::7f00:2")), "127.0.0.2")
        << "the wire's, of another port";
}

/// In a process of its own, as the wire stays on: what it is for `purpose` and `address`.
std::string wire_for(const std::string& purpose, const std::string& address,
                     const std::vector<std::string>& environment = {}) {
    ChildProcess child = ChildProcess::start("prepare_wire", {purpose, address}, environment);
    const std::string said = child.read_line().value_or("nothing");
    EXPECT_TRUE(child.wait().success());
    return said;
}

TEST(Outward, TheWireStaysOffForPeersOfThisMachine) {
    for (const char* address : {"127.0.0.1:7000", "localhost:7000", ":7000", "unix:/path"}) {
        EXPECT_EQ(wire_for("connect", address), "off:") << address;
        EXPECT_EQ(wire_for("listen", address), "off:") << address;
    }
    EXPECT_EQ(wire_for("listen", "0.0.0.0:7000"), "off:");
    EXPECT_EQ(wire_for("listen", "[::]:7000"), "off:");
}

// TEST-NET-2 of RFC 5737: nobody has it.
TEST(Outward, AnAddressOfAnotherHostTurnsItOn) {
    EXPECT_EQ(wire_for("connect", "198.51.100.1:7000"),
              "auto: for 198.51.100.1:7000, which is no address of this host");
}

TEST(Outward, WhatIsSaidOfTheWireStays) {
    EXPECT_EQ(wire_for("connect", "198.51.100.1:7000", {"MILLRACE_WIRE=127.0.0.2"}),
              "127.0.0.2: by MILLRACE_WIRE=127.0.0.2");
}

TEST(Outward, WhoSaysThatItIsOffHasNone) {
    EXPECT_EQ(wire_for("connect", "198.51.100.1:7000", {"MILLRACE_WIRE=off"}),
              "off:MILLRACE_WIRE=off");
}

TEST(Outward, AnOpenDeviceIsToldAsTheReasonThatThereIsNone) {
    EXPECT_THAT(wire_for("open", "198.51.100.1:7000"),
                HasSubstr("the device was open before 198.51.100.1:7000 was asked for"));
}

MILLRACE_CHILD(prepare_wire) {
    const Address address = Address::parse(arguments.at(1));
    std::shared_ptr<Endpoint> open;
    if (arguments.at(0) == "open") open = Endpoint::open("soft0");
    if (arguments.at(0) == "listen") {
        prepare_to_listen(address);
    } else {
        prepare_to_connect(address);
    }
    const std::string wire = verbs::soft_wire();
    millrace::test::say(wire.empty() ? "off:" + why_no_wire() : wire + ": " + why_wire_is_on());
    return 0;
}

}  // namespace
}  // namespace millrace::connect
