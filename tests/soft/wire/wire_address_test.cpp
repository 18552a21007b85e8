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
    gid = gid_of({loopback_2, 4791});
    gid.raw[0] = 0xfe;
    EXPECT_FALSE(udp_address_of(gid));
}

TEST(WireMtu, IsTheLargestWhosePacketsTheInterfaceCarries) {
    EXPECT_EQ(wire_mtu(65536), IBV_MTU_4096);
    EXPECT_EQ(wire_mtu(4096 + 80), IBV_MTU_4096);
    EXPECT_EQ(wire_mtu(4096 + 79), IBV_MTU_2048);
    EXPECT_EQ(wire_mtu(1500), IBV_MTU_1024);
    EXPECT_EQ(wire_mtu(256 + 80), IBV_MTU_256);
    EXPECT_EQ(wire_mtu(256 + 79), std::nullopt);
}

TEST(WireSetting, IsOffAutomaticOrAnAddressWithAPortOrNone) {
    EXPECT_EQ(parse_wire(""), WireChoice{});
    EXPECT_EQ(parse_wire("off"), WireChoice{});
    EXPECT_EQ(parse_wire("auto").kind, WireChoice::Kind::automatic);
    EXPECT_EQ(parse_wire("127.0.0.2"),
              (WireChoice{WireChoice::Kind::named, {loopback_2, 0}}));
    EXPECT_EQ(parse_wire("127.0.0.2:5000"),
              (WireChoice{WireChoice::Kind::named, {loopback_2, 5000}}));
    EXPECT_EQ(parse_wire("127.0.0.2:5000,always"),
              (WireChoice{WireChoice::Kind::named, {loopback_2, 5000}, true}));
    EXPECT_EQ(parse_wire("auto,always"), (WireChoice{WireChoice::Kind::automatic, {}, true}));
}

TEST(WireSetting, SaysWhatIsWrongWithIt) {
    EXPECT_THAT(cause_of_refusal("yes"), HasSubstr("neither auto nor an IPv4 address"));
    EXPECT_THAT(cause_of_refusal("localhost:5000"), HasSubstr("neither auto nor"));
    EXPECT_THAT(cause_of_refusal("fe80::1"), HasSubstr("IPv4 addresses only"));
    EXPECT_THAT(cause_of_refusal("127.0.0.2:0"), HasSubstr("1 to 65535"));
    EXPECT_THAT(cause_of_refusal("127.0.0.2:65536"), HasSubstr("1 to 65535"));
    EXPECT_THAT(cause_of_refusal("127.0.0.2:"), HasSubstr("1 to 65535"));
    EXPECT_THAT(cause_of_refusal("0.0.0.0"), HasSubstr("no address of one host"));
    EXPECT_THAT(cause_of_refusal("off,always"), HasSubstr("neither auto nor"));
    EXPECT_THAT(cause_of_refusal("224.0.0.1"), HasSubstr("no address of one host"));
}

TEST(WireInterfaces, HaveAllOfTheLoopbacksAddresses) {
    const WireInterface found = find_wire_interface(parse_wire("127.9.8.7"));
    EXPECT_EQ(found.ip, 127U << 24 | 9 << 16 | 8 << 8 | 7);
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
