// Addresses as people write them.
#include "millrace/connect/address.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "millrace/base/error.hpp"

namespace millrace::connect {
namespace {

using testing::HasSubstr;

std::string refusal(std::string_view text) {
    try {
        const Address address = Address::parse(text);
        ADD_FAILURE() << "'" << text << "' was taken for " << address.to_string();
        return {};
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_FALSE(error.remedy().empty());
        return error.what();
    }
}

TEST(Address, TakesHostAndPort) {
    const Address address = Address::parse("node-1.example:7000");
    EXPECT_EQ(address.kind(), Address::Kind::tcp);
    EXPECT_EQ(address.host(), "node-1.example");
    EXPECT_EQ(address.port(), 7000);
}

TEST(Address, TakesIpv6InBrackets) {
    const Address address = Address::parse("[fe80::1%eth0]:65535");
    EXPECT_EQ(address.host(), "fe80::1%eth0");
    EXPECT_EQ(address.port(), 65535);
}

TEST(Address, TakesAPortAlone) {
    EXPECT_EQ(Address::parse(":0").port(), 0);
    EXPECT_TRUE(Address::parse(":7000").host().empty());
}

TEST(Address, TakesUnixPathsAndAbstractNames) {
    EXPECT_EQ(Address::parse("unix:/run/a b:1").path(), "/run/a b:1");
    EXPECT_EQ(Address::parse("unix:@name").path(), "@name");
    EXPECT_EQ(Address::parse("unix:@name").kind(), Address::Kind::unix_socket);
}

TEST(Address, IsReadBackFromItsText) {
    for (const char* text :
         {"host:1", "[::1]:7000", ":7000", "unix:/a/b", "unix:@x", "127.0.0.1:0"}) {
        EXPECT_EQ(Address::parse(text).to_string(), text);
        EXPECT_EQ(Address::parse(Address::parse(text).to_string()), Address::parse(text));
    }
}

TEST(Address, SaysWhatIsWrongWithIt) {
    EXPECT_THAT(refusal(""), HasSubstr("no port"));
    EXPECT_THAT(refusal("host"), HasSubstr("no port"));
    EXPECT_THAT(refusal("host:"), HasSubstr("not a port number"));
    EXPECT_THAT(refusal("host:65536"), HasSubstr("65536"));
    EXPECT_THAT(refusal("host:-1"), HasSubstr("not a port number"));
    EXPECT_THAT(refusal("host:7000x"), HasSubstr("7000x"));
    EXPECT_THAT(refusal("host: 7000"), HasSubstr("not a port number"));
    EXPECT_THAT(refusal("::1:7000"), HasSubstr("brackets"));
    EXPECT_THAT(refusal("[::1:7000"), HasSubstr("']'"));
    EXPECT_THAT(refusal("[::1]7000"), HasSubstr("':'"));
    EXPECT_THAT(refusal("/tmp/socket"), HasSubstr("unix:"));
    EXPECT_THAT(refusal("unix:"), HasSubstr("no path"));
    EXPECT_THAT(refusal("unix:@"), HasSubstr("no path"));
    EXPECT_THAT(refusal("unix:/" + std::string(200, 'a')), HasSubstr("201 bytes"));
    EXPECT_THAT(refusal(std::string_view{"unix:/a\0b", 9}), HasSubstr("zero byte"));
}

}  // namespace
}  // namespace millrace::connect
