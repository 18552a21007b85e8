// The link model alone, with times given: when does what leaves one port arrive.
#include "transport/cable.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace millrace::soft {
namespace {

constexpr std::int64_t us = 1'000;

CableSettings cable_of(std::string_view mode) { return parse_mode(mode).cable; }

void expect_flight(const Flight& flight, std::int64_t departure, std::int64_t arrival,
                   std::int64_t completion) {
    EXPECT_EQ(flight.departure, departure);
    EXPECT_EQ(flight.arrival, arrival);
    EXPECT_EQ(flight.completion, completion);
}

TEST(CablePort, ARequestTakesItsBytesAndOneLatencyThereAndOneBack) {
    CablePort port{cable_of("shaped:10g,latency=5us")};
    // 1250 bytes at 10 Gb/s are 1 us.
    expect_flight(port.send(100 * us, 1250, FlightKind::acknowledged, 0), 101 * us, 106 * us,
                  111 * us);
}

TEST(CablePort, RequestsLeaveOneAfterTheOther) {
    CablePort port{cable_of("shaped:10g,latency=5us")};
    expect_flight(port.send(0, 1250, FlightKind::acknowledged, 0), 1 * us, 6 * us, 11 * us);
    expect_flight(port.send(0, 2500, FlightKind::acknowledged, 0), 3 * us, 8 * us, 13 * us);
    // Idle between 3 and 10 us: what is posted then does not catch up.
    expect_flight(port.send(10 * us, 1250, FlightKind::acknowledged, 0), 11 * us, 16 * us, 21 * us);
}

TEST(CablePort, PartsOfANanosecondAddUp) {
    CablePort port{cable_of("shaped:100g,latency=0")};
    Flight last;
    for (int i = 0; i < 1000; ++i) last = port.send(0, 1, FlightKind::acknowledged, 0);
    EXPECT_NEAR(static_cast<double>(last.departure), 80.0, 1.0);  // 0.08 ns each
}

TEST(CablePort, AnUnlimitedRateTakesLatencyOnly) {
    CablePort port{cable_of("shaped:unlimited,latency=5us")};
    expect_flight(port.send(0, 1 << 30, FlightKind::acknowledged, 0), 0, 5 * us, 10 * us);
}

TEST(CablePort, WhatIsUnreliableCompletesWhenItHasLeft) {
    CablePort port{cable_of("shaped:10g,latency=5us")};
    expect_flight(port.send(0, 1250, FlightKind::unreliable, 0), 1 * us, 6 * us, 1 * us);
}

TEST(CablePort, AReadsBytesTakeTheWayBack) {
    CablePort port{cable_of("shaped:10g,latency=5us")};
    expect_flight(port.send(0, 1250, FlightKind::fetching, 0), 0, 5 * us, 11 * us);
    // Its answer waits for the one before it; a WRITE does not.
    expect_flight(port.send(0, 1250, FlightKind::fetching, 0), 0, 5 * us, 12 * us);
    expect_flight(port.send(0, 1250, FlightKind::acknowledged, 0), 1 * us, 6 * us, 11 * us);
}

TEST(CablePort, EveryPacketHasAHeader) {
    CablePort port{cable_of("shaped:10g,latency=0,mtu=1024,header=113")};
    // 2048 + 2 x 113 + an empty request's 113 bytes.
    EXPECT_EQ(port.send(0, 2048, FlightKind::acknowledged, 0).departure, 1819);
    EXPECT_EQ(port.send(0, 0, FlightKind::acknowledged, 0).departure, 1909);
}

TEST(CablePort, APacketWaitsForTheAcknowledgementOfTheOneThatMakesRoom) {
    CablePort port{cable_of("shaped:10g,latency=5us,inflight=2,mtu=1024")};
    EXPECT_EQ(port.send(0, 1000, FlightKind::acknowledged, 0).departure, 800);
    EXPECT_EQ(port.send(0, 1000, FlightKind::acknowledged, 0).departure, 1600);
    EXPECT_EQ(port.send(0, 1000, FlightKind::acknowledged, 0).departure, 10'800 + 800);
    EXPECT_EQ(port.send(0, 1000, FlightKind::acknowledged, 0).departure, 11'600 + 800);
}

TEST(CablePort, ARequestLargerThanTheWindowGoesInTurns) {
    CablePort port{cable_of("shaped:unlimited,latency=5us,inflight=2,mtu=1024")};
    // Six packets: two every 10 us, the last two leave at 20 us.
    expect_flight(port.send(0, 6 * 1024, FlightKind::acknowledged, 0), 20 * us, 25 * us, 30 * us);
}

TEST(CablePort, AnExtraDelaysTheRequestAndItsAcknowledgementButNotThePort) {
    CablePort port{cable_of("shaped:10g,latency=5us")};
    expect_flight(port.send(0, 1250, FlightKind::acknowledged, 3 * us), 1 * us, 9 * us, 14 * us);
    expect_flight(port.send(0, 1250, FlightKind::acknowledged, 0), 2 * us, 7 * us, 12 * us);
}

}  // namespace
}  // namespace millrace::soft
