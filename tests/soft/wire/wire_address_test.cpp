// Addresses of the wire: settings, GIDs, interfaces, MTU.
#include "wire/wire_address.hpp"

#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.hpp"

namespace millrace::soft {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t loopback_2 = 127U << 24 | 2;

std::string bytes_of(const ibv_gid& gid) {
    std::string text;
    for (const std::uint8_t byte : gid.raw) {
        constexpr const char* digits = "0123456789abcdef";
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

std::string cause_of_refusal(std::string_view text) {
    try {
        static_cast<void>(parse_wire(text));
    } catch (const base::Error& error) {
        return error.cause();
    }
    return "none";
}

TEST(WireAddress, IsItsGidAtThePublicPortAndAPrivateOneElsewhere) {
    EXPECT_EQ(bytes_of(gid_of({loopback_2, 4791})), "00000000000000000000ffff7f000002");
    EXPECT_EQ(bytes_of(gid_of({loopback_2, 0x1234})), "fd4d520012340000000000007f000002");
    for (const std::uint16_t port : {std::uint16_t{4791}, std::uint16_t{1}, std::uint16_t{65535}}) {
        EXPECT_EQ(udp_address_of(gid_of({loopback_2, port})), (UdpAddress{loopback_2, port}));
    }
}

TEST(WireAddress, IsNoneOfGidsOfOtherKinds) {
    ibv_gid gid{};
    EXPECT_FALSE(udp_address_of(gid));
    gid = gid_of({loopback_2, 5000});
    gid.raw[8] = 1;  // where zeros are
    EXPECT_FALSE(udp_address_of(gid));
    gid = gid_of({loopback_2, 5000});
    gid.raw[4] = gid.raw[5] = 0;  // no port
    EXPECT_FALSE(udp_address_of(gid));
    for (const char* const of_no_host : {"::", "fe80::1", "ff0e::1", "::ffff:224.0.0.1"}) {
        EXPECT_FALSE(udp_address_of(IpAddress::parse(of_no_host)->gid())) << of_no_host;
    }
}

TEST(WireAddress, OfIpv6IsItsGid) {
    const IpAddress ip = *IpAddress::parse("fd00::12:3");
    EXPECT_EQ(bytes_of(gid_of({ip, 4791})), "fd000000000000000000000000120003");
    EXPECT_EQ(udp_address_of(gid_of({ip, 4791})), (UdpAddress{ip, 4791}));
    EXPECT_EQ(describe(UdpAddress{ip, 4791}), "[fd00::12:3]:4791");
    EXPECT_EQ(udp_address_of(socket_address({ip, 77})), (UdpAddress{ip, 77}));
    EXPECT_EQ(IpAddress::parse("::ffff:127.0.0.2"), IpAddress{loopback_2});
}

TEST(WireMtu, IsTheLargestWhosePacketsTheInterfaceCarries) {
    EXPECT_EQ(wire_mtu(65536, loopback_2), IBV_MTU_4096);
    EXPECT_EQ(wire_mtu(4096 + 80, loopback_2), IBV_MTU_4096);
    EXPECT_EQ(wire_mtu(4096 + 79, loopback_2), IBV_MTU_2048);
    EXPECT_EQ(wire_mtu(1500, loopback_2), IBV_MTU_1024);
    EXPECT_EQ(wire_mtu(256 + 80, loopback_2), IBV_MTU_256);
    EXPECT_EQ(wire_mtu(256 + 79, loopback_2), std::nullopt);
    EXPECT_EQ(wire_mtu(1024 + 100, *IpAddress::parse("fd00::1")), IBV_MTU_1024);
    EXPECT_EQ(wire_mtu(1024 + 99, *IpAddress::parse("fd00::1")), IBV_MTU_512);
}

TEST(WireSetting, IsOffAutomaticOrAnAddressWithAPortOrNone) {
    EXPECT_EQ(parse_wire(""), WireChoice{});
    EXPECT_EQ(parse_wire("off"), WireChoice{});
    EXPECT_EQ(parse_wire("auto").kind, WireChoice::Kind::automatic);
    EXPECT_EQ(parse_wire("127.0.0.2"), (WireChoice{WireChoice::Kind::named, {loopback_2, 0}}));
    EXPECT_EQ(parse_wire("127.0.0.2:5000"),
              (WireChoice{WireChoice::Kind::named, {loopback_2, 5000}}));
    EXPECT_EQ(parse_wire("127.0.0.2:5000,always"),
              (WireChoice{WireChoice::Kind::named, {loopback_2, 5000}, true}));
    EXPECT_EQ(parse_wire("auto,always"), (WireChoice{WireChoice::Kind::automatic, {}, true}));
    for (const char* const words : {"auto,always,checked", "auto,checked,always"}) {
        EXPECT_EQ(parse_wire(words), (WireChoice{WireChoice::Kind::automatic, {}, true, true}));
    }
    const IpAddress ip = *IpAddress::parse("fd00::1");
    for (const char* const words : {"fd00::1", "[fd00::1]"}) {
        EXPECT_EQ(parse_wire(words), (WireChoice{WireChoice::Kind::named, {ip, 0}})) << words;
    }
    EXPECT_EQ(parse_wire("[fd00::1]:4791,always"),
              (WireChoice{WireChoice::Kind::named, {ip, 4791}, true}));
}

TEST(WireSetting, SaysWhatIsWrongWithIt) {
    EXPECT_THAT(cause_of_refusal("yes"), HasSubstr("neither auto nor an IP address"));
    EXPECT_THAT(cause_of_refusal("localhost:5000"), HasSubstr("neither auto nor"));
    EXPECT_THAT(cause_of_refusal("fe80::1"), HasSubstr("one of a single link"));
    EXPECT_THAT(cause_of_refusal("fd4d:5200:1234::7f00:2"), HasSubstr("IPv4 address and a port"));
    EXPECT_THAT(cause_of_refusal("[fd00::1]:5000"), HasSubstr("UDP port 4791 alone"));
    for (const char* const wrong :
         {"[fd00::1", "[fd00::1]x", "[]", "fd00::1:4791:x", "[127.0.0.2"}) {
        EXPECT_THAT(cause_of_refusal(wrong), HasSubstr("neither auto nor")) << wrong;
    }
    EXPECT_THAT(cause_of_refusal("127.0.0.2:0"), HasSubstr("1 to 65535"));
    EXPECT_THAT(cause_of_refusal("127.0.0.2:65536"), HasSubstr("1 to 65535"));
    EXPECT_THAT(cause_of_refusal("127.0.0.2:"), HasSubstr("1 to 65535"));
    EXPECT_THAT(cause_of_refusal("0.0.0.0"), HasSubstr("no address of one host"));
    EXPECT_THAT(cause_of_refusal("off,always"), HasSubstr("neither auto nor"));
    EXPECT_THAT(cause_of_refusal("auto,always,always"), HasSubstr("neither auto nor"));
    EXPECT_THAT(cause_of_refusal("224.0.0.1"), HasSubstr("no address of one host"));
}

TEST(WireInterfaces, HaveAllOfTheLoopbacksAddresses) {
    const WireInterface found = find_wire_interface(parse_wire("127.9.8.7"));
    EXPECT_EQ(found.ip, IpAddress{127U << 24 | 9 << 16 | 8 << 8 | 7});
    EXPECT_TRUE(found.is_loopback);
    EXPECT_GE(found.mtu, 4096U);
    EXPECT_NE(found.index, 0U);
}

TEST(WireInterfaces, OfAnotherHostAreRefusedByName) {
    try {
        static_cast<void>(find_wire_interface(parse_wire("192.0.2.1")));  // of no host: RFC 5737
        FAIL() << "it is there";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::not_found);
        EXPECT_EQ(error.object(), "192.0.2.1");
    }
}

}  // namespace
}  // namespace millrace::soft
