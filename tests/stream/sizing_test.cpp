// How large rings and numbers of advertisements are where the program does not say.
#include "sizing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "pair.hpp"
#include "support/setting_scope.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

constexpr std::uint64_t gigabit = 1'000'000'000;

std::uint64_t rate_of(std::uint8_t width, std::uint8_t speed) {
    ibv_port_attr port{};
    port.active_width = width;
    port.active_speed = speed;
    return bits_per_second(port);
}

TEST(StreamSizing, APortsRateIsThatOfItsLanesTogether) {
    EXPECT_EQ(rate_of(1, 1), 2'500'000'000U);  // one lane, SDR
    EXPECT_EQ(rate_of(2, 32), 100 * gigabit);  // four, EDR
    EXPECT_EQ(rate_of(2, 128), 400 * gigabit);
    EXPECT_EQ(rate_of(4, 8), 80 * gigabit);
    EXPECT_EQ(rate_of(8, 4), 120 * gigabit);
    EXPECT_EQ(rate_of(16, 64), 100 * gigabit);
    EXPECT_EQ(rate_of(0, 16), 14 * gigabit);
    EXPECT_EQ(rate_of(2, 0), 25 * gigabit) << "not known";
}

TEST(StreamSizing, ARingHoldsBandwidthTimesDelayWithinItsBounds) {
    EXPECT_EQ(chosen_ring({10 * gigabit, 2us}), 256U << 10) << "42,500 bytes are less";
    EXPECT_EQ(chosen_ring({100 * gigabit, 0us}), 512U << 10) << "400,000 bytes";
    EXPECT_EQ(chosen_ring({100 * gigabit, 3us}), 512U << 10);
    EXPECT_EQ(chosen_ring({100 * gigabit, 20us}), 1U << 20) << "650,000 bytes";
    EXPECT_EQ(chosen_ring({10 * gigabit, 48ms}), 64U << 20) << "60,040,000 bytes";
    EXPECT_EQ(chosen_ring({400 * gigabit, 10s}), 64U << 20);
    EXPECT_EQ(chosen_ring({0, 0us}), 256U << 10);
    EXPECT_EQ(chosen_ring({~std::uint64_t{0}, 4'000s}), 64U << 20);
}

// Who holds thousands of idle ends gives each a small ring: what goes with it is smaller still.
TEST(StreamSizing, AnEndWithASmallRingTakesLittleBesides) {
    for (const std::size_t ring : {std::size_t{64}, std::size_t{4096}}) {
        SocketOptions small = in_mode(Mode::dynamic, ring);
        SocketOptions bounded = small;
        bounded.admission.budget.registered_bytes = ring + 1024 + 256;
        Pair pair{bounded, small};
        constexpr std::size_t longest = 30'000;
        const Bytes words = pattern(longest, 3);
        Buffer into{longest};
        for (int both_ways = 0; both_ways < 2; ++both_ways) {
            ASSERT_EQ(pair.near->receive(into.slice(0, longest), 1, ReceiveFlags::wait_all),
                      base::Status::ok);
            std::thread writer{[&] {
                // A byte alone, and more messages than there are slots.
                for (std::size_t at = 0; at < 300; ++at) {
                    EXPECT_EQ(pair.far->write_all(std::span{words}.subspan(at, 1), patience()),
                              base::Status::ok);
                }
                EXPECT_EQ(pair.far->write_all(std::span{words}.subspan(300), patience()),
                          base::Status::ok);
            }};
            EXPECT_EQ(next(*pair.near, 1).bytes, longest);
            writer.join();
            EXPECT_TRUE(std::ranges::equal(into.bytes().first(longest), words));
            std::swap(pair.near, pair.far);
        }
    }
}

TEST(StreamSizing, AdvertisementsTakeThePlaceOfTheRing) {
    EXPECT_EQ(chosen_adverts({100 * gigabit, 3us}, 32 << 10), 64U);
    EXPECT_EQ(chosen_adverts({10 * gigabit, 48ms}, 32 << 10), 2048U);
    EXPECT_EQ(chosen_adverts({10 * gigabit, 48ms}, 1), 4096U);
    EXPECT_EQ(chosen_adverts({10 * gigabit, 48ms}, 0), 4096U);
}

TEST(StreamSizing, WhoConnectsMeasuresAndWhoListensBelieves) {
    Pair pair;
    for (const Socket* const end : {&*pair.near, &*pair.far}) {
        EXPECT_THAT(end->explain(), HasSubstr("to and fro, measured"));
    }
    // What one end has for a ring is what the other one sends into.
    const std::string near = pair.near->explain();
    const auto ring_in = [&](const std::string& behind) {
        const std::size_t at = near.find(behind);
        return std::stoull(near.substr(near.rfind(' ', at - 2) + 1));
    };
    const std::uint64_t ring = ring_in(" bytes of ring");
    EXPECT_GE(ring, least_chosen_ring);
    EXPECT_LE(ring, largest_chosen_ring);
    EXPECT_THAT(pair.far->explain(), HasSubstr(std::to_string(ring) + " to send into"));
}

TEST(StreamSizing, WhatTheProgramSaysIsNotChosen) {
    SocketOptions options;
    options.ring_bytes = 128 << 10;
    options.adverts = 3;
    const Pair pair{options};
    const std::string text = pair.near->explain();
    EXPECT_THAT(text, HasSubstr("131072 bytes of ring"));
    EXPECT_THAT(text, HasSubstr("up to 3 of them"));
    EXPECT_THAT(text, Not(HasSubstr("sizes not asked for")));
}

/// Microseconds to and fro that `end` says to have measured.
std::uint64_t measured_by(const Socket& end) {
    const std::string text = end.explain();
    const std::size_t at = text.find(" to and fro, measured");
    if (at == std::string::npos) return 0;
    return std::stoull(text.substr(text.rfind(' ', at - 1) + 1));
}

/// In one thread that sleeps until a descriptor is readable.
void meet_in_a_loop(std::optional<Socket>& near, std::optional<Socket>& far) {
    const connect::Address address = unused_address();
    Listener listener = Listener::listen(address);
    Connector connector{address};
    const Deadline deadline = patience();
    while (!near || !far) {
        ASSERT_FALSE(deadline.expired());
        if (!far) far = connector.try_connect();
        if (!near) near = listener.try_accept();
        if (far) continue;
        pollfd entries[] = {{.fd = connector.descriptor(), .events = POLLIN, .revents = 0},
                            {.fd = listener.descriptor(), .events = POLLIN, .revents = 0}};
        ASSERT_GT(::poll(entries, near ? 1 : 2, 40'000), 0);
    }
}

TEST(StreamSizing, WhoDoesNotWaitMeasuresAsWell) {
    std::optional<Socket> near;
    std::optional<Socket> far;
    ASSERT_NO_FATAL_FAILURE(meet_in_a_loop(near, far));
    EXPECT_GE(measured_by(*far), 1U);
    EXPECT_EQ(measured_by(*near), measured_by(*far)) << "who listens believes it";
}

TEST(StreamLongWay, IsAwaitedByTheDescriptorAndMeasured) {
    const test::SettingScope distance{"MILLRACE_SOFT_MODE", "shaped:10g,latency=5ms"};
    std::optional<Socket> near;
    std::optional<Socket> far;
    ASSERT_NO_FATAL_FAILURE(meet_in_a_loop(near, far));
    EXPECT_GE(measured_by(*far), 10'000U);
    EXPECT_EQ(measured_by(*near), measured_by(*far));
    for (const Socket* const end : {&*near, &*far}) {
        EXPECT_THAT(end->explain(),
                    HasSubstr(std::to_string(largest_chosen_ring) + " bytes of ring"));
    }
}

TEST(StreamLongWay, APeerThatGoesWhileItIsMeasuredIsNoticed) {
    const test::SettingScope distance{"MILLRACE_SOFT_MODE", "shaped:10g,latency=1s"};
    const connect::Address address = unused_address();
    Connector connector{address};
    {
        connect::Listener listener =
            connect::Listener::listen(address, {.service = "byte stream", .service_version = 4});
        std::optional<connect::Link> link;
        for (const Deadline deadline = patience(); !link;) {
            ASSERT_FALSE(deadline.expired());
            ASSERT_FALSE(connector.try_connect().has_value());
            link = listener.try_accept();
        }
        ASSERT_FALSE(connector.try_connect().has_value());
    }
    const Deadline deadline = patience();
    try {
        while (!connector.try_connect().has_value()) ASSERT_FALSE(deadline.expired());
        FAIL() << "it connected";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::peer_lost) << error.what();
    }
}

}  // namespace
}  // namespace millrace::stream
