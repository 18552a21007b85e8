// Channels in a program's own loop: one descriptor for both directions, level-triggered.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "millrace/connect/hub.hpp"
#include "millrace/message/channel.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::message {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using millrace::test::becomes_readable;
using millrace::test::both_go_quiet;
using millrace::test::ChildProcess;
using millrace::test::goes_quiet;
using millrace::test::is_readable;

constexpr std::chrono::milliseconds descriptor_patience{20'000};

struct LoopPair {
    explicit LoopPair(const ChannelOptions& options) {
        static int number = 0;
        const auto address =
            connect::Address::parse("unix:@millrace-descriptor-test-" + std::to_string(getpid()) +
                                    "-" + std::to_string(++number));
        Listener listener = Listener::listen(address, options);
        std::thread other{[&] { far.emplace(connect(address, options, Deadline::after(40s))); }};
        near.emplace(listener.accept(Deadline::after(40s)));
        other.join();
    }
    std::optional<Channel> near, far;
};

std::vector<std::byte> message_for(std::uint32_t number, std::size_t most) {
    std::vector<std::byte> bytes(4 + number * 37 % most, static_cast<std::byte>(number));
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
}

Status look(Channel& channel) {
    return channel.try_receive([](std::span<const std::byte>) {});
}

/// Sends and receives `count` messages, by its descriptor alone. `at_once`: messages received for
/// each time that it is readable.
void talk(Channel& channel, std::uint32_t count, std::size_t most, int at_once, unsigned seed) {
    std::minstd_rand random{seed};
    const int descriptor = channel.descriptor();
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    while (sent < count || received < count) {
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience))
            << "sent " << sent << ", received " << received;
        while (sent < count) {
            const Status status = channel.try_send(message_for(sent, most));
            if (status == Status::full) break;
            ASSERT_EQ(status, Status::ok);
            ++sent;
            if (random() % 8 == 0) break;
        }
        for (int i = 0; i < at_once; ++i) {
            const Status status = channel.try_receive([&](std::span<const std::byte> message) {
                const std::vector<std::byte> right = message_for(received, most);
                ASSERT_EQ(message.size(), right.size());
                ASSERT_EQ(std::memcmp(message.data(), right.data(), right.size()), 0);
            });
            if (status == Status::empty) {
                // Whoever has more to send does not sleep for messages alone.
                if (sent < count && channel.try_send(message_for(sent, most)) == Status::ok) ++sent;
                break;
            }
            ASSERT_EQ(status, Status::ok);
            ++received;
            if (random() % 16 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds{random() % 300});
            }
        }
    }
}

class TalkingChannels : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Loops, TalkingChannels, testing::Values(1, 1000), [](const auto& at_once) {
    return at_once.param == 1 ? std::string{"OneByOne"} : std::string{"UntilEmpty"};
});

TEST_P(TalkingChannels, OneTakesWhatTheOtherSends) {
    // One side sends, and learns of room and of answers by the same descriptor.
    LoopPair pair{{.ring_bytes = 1024}};
    constexpr std::uint32_t count = 3000;
    std::thread sender{[&] {
        Channel& channel = *pair.near;
        const int descriptor = channel.descriptor();
        for (std::uint32_t sent = 0; sent < count;) {
            const Status status = channel.try_send(message_for(sent, 300));
            if (status == Status::ok) {
                ++sent;
                continue;
            }
            ASSERT_EQ(status, Status::full);
            ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience))
                << "full, and not woken: " << sent;
        }
        ASSERT_EQ(channel.close(Deadline::after(40s)), Status::ok);
    }};
    Channel& channel = *pair.far;
    const int descriptor = channel.descriptor();
    std::minstd_rand random{3};
    std::uint32_t received = 0;
    Status status = Status::ok;
    while (status == Status::ok || status == Status::empty) {
        ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience))
            << "not woken for " << received;
        for (int i = 0; i < GetParam(); ++i) {
            status = channel.try_receive([&](std::span<const std::byte> message) {
                const std::vector<std::byte> right = message_for(received, 300);
                ASSERT_EQ(message.size(), right.size());
                ASSERT_EQ(std::memcmp(message.data(), right.data(), right.size()), 0);
                ++received;
            });
            if (status != Status::ok) break;
            if (random() % 16 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds{random() % 300});
            }
        }
    }
    sender.join();
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(received, count);
}

TEST_P(TalkingChannels, BothSidesTalkAtOnce) {
    LoopPair pair{{.ring_bytes = 4096}};
    std::thread other{[&] { talk(*pair.far, 1500, 500, GetParam(), 5); }};
    talk(*pair.near, 1500, 500, GetParam(), 9);
    other.join();
}

TEST(ChannelDescriptor, GoesQuietAndWakes) {
    LoopPair pair{{}};
    const int descriptor = pair.near->descriptor();
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience)) << "nobody has looked yet";
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(goes_quiet(descriptor, [&] { ASSERT_EQ(look(*pair.near), Status::empty); }));
        ASSERT_EQ(pair.far->try_send(message_for(1, 100)), Status::ok);
        ASSERT_EQ(pair.far->try_send(message_for(2, 100)), Status::ok);
        for (int i = 0; i < 2; ++i) {
            Status status = Status::empty;
            while (status == Status::empty) {
                ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience));
                status = look(*pair.near);
            }
            ASSERT_EQ(status, Status::ok);
        }
    }
}

TEST(ChannelDescriptor, OfBothEndsGoesQuietWhereNothingIsNew) {
    for (const ring::Carrier carrier : {ring::Carrier::automatic, ring::Carrier::post}) {
        LoopPair pair{{.carrier = carrier}};
        const int near = pair.near->descriptor();
        const int far = pair.far->descriptor();
        const auto look_near = [&] { ASSERT_EQ(look(*pair.near), Status::empty); };
        const auto look_far = [&] { ASSERT_EQ(look(*pair.far), Status::empty); };
        ASSERT_TRUE(both_go_quiet(near, look_near, far, look_far));
        EXPECT_EQ(pair.near->stats().events_sent + pair.far->stats().events_sent, 0U);
        // An end that goes on looking, and finds nothing, leaves the other one alone, too.
        for (int i = 0; i < 1000; ++i) look_near();
        EXPECT_EQ(pair.near->stats().events_sent, 0U);
        ASSERT_EQ(pair.near->try_send(message_for(1, 100)), Status::ok);
        EXPECT_EQ(pair.near->stats().events_sent, 1U);
        Status status = Status::empty;
        while (status == Status::empty) {
            ASSERT_TRUE(becomes_readable(far, descriptor_patience));
            status = look(*pair.far);
        }
        ASSERT_EQ(status, Status::ok);
        EXPECT_TRUE(both_go_quiet(near, look_near, far, look_far));
    }
}

TEST(ChannelDescriptor, OfAnEndThatAwaitsMessagesIsNotRungForRoom) {
    for (const ring::Carrier carrier : {ring::Carrier::automatic, ring::Carrier::post}) {
        LoopPair pair{{.ring_bytes = 4096, .carrier = carrier}};
        const int descriptor = pair.near->descriptor();
        const auto look_near = [&] { ASSERT_EQ(look(*pair.near), Status::empty); };
        ASSERT_EQ(pair.near->try_send(message_for(1, 100)), Status::ok);
        ASSERT_TRUE(goes_quiet(descriptor, look_near));
        Status status = Status::empty;
        while (status == Status::empty) status = look(*pair.far);
        ASSERT_EQ(status, Status::ok);
        EXPECT_EQ(look(*pair.far), Status::empty);
        EXPECT_EQ(pair.far->stats().events_sent, 0U) << "it was read, which near does not wait for";
        ASSERT_EQ(pair.far->try_send(message_for(2, 100)), Status::ok);
        EXPECT_EQ(pair.far->stats().events_sent, 1U);
        status = Status::empty;
        while (status == Status::empty) {
            ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience));
            status = look(*pair.near);
        }
        ASSERT_EQ(status, Status::ok);
        // Now it needs room.
        while ((status = pair.near->try_send(message_for(3, 100))) == Status::ok) {
        }
        ASSERT_EQ(status, Status::full);
        ASSERT_TRUE(goes_quiet(descriptor, look_near));
        status = Status::empty;
        while (status == Status::empty) status = look(*pair.far);
        ASSERT_EQ(status, Status::ok);
        EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
    }
}

TEST(ChannelDescriptor, OfAnEndThatFellAsleepTellsOfWhatIsThereAlone) {
    {
        LoopPair pair{{}};
        pair.near->fall_asleep();
        const int descriptor = pair.near->descriptor();
        // Over a link something may be on its way, for which it is readable now and then.
        if (pair.near->explain().find("nothing is posted") != std::string::npos) {
            EXPECT_FALSE(is_readable(descriptor));
        }
        ASSERT_EQ(pair.far->try_send(message_for(1, 100)), Status::ok);
        EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
    }
    LoopPair pair{{}};
    ASSERT_EQ(pair.far->send(message_for(1, 100), Deadline::after(40s)), Status::ok);
    pair.near->fall_asleep();
    EXPECT_TRUE(becomes_readable(pair.near->descriptor(), descriptor_patience));
}

TEST(ChannelDescriptor, OfAnEndThatFoundNoRoomStaysReadable) {
    LoopPair pair{{.ring_bytes = 128}};
    Status status = Status::ok;
    while (status == Status::ok) status = pair.near->try_send(message_for(1, 16));
    ASSERT_EQ(status, Status::full);
    pair.near->fall_asleep();
    EXPECT_TRUE(becomes_readable(pair.near->descriptor(), descriptor_patience))
        << "its room was not asked for";
}

TEST(ChannelDescriptor, TellsOfThePeersDeathAndOfItsClose) {
    for (const bool closes : {false, true}) {
        LoopPair pair{{}};
        const int descriptor = pair.near->descriptor();
        ASSERT_TRUE(goes_quiet(descriptor, [&] { ASSERT_EQ(look(*pair.near), Status::empty); }));
        if (closes) {
            EXPECT_EQ(pair.far->close(Deadline::after(40s)), Status::ok);
        }
        pair.far.reset();
        Status status = Status::empty;
        while (status == Status::empty) {
            ASSERT_TRUE(becomes_readable(descriptor, descriptor_patience));
            status = look(*pair.near);
        }
        EXPECT_EQ(status, closes ? Status::closed : Status::peer_lost);
        EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
    }
}

TEST(ChannelDescriptor, OfAListenerServesACrowdWithoutWaiting) {
    constexpr std::size_t count = 20;
    const auto address =
        connect::Address::parse("unix:@millrace-descriptor-crowd-" + std::to_string(getpid()));
    Listener listener = Listener::listen(address);
    EXPECT_FALSE(listener.try_accept().has_value());
    std::thread crowd{[&] {
        std::vector<Channel> channels;
        for (std::size_t i = 0; i < count; ++i) {
            channels.push_back(connect(address, ChannelOptions{}, Deadline::after(40s)));
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            ASSERT_EQ(channels[i].send(message_for(i, 50), Deadline::after(40s)), Status::ok);
        }
        for (Channel& channel : channels) {
            std::vector<std::byte> answer;
            ASSERT_EQ(channel.receive(answer, Deadline::after(40s)), Status::ok);
            ASSERT_EQ(channel.close(Deadline::after(40s)), Status::ok);
        }
    }};
    std::vector<std::optional<Channel>> served;
    std::size_t left = count;
    while (left != 0) {
        std::vector<pollfd> entries{{listener.descriptor(), POLLIN, 0}};
        for (auto& channel : served) {
            entries.push_back({channel ? channel->descriptor() : -1, POLLIN, 0});
        }
        ASSERT_GT(poll(entries.data(), entries.size(), 20'000), 0) << left << " are left";
        for (std::size_t i = 0; i < served.size(); ++i) {
            if (entries[i + 1].revents == 0) continue;
            std::optional<Channel>& channel = served[i];
            const Status status = channel->try_receive([&](std::span<const std::byte>) {});
            if (status == Status::ok) {
                ASSERT_EQ(channel->try_send(message_for(1, 10)), Status::ok);
            } else if (status != Status::empty) {
                EXPECT_EQ(status, Status::closed);
                // An end that only goes may take its queue pair away before the device has
                // acknowledged the peer's last request.
                EXPECT_EQ(channel->close(Deadline::after(40s)), Status::ok);
                channel.reset();
                --left;
            }
        }
        if (entries[0].revents == 0) continue;
        while (auto channel = listener.try_accept()) served.emplace_back(std::move(channel));
    }
    crowd.join();
}

MILLRACE_CHILD(connect_many_channels_and_stay) {
    rlimit limit{};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    std::vector<Channel> channels;
    for (unsigned long n = std::stoul(arguments.at(1)); n != 0; --n) {
        channels.push_back(connect(connect::Address::parse(arguments.at(0)),
                                   ChannelOptions{.ring_bytes = 4096}, Deadline::after(40s)));
    }
    millrace::test::say("connected");
    return millrace::test::hear() ? 0 : 1;
}

TEST(ChannelDescriptor, OfHundredsToOneProcessAreInOneHubAndTellOfItsDeath) {
    constexpr std::size_t count = 600;
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 10 * count) GTEST_SKIP() << "too few descriptors are allowed here";
    const auto address =
        connect::Address::parse("unix:@millrace-descriptor-many-" + std::to_string(getpid()));
    Listener listener = Listener::listen(address, {.ring_bytes = 4096});
    ChildProcess child = ChildProcess::start("connect_many_channels_and_stay",
                                             {address.to_string(), std::to_string(count)});
    connect::Hub hub;
    std::vector<Channel> channels;
    channels.reserve(count);
    std::size_t lost = 0;
    std::vector<connect::Hub::Id> members;
    hub.add(listener.descriptor(), [&] {
        while (auto accepted = listener.try_accept()) {
            const std::size_t index = channels.size();
            channels.push_back(std::move(*accepted));
            members.push_back(hub.add(channels[index].descriptor(), [&, index] {
                const Status status = look(channels[index]);
                if (status == Status::empty) return;
                EXPECT_EQ(status, Status::peer_lost);
                hub.remove(members[index]);
                if (++lost == count) hub.stop();
            }));
        }
        if (channels.size() == count) hub.stop();
    });
    ASSERT_EQ(hub.run(Deadline::after(40s)), Status::closed);
    ASSERT_EQ(channels.size(), count);
    ASSERT_EQ(child.read_line(), "connected");
    EXPECT_EQ(lost, 0U);
    child.kill_and_wait();
    EXPECT_EQ(hub.run(Deadline::after(40s)), Status::closed);
    EXPECT_EQ(lost, count);
}

TEST(ChannelDescriptor, GoesQuietBesideRoomThatNobodyWantsAnyMore) {
    LoopPair pair{{.ring_bytes = 1024}};
    const int descriptor = pair.near->descriptor();
    for (int round = 0; round < 3; ++round) {
        std::uint32_t sent = 0;
        while (pair.near->try_send(message_for(sent, 100)) == Status::ok) ++sent;
        // What did not fit is dropped. It tells of the room once, and is not called for ever.
        std::uint32_t taken = 0;
        const Deadline deadline = Deadline::after(40s);
        while (taken != sent && !deadline.expired()) {
            if (look(*pair.far) == Status::ok) ++taken;
        }
        ASSERT_EQ(taken, sent);
        EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
        ASSERT_TRUE(goes_quiet(descriptor, [&] { ASSERT_EQ(look(*pair.near), Status::empty); }));
    }
}

TEST(ChannelDescriptor, DoesNotKeepAWaitForRoomFromSleeping) {
    LoopPair pair{{.ring_bytes = 1024}};
    (void)pair.near->descriptor();
    ASSERT_EQ(pair.far->try_send(message_for(1, 100)), Status::ok);
    while (pair.near->try_send(message_for(2, 100)) == Status::ok) {
    }
    // The message that waits here unread is no news to who waits for room.
    const std::uint64_t before = pair.near->stats().sleeps;
    const Deadline deadline = Deadline::after(40s);
    do {  // whoever loses the processor that long has no time to sleep
        EXPECT_EQ(pair.near->send(message_for(2, 100), Deadline::after(200ms)), Status::timed_out);
    } while (pair.near->stats().sleeps == before && !deadline.expired());
    EXPECT_GT(pair.near->stats().sleeps, before);
}

TEST(ChannelDescriptor, StandsBesideWaits) {
    LoopPair pair{{}};
    const int descriptor = pair.near->descriptor();
    ASSERT_TRUE(goes_quiet(descriptor, [&] { ASSERT_EQ(look(*pair.near), Status::empty); }));
    std::vector<std::byte> bytes;
    EXPECT_EQ(pair.near->receive(bytes, Deadline::after(1ms)), Status::timed_out);
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience))
        << "whoever waited otherwise may have missed something";
    ASSERT_EQ(pair.far->try_send(message_for(5, 100)), Status::ok);
    ASSERT_EQ(pair.near->receive(bytes, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(bytes, message_for(5, 100));
    ASSERT_TRUE(goes_quiet(descriptor, [&] { ASSERT_EQ(look(*pair.near), Status::empty); }));
    ASSERT_EQ(pair.far->try_send(message_for(6, 100)), Status::ok);
    EXPECT_TRUE(becomes_readable(descriptor, descriptor_patience));
}

}  // namespace
}  // namespace millrace::message
