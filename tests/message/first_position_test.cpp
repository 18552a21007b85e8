// Where in its ring the first frame of a connection lies.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "message/lane_inside.hpp"
#include "message/serving.hpp"
#include "millrace/ring/detail/first_position.hpp"

namespace millrace::message {
namespace {

std::uint64_t first_position_of(Client& client) {
    return RingLaneInside::core_of(client).first_position;
}

TEST(FirstPositions, OfTheClientsOfAProcessLieInDifferentLinesOfAPage) {
    Running running;
    std::vector<Client> clients;
    std::set<std::uint64_t> places;
    for (int i = 0; i != 8; ++i) {
        clients.push_back(running.connect());
        const std::uint64_t place = first_position_of(clients.back());
        EXPECT_LT(place, 4096U);
        EXPECT_EQ(place % (2 * frame_alignment), 0U);
        places.insert(place);
    }
    EXPECT_EQ(places.size(), clients.size());
}

TEST(FirstPositions, OfFramesThatAreSentInSlotsBeginOne) {
    Running running;
    ClientOptions options;
    options.requests = Transfer::send;
    Client client = Client::connect(running.server.address(), options, patience());
    EXPECT_EQ(first_position_of(client), 0U);
}

TEST(FirstPositions, AreThoseThatATestChooses) {
    const ring::detail::FirstPosition begins{0};
    Running running;
    Client client = running.connect();
    EXPECT_EQ(first_position_of(client), 0U);
}

}  // namespace
}  // namespace millrace::message
