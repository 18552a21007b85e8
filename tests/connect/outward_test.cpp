// Addresses of other hosts, and what is told of the wire to them. That it is turned on for a peer
// from elsewhere needs two hosts.
#include "outward.hpp"

#include <arpa/inet.h>

#include <gtest/gtest.h>

#include "millrace/verbs/device.hpp"
#include "peers.hpp"

namespace millrace::connect {
namespace {

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

TEST(Outward, PeersOfThisHostTurnNothingOn) {
    for (const Address& where :
         {Address::parse("127.0.0.1:0"), Address::parse(":0"), test::fresh_address()}) {
        const test::Pair pair{{}, where};
        EXPECT_FALSE(turn_on_for_peer(pair.a->socket(), where)) << where.to_string();
    }
    EXPECT_EQ(verbs::soft_wire(), "");
    EXPECT_EQ(why_wire_is_on(), "");
}

}  // namespace
}  // namespace millrace::connect
