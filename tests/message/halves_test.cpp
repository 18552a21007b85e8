// Channels in two halves: one thread sends while another one receives.
#include "millrace/message/halves.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "message/patience.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

/// Both ends of a channel in this process.
struct Ends {
    explicit Ends(const ChannelOptions& options) {
        Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
        std::thread accepting{[&] { accepted.emplace(listener.accept(patience())); }};
        connected.emplace(connect(listener.address(), options, patience()));
        accepting.join();
    }
    std::optional<Channel> accepted;
    std::optional<Channel> connected;
};

ChannelOptions with(std::size_t ring, ring::Carrier carrier, base::WaitPolicy wait = {}) {
    ChannelOptions options;
    options.ring_bytes = ring;
    options.carrier = carrier;
    options.wait = wait;
    return options;
}

/// The `number`th message: its length and each byte follow from it.
Bytes message_of(std::uint64_t number, std::size_t longest) {
    Bytes bytes(8 + number * 37 % (longest - 8));
    for (std::size_t i = 0; i != bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number + i);
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
}

struct HalvesWay {
    const char* name;
    ring::Carrier carrier;
    base::WaitPolicy wait;
    std::size_t longest;
};

class ChannelHalvesBy : public testing::TestWithParam<HalvesWay> {};

TEST_P(ChannelHalvesBy, CarryBothDirectionsAtOnceInOrder) {
    const HalvesWay& way = GetParam();
    const std::uint64_t count = way.longest > 4096 ? 200 : 4000;
    Ends ends{with(4096, way.carrier, way.wait)};
    ChannelHalves here = std::move(*ends.accepted).split();
    ChannelHalves there = std::move(*ends.connected).split();
    const auto send_all = [&](ChannelSender& sender) {
        for (std::uint64_t number = 0; number != count; ++number) {
            const Bytes message = message_of(number, way.longest);
            const Status status =
                number % 2 == 0 || message.size() > sender.max_piece()
                    ? sender.send(message, patience())
                    : sender.send(
                          message.size(),
                          [&](std::span<std::byte> room) {
                              std::memcpy(room.data(), message.data(), message.size());
                          },
                          patience());
            ASSERT_EQ(status, Status::ok) << number << ": " << sender.failure();
        }
        ASSERT_EQ(sender.finish(patience()), Status::ok);
    };
    const auto receive_all = [&](ChannelReceiver& receiver) {
        Bytes message;
        for (std::uint64_t number = 0; number != count; ++number) {
            ASSERT_EQ(receiver.receive(message, patience()), Status::ok)
                << number << ": " << receiver.failure();
            ASSERT_EQ(message, message_of(number, way.longest)) << number;
        }
        EXPECT_EQ(receiver.receive(message, patience()), Status::closed);
    };
    {
        std::jthread one{[&] { send_all(here.sender); }};
        std::jthread two{[&] { receive_all(there.receiver); }};
        std::jthread three{[&] { send_all(there.sender); }};
        receive_all(here.receiver);
    }
    EXPECT_EQ(here.sender.stats().messages_sent, count);
    EXPECT_EQ(here.receiver.stats().messages_received, count);
    Channel whole = join(std::move(here.sender), std::move(here.receiver));
    EXPECT_EQ(whole.close(patience()), Status::ok) << whole.failure();
}

INSTANTIATE_TEST_SUITE_P(
    Ways, ChannelHalvesBy,
    testing::Values(
        HalvesWay{"stored", ring::Carrier::automatic, {}, 500},
        HalvesWay{"posted", ring::Carrier::post, {}, 500},
        HalvesWay{"stored_asleep", ring::Carrier::automatic, base::WaitPolicy::blocking(), 500},
        HalvesWay{"posted_asleep", ring::Carrier::post, base::WaitPolicy::blocking(), 500},
        HalvesWay{"larger_than_the_ring", ring::Carrier::automatic, {}, 12'000}),
    [](const auto& way) { return way.param.name; });

TEST(ChannelHalves, KeepWhatIsWrittenInPlaceWhileTheOtherHalfFallsAsleep) {
    Ends ends{with(1024, ring::Carrier::automatic, base::WaitPolicy::blocking())};
    Channel& there = *ends.connected;
    ChannelHalves here = std::move(*ends.accepted).split();
    // Near the end of the ring, with room for a small message and none for a large one: looking
    // for that passes over the end of the ring.
    const Bytes large = message_of(1, 800);
    Bytes seen;
    std::uint64_t number = 0;
    for (; number != 40; ++number) {
        ASSERT_EQ(here.sender.send(message_of(number, 200), patience()), Status::ok);
        if (here.sender.try_send(Bytes(700)) == Status::ok) {
            ASSERT_EQ(there.receive(seen, patience()), Status::ok);
            ASSERT_EQ(seen, message_of(number, 200));
            ASSERT_EQ(there.receive(seen, patience()), Status::ok);
            ASSERT_EQ(seen.size(), 700U);
            continue;
        }
        const Bytes small = message_of(7, 64);
        const Status status = here.sender.try_send(small.size(), [&](std::span<std::byte> room) {
            // The peer makes room, and this end falls asleep.
            EXPECT_EQ(there.receive(seen, patience()), Status::ok);
            EXPECT_EQ(seen, message_of(number, 200));
            const auto take = [](std::span<const std::byte>) { FAIL(); };
            for (int i = 0; i != 200; ++i)
                EXPECT_EQ(here.receiver.try_receive(take), Status::empty);
            std::memcpy(room.data(), small.data(), small.size());
        });
        if (status != Status::ok) {
            ASSERT_EQ(status, Status::full);
            ASSERT_EQ(there.receive(seen, patience()), Status::ok);
            continue;
        }
        ASSERT_EQ(there.receive(seen, patience()), Status::ok);
        ASSERT_EQ(seen, small) << number;
    }
}

TEST(ChannelHalves, ThatWaitForRoomAreWokenWhileTheOtherHalfSleepsForMessages) {
    for (const auto carrier : {ring::Carrier::automatic, ring::Carrier::post}) {
        Ends ends{with(1024, carrier, base::WaitPolicy::blocking())};
        Channel& there = *ends.connected;
        ChannelHalves here = std::move(*ends.accepted).split();
        std::jthread receiving{[&] {
            Bytes message;
            EXPECT_EQ(here.receiver.receive(message, patience()), Status::ok);
            EXPECT_EQ(message.size(), 5U);
        }};
        Bytes seen;
        for (int round = 0; round != 50; ++round) {
            while (here.sender.try_send(Bytes(200)) == Status::ok) {
            }
            std::jthread sending{[&] {
                const Deadline deadline = patience();
                EXPECT_EQ(here.sender.send(Bytes(200), deadline), Status::ok);
                EXPECT_FALSE(deadline.expired()) << "found by the last look alone";
            }};
            std::this_thread::yield();
            ASSERT_EQ(there.receive(seen, patience()), Status::ok);
            sending.join();
        }
        ASSERT_EQ(there.send(Bytes(5), patience()), Status::ok);
    }
}

TEST(ChannelHalves, BothHearThatThePeerIsGone) {
    Ends ends{with(1024, ring::Carrier::automatic, base::WaitPolicy::blocking())};
    ChannelHalves here = std::move(*ends.accepted).split();
    while (here.sender.try_send(Bytes(200)) == Status::ok) {
    }
    std::jthread sending{
        [&] { EXPECT_EQ(here.sender.send(Bytes(200), patience()), Status::peer_lost); }};
    std::jthread receiving{[&] {
        Bytes message;
        EXPECT_EQ(here.receiver.receive(message, patience()), Status::peer_lost);
    }};
    ends.connected.reset();
}

TEST(ChannelHalves, EndTheirWaitsByTheClockAndByCancellation) {
    Ends ends{with(1024, ring::Carrier::automatic)};
    ChannelHalves here = std::move(*ends.accepted).split();
    Bytes message;
    EXPECT_EQ(here.receiver.receive(message, Deadline::after(2ms)), Status::timed_out);
    base::Cancellation stop;
    std::jthread stopping{[&] { stop.request(); }};
    EXPECT_EQ(here.receiver.receive(message, Deadline::never().cancelled_by(stop)),
              Status::cancelled);
    EXPECT_NE(here.sender.peer(), "");
    EXPECT_EQ(here.sender.peer(), here.receiver.peer());
}

TEST(ChannelHalves, AreJoinedWithEachOtherAlone) {
    Ends ends{with(1024, ring::Carrier::automatic)};
    ChannelHalves here = std::move(*ends.accepted).split();
    ChannelHalves there = std::move(*ends.connected).split();
    try {
        (void)join(std::move(here.sender), std::move(there.receiver));
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    }
}

}  // namespace
}  // namespace millrace::message
