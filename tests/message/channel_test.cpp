// Channels between two processes, on the device that MILLRACE_DEVICE names (or the default one).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "message/patience.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/ring/detail/first_position.hpp"
#include "support/child_process.hpp"
#include "support/sleeps.hpp"
#include "support/two_threads.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::hear;
using test::say;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

Bytes pattern(std::size_t size, unsigned seed) {
    Bytes bytes(size);
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
    for (std::byte& byte : bytes) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        byte = static_cast<std::byte>(state >> 56);
    }
    return bytes;
}

ChannelOptions with_ring(std::size_t bytes) {
    ChannelOptions options;
    options.ring_bytes = bytes;
    return options;
}

ChannelOptions options_of(const std::vector<std::string>& arguments) {
    return with_ring(arguments.size() > 0 ? std::stoull(arguments[0]) : 1 << 16);
}

/// A child that listens, and the channel to it. The child's first line is its address.
struct ChannelPair {
    ChildProcess child;
    Channel channel;

    static ChannelPair start(std::string_view name, std::size_t ring = 1 << 16,
                             std::uint64_t first_position = 0, std::vector<std::string> more = {}) {
        std::vector<std::string> arguments{std::to_string(ring), std::to_string(first_position)};
        arguments.insert(arguments.end(), more.begin(), more.end());
        ChildProcess process = ChildProcess::start(name, std::move(arguments));
        const auto address = process.read_line();
        if (!address) throw std::runtime_error{"the child did not listen"};
        const ring::detail::FirstPosition begins{first_position};
        Channel made = connect(connect::Address::parse(*address), with_ring(ring), patience());
        return {std::move(process), std::move(made)};
    }
};

/// A channel whose other end is `accepted`, in this process.
Channel connect_within(const ChannelOptions& options, std::optional<Channel>& accepted) {
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    std::thread accepting{[&] { accepted.emplace(listener.accept(patience())); }};
    Channel channel = connect(listener.address(), options, patience());
    accepting.join();
    return channel;
}

/// For children: listens, says where, and accepts one channel.
Channel accept_one(const std::vector<std::string>& arguments) {
    Listener listener =
        Listener::listen(connect::Address::parse("127.0.0.1:0"), options_of(arguments));
    say(listener.address().to_string());
    const ring::detail::FirstPosition begins{arguments.size() > 1 ? std::stoull(arguments[1]) : 0};
    return listener.accept(patience());
}

/// For children: closes, when the peer may have closed and gone.
bool closes_well(Channel& channel) {
    const Status closed = channel.close(patience());
    return closed == Status::ok || closed == Status::closed;
}

/// For children: takes the peer's close and closes, too.
bool ends_well(Channel& channel) {
    Bytes message;
    if (channel.receive(message, patience()) != Status::closed) return false;
    return closes_well(channel);
}

/// For children: says on standard error why the channel ended. Returns `code`.
int failed_child(const Channel& channel, Status status, int code) {
    std::fprintf(stderr, "the child's channel: %s %s\n", std::string{name_of(status)}.c_str(),
                 channel.failure().c_str());
    return code;
}

// Sends back every message, whole, until the peer closes.
MILLRACE_CHILD(echo) {
    Channel channel = accept_one(arguments);
    Bytes message;
    while (true) {
        const Status status = channel.receive(message, patience());
        if (status == Status::closed) break;
        if (status != Status::ok) return failed_child(channel, status, 2);
        if (const Status sent = channel.send(message, patience()); sent != Status::ok) {
            return failed_child(channel, sent, 3);
        }
    }
    return closes_well(channel) ? 0 : 4;
}

TEST(Channel, EchoesEverySizeFrom0To300) {
    ChannelPair pair = ChannelPair::start("echo");
    Bytes answer;
    for (std::size_t size = 0; size <= 300; ++size) {
        const Bytes message = pattern(size, static_cast<unsigned>(size));
        ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok) << size;
        ASSERT_EQ(answer, message) << size;
    }
    EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    EXPECT_TRUE(pair.child.wait().success());
}

TEST(Channel, EchoesEverySizeThroughARingThatWrapsAllTheTime) {
    ChannelPair pair = ChannelPair::start("echo", 1024);
    Bytes answer;
    for (unsigned turn = 0; turn < 3; ++turn) {
        for (std::size_t size = 0; size <= 1008; size += 1 + turn * 6) {
            const Bytes message = pattern(size, static_cast<unsigned>(size + turn));
            ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
            ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok) << size;
            ASSERT_EQ(answer, message) << size;
        }
    }
    EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    EXPECT_TRUE(pair.child.wait().success());
}

TEST(Channel, EchoesThroughTheSmallestRing) {
    ChannelPair pair = ChannelPair::start("echo", smallest_ring);
    Bytes answer;
    for (std::size_t size = 0; size <= 500; size += 7) {
        const Bytes message = pattern(size, static_cast<unsigned>(size));
        ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok) << size;
        ASSERT_EQ(answer, message) << size;
    }
    EXPECT_EQ(pair.channel.close(patience()), Status::ok) << pair.channel.failure();
    EXPECT_TRUE(pair.child.wait().success());
}

TEST(Channel, EchoesMessagesMuchLargerThanTheRing) {
    ChannelPair pair = ChannelPair::start("echo", 1 << 14);
    Bytes answer;
    for (const std::size_t size : {std::size_t{16'368}, std::size_t{16'369}, std::size_t{16'384},
                                   std::size_t{100'001}, std::size_t{3'000'000}}) {
        const Bytes message = pattern(size, static_cast<unsigned>(size));
        ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok) << size;
        ASSERT_TRUE(answer == message) << size;
    }
    EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    EXPECT_TRUE(pair.child.wait().success());
}

TEST(Channel, HandsOutLargeMessagesInPiecesIfAsked) {
    ChannelPair pair = ChannelPair::start("echo", 1 << 14);
    const Bytes message = pattern(200'000, 5);
    ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
    Bytes joined;
    int firsts = 0;
    bool last = false;
    while (!last) {
        ASSERT_EQ(pair.channel.receive(
                      [&](const Piece& piece) {
                          firsts += piece.first;
                          last = piece.last;
                          joined.insert(joined.end(), piece.payload.begin(), piece.payload.end());
                      },
                      patience()),
                  Status::ok);
    }
    EXPECT_EQ(firsts, 1);
    EXPECT_TRUE(joined == message);
    EXPECT_GT(pair.channel.stats().pieces_received, 10U);
    EXPECT_EQ(pair.channel.stats().messages_received, 1U);
}

TEST(Channel, CountersPassTwoToThe32AndTwoToThe64) {
    for (const std::uint64_t start :
         {(std::uint64_t{1} << 32) - 256, std::uint64_t{0} - 256, (std::uint64_t{1} << 38) - 256}) {
        ChannelPair pair = ChannelPair::start("echo", 1024, start);
        Bytes answer;
        for (unsigned turn = 0; turn < 100; ++turn) {
            const Bytes message = pattern(turn * 9, turn);
            ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
            ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok)
                << start << ": " << pair.channel.failure();
            ASSERT_EQ(answer, message);
        }
        EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    }
}

/// Message number `n` of a stream whose messages have any size up to `largest`.
Bytes nth_message(unsigned n, std::size_t largest) {
    return pattern((n * 2654435761U) % (largest + 1), n);
}

// Receives a stream of argument 3 messages up to argument 4 bytes, with pauses now and then.
MILLRACE_CHILD(sink) {
    Channel channel = accept_one(arguments);
    const auto count = static_cast<unsigned>(std::stoul(arguments[2]));
    const std::size_t largest = std::stoul(arguments[3]);
    Bytes message;
    for (unsigned n = 0; n < count; ++n) {
        if (channel.receive(message, patience()) != Status::ok) return 2;
        if (message != nth_message(n, largest)) return 3;
        if (n % 61 == 0) std::this_thread::sleep_for(300us);
    }
    return ends_well(channel) ? 0 : 4;
}

TEST(Channel, AStreamWithPausesOnBothSidesArrivesInOrder) {
    constexpr unsigned count = 1500;
    for (const std::size_t largest : {200, 9000, 40'000}) {
        ChannelPair pair = ChannelPair::start("sink", 1 << 15, 0,
                                              {std::to_string(count), std::to_string(largest)});
        for (unsigned n = 0; n < count; ++n) {
            ASSERT_EQ(pair.channel.send(nth_message(n, largest), patience()), Status::ok);
            if (n % 97 == 0) std::this_thread::sleep_for(300us);
        }
        EXPECT_EQ(pair.channel.close(patience()), Status::ok);
        const test::Exit exit = pair.child.wait();
        EXPECT_TRUE(exit.success()) << exit << ", messages up to " << largest;
    }
}

/// Sends and receives `count` messages at the same time, without ever waiting for one direction.
int converse(Channel& channel, unsigned count, std::size_t largest) {
    unsigned sent = 0;
    unsigned received = 0;
    int failed = 0;
    base::NapParker nap;
    const Status waited = base::wait_until(
        [&] {
            bool busy = true;
            while (busy && failed == 0) {
                busy = false;
                if (sent < count) {
                    const Status status = channel.try_send(nth_message(sent, largest));
                    if (status == Status::ok) {
                        ++sent;
                        busy = true;
                    } else if (status != Status::full) {
                        failed = 10;
                    }
                }
                if (received < count) {
                    const Status status =
                        channel.try_receive([&](std::span<const std::byte> message) {
                            const Bytes expected = nth_message(received, largest);
                            if (!std::equal(message.begin(), message.end(), expected.begin(),
                                            expected.end())) {
                                failed = 11;
                            }
                        });
                    if (status == Status::ok) {
                        ++received;
                        busy = true;
                    } else if (status != Status::empty) {
                        failed = 12;
                    }
                }
            }
            return failed != 0 || (sent == count && received == count);
        },
        patience(), base::WaitPolicy{}, nap);
    return waited == Status::ok ? failed : 13;
}

MILLRACE_CHILD(converse) {
    Channel channel = accept_one(arguments);
    if (const int failed = converse(channel, 2000, 600)) return failed;
    if (channel.finish(patience()) != Status::ok) return 2;
    return ends_well(channel) ? 0 : 3;
}

TEST(Channel, BothDirectionsAreBusyAtOnce) {
    for (const std::size_t ring : {1024, 1 << 16}) {
        ChannelPair pair = ChannelPair::start("converse", ring);
        EXPECT_EQ(converse(pair.channel, 2000, 600), 0);
        EXPECT_EQ(pair.channel.close(patience()), Status::ok);
        const test::Exit exit = pair.child.wait();
        EXPECT_TRUE(exit.success()) << exit;
    }
}

TEST(Channel, SleepingSidesAreWoken) {
    const auto blocking_echo = [](Channel& channel, unsigned rounds) {
        Bytes answer;
        for (unsigned round = 0; round < rounds; ++round) {
            const Bytes message = pattern(64, round);
            ASSERT_EQ(channel.send(message, patience()), Status::ok);
            ASSERT_EQ(channel.receive(answer, patience()), Status::ok)
                << "round " << round << ": " << channel.failure();
            ASSERT_EQ(answer, message);
        }
    };
    ChildProcess child = ChildProcess::start("echo_asleep");
    const auto address = child.read_line();
    ASSERT_TRUE(address);
    ChannelOptions options;
    options.wait = base::WaitPolicy::blocking();
    Channel channel = connect(connect::Address::parse(*address), options, patience());
    // Nothing makes a busy machine's processes meet, so again until they have.
    for (const Deadline deadline = Deadline::after(40s);
         channel.stats().events_received == 0 && !deadline.expired();) {
        ASSERT_NO_FATAL_FAILURE(blocking_echo(channel, 200));
    }
    EXPECT_GT(channel.stats().sleeps, 0U);
    EXPECT_GT(channel.stats().events_received, 0U);
    EXPECT_EQ(channel.close(patience()), Status::ok);
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(echo_asleep) {
    ChannelOptions options;
    options.wait = base::WaitPolicy::blocking();
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    say(listener.address().to_string());
    Channel channel = listener.accept(patience());
    Bytes message;
    while (true) {
        const Status status = channel.receive(message, patience());
        if (status == Status::closed) return closes_well(channel) ? 0 : 3;
        if (status != Status::ok || channel.send(message, patience()) != Status::ok) {
            return failed_child(channel, status, 2);
        }
    }
}

// Sends argument 3 messages at once, closes and ends.
MILLRACE_CHILD(speak_and_go) {
    Channel channel = accept_one(arguments);
    const auto count = static_cast<unsigned>(std::stoul(arguments[2]));
    for (unsigned n = 0; n < count; ++n) {
        if (channel.send(nth_message(n, 100), patience()) != Status::ok) return 2;
    }
    return channel.close(patience()) == Status::ok ? 0 : 3;
}

TEST(Channel, WhatWasSentBeforeTheCloseIsReceivedAfterThePeerIsGone) {
    ChannelPair pair = ChannelPair::start("speak_and_go", 1 << 16, 0, {"200"});
    EXPECT_TRUE(pair.child.wait().success());
    Bytes message;
    for (unsigned n = 0; n < 200; ++n) {
        ASSERT_EQ(pair.channel.receive(message, patience()), Status::ok) << n;
        ASSERT_EQ(message, nth_message(n, 100));
    }
    EXPECT_EQ(pair.channel.receive(message, patience()), Status::closed);
    EXPECT_EQ(pair.channel.try_receive([](std::span<const std::byte>) {}), Status::closed);
}

TEST(Channel, CloseEndsWhereThePeerClosedAndIsGone) {
    ChannelPair pair = ChannelPair::start("speak_and_go", 1 << 16, 0, {"3"});
    ASSERT_TRUE(pair.child.wait().success());
    // Nobody answers a close frame any more, and nobody needs one: nothing was sent.
    EXPECT_EQ(pair.channel.close(Deadline::now()), Status::ok);
}

TEST(Channel, CloseHasNothingToWaitForWhereThePeerClosedFirst) {
    ChannelPair pair = ChannelPair::start("listen_and_go");
    for (int n = 0; n < 3; ++n) {
        ASSERT_EQ(pair.channel.send(pattern(50, 1), patience()), Status::ok);
    }
    Bytes message;
    ASSERT_EQ(pair.channel.receive(message, patience()), Status::closed);
    ASSERT_TRUE(pair.child.wait().success());
    EXPECT_EQ(pair.channel.close(Deadline::now()), Status::ok) << "it has read everything";
}

TEST(Channel, CloseTellsThatThePeerClosedWithMessagesUnread) {
    ChannelPair pair = ChannelPair::start("listen_and_go");
    for (int n = 0; n < 5; ++n) {
        ASSERT_EQ(pair.channel.send(pattern(50, 1), patience()), Status::ok);
    }
    ASSERT_TRUE(pair.child.wait().success());
    EXPECT_EQ(pair.channel.close(Deadline::now()), Status::closed);
}

// The peer's end answers nothing any more, and need not.
TEST(ChannelInOneProcess, IsClosedThoughThePeerLetGoOfItsEndWithTheLastMessageRead) {
    std::optional<Channel> accepted;
    Channel channel = connect_within(with_ring(1024), accepted);
    Bytes message;
    ASSERT_EQ(channel.send(pattern(50, 1), patience()), Status::ok);
    ASSERT_EQ(channel.finish(patience()), Status::ok);
    ASSERT_EQ(accepted->receive(message, patience()), Status::ok);
    ASSERT_EQ(accepted->receive(message, patience()), Status::closed);
    accepted.reset();
    EXPECT_EQ(channel.close(patience()), Status::ok) << channel.failure();
}

// Receives three messages, closes and ends.
MILLRACE_CHILD(listen_and_go) {
    Channel channel = accept_one(arguments);
    Bytes message;
    for (int n = 0; n < 3; ++n) {
        if (channel.receive(message, patience()) != Status::ok) return 2;
    }
    return channel.close(patience()) == Status::ok ? 0 : 3;
}

TEST(Channel, ASleeperHearsOfAnEndWithoutACloseWhenItIsWoken) {
    ChannelOptions options = with_ring(1 << 16);
    options.wait = base::WaitPolicy::blocking();
    std::optional<Channel> gone;
    Channel channel = connect_within(options, gone);
    gone.reset();
    Bytes message;
    EXPECT_EQ(channel.receive(message, patience()), Status::peer_lost);
    EXPECT_LE(channel.stats().sleeps, 4U) << "it slept on after it had been woken";
}

// Receives until the peer finishes, then says how many there were.
MILLRACE_CHILD(count_then_answer) {
    Channel channel = accept_one(arguments);
    unsigned count = 0;
    Status status = Status::ok;
    while (status == Status::ok) {
        status = channel.receive([&](std::span<const std::byte>) { ++count; }, patience());
    }
    if (status != Status::closed) return 2;
    if (channel.send(std::as_bytes(std::span{&count, 1}), patience()) != Status::ok) return 3;
    return channel.close(patience()) == Status::ok ? 0 : 4;
}

TEST(Channel, WhoHasFinishedSendingStillReceives) {
    ChannelPair pair = ChannelPair::start("count_then_answer");
    for (int n = 0; n < 33; ++n) {
        ASSERT_EQ(pair.channel.send(pattern(50, 1), patience()), Status::ok);
    }
    ASSERT_EQ(pair.channel.finish(patience()), Status::ok);
    EXPECT_EQ(pair.channel.try_send(pattern(1, 1)), Status::closed);
    unsigned count = 0;
    std::size_t size = 0;
    ASSERT_EQ(pair.channel.receive(std::as_writable_bytes(std::span{&count, 1}), size, patience()),
              Status::ok);
    EXPECT_EQ(count, 33U);
    Bytes more;
    EXPECT_EQ(pair.channel.receive(more, patience()), Status::closed);
}

// Does nothing for ever: to be stopped, killed, resumed. After a line it receives everything.
MILLRACE_CHILD(sleepy_sink) {
    Channel channel = accept_one(arguments);
    say("ready");
    if (!hear()) return 2;
    unsigned n = 0;
    Bytes message;
    while (true) {
        const Status status = channel.receive(message, patience());
        if (status == Status::closed) break;
        if (status != Status::ok || message != nth_message(n, 300)) return 3;
        ++n;
    }
    say(std::to_string(n));
    return closes_well(channel) ? 0 : 4;
}

TEST(Channel, AFullRingIsFullUntilTheDeadlineAndLosesNothing) {
    ChannelPair pair = ChannelPair::start("sleepy_sink", 1 << 12);
    ASSERT_EQ(pair.child.read_line(), "ready");
    unsigned sent = 0;
    while (pair.channel.try_send(nth_message(sent, 300)) == Status::ok) ++sent;
    EXPECT_GT(sent, 5U);
    EXPECT_EQ(pair.channel.try_send(nth_message(sent, 300)), Status::full);
    EXPECT_EQ(pair.channel.send(nth_message(sent, 300), Deadline::after(20ms)), Status::timed_out);
    base::Cancellation cancellation;
    cancellation.request();
    EXPECT_EQ(pair.channel.send(nth_message(sent, 300), patience().cancelled_by(cancellation)),
              Status::cancelled);
    ASSERT_TRUE(pair.child.write_line("go"));
    for (unsigned more = 0; more < 100; ++more, ++sent) {
        ASSERT_EQ(pair.channel.send(nth_message(sent, 300), patience()), Status::ok);
    }
    EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    EXPECT_EQ(pair.child.read_line(), std::to_string(sent));
    EXPECT_TRUE(pair.child.wait().success());
}

TEST(Channel, AStoppedPeerIsWaitedForAndNothingIsLost) {
    ChannelPair pair = ChannelPair::start("sleepy_sink", 1 << 12);
    ASSERT_EQ(pair.child.read_line(), "ready");
    ASSERT_TRUE(pair.child.write_line("go"));
    ASSERT_TRUE(pair.child.stop());
    unsigned sent = 0;
    Status status = Status::ok;
    while (status == Status::ok) {
        status = pair.channel.send(nth_message(sent, 300), Deadline::after(50ms));
        if (status == Status::ok) ++sent;
    }
    EXPECT_EQ(status, Status::timed_out);
    Bytes message;
    EXPECT_EQ(pair.channel.receive(message, Deadline::after(20ms)), Status::timed_out);
    pair.child.resume();
    for (unsigned more = 0; more < 100; ++more, ++sent) {
        ASSERT_EQ(pair.channel.send(nth_message(sent, 300), patience()), Status::ok);
    }
    EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    EXPECT_EQ(pair.child.read_line(), std::to_string(sent));
}

TEST(Channel, AKilledPeerIsLostToWhoWaitsForMessages) {
    ChannelPair pair = ChannelPair::start("sleepy_sink");
    ASSERT_EQ(pair.child.read_line(), "ready");
    EXPECT_TRUE(pair.child.kill_and_wait().killed_by(SIGKILL));
    Bytes message;
    EXPECT_EQ(pair.channel.receive(message, patience()), Status::peer_lost);
    EXPECT_EQ(pair.channel.try_send(pattern(8, 1)), Status::peer_lost);
    EXPECT_FALSE(pair.channel.failure().empty());
}

TEST(Channel, AKilledPeerIsLostToWhoOnlyLooks) {
    ChannelPair pair = ChannelPair::start("sleepy_sink");
    ASSERT_EQ(pair.child.read_line(), "ready");
    EXPECT_TRUE(pair.child.kill_and_wait().killed_by(SIGKILL));
    base::NapParker nap;
    Status status = Status::empty;
    EXPECT_EQ(base::wait_until(
                  [&] {
                      status = pair.channel.try_receive([](std::span<const std::byte>) {});
                      return status != Status::empty;
                  },
                  patience(), base::WaitPolicy::polling(), nap),
              Status::ok);
    EXPECT_EQ(status, Status::peer_lost);
}

TEST(Channel, AKilledPeerIsLostToWhoWaitsForRoom) {
    ChannelPair pair = ChannelPair::start("sleepy_sink", 1 << 12);
    ASSERT_EQ(pair.child.read_line(), "ready");
    pair.child.kill();
    Status status = Status::ok;
    for (unsigned n = 0; status == Status::ok; ++n) {
        status = pair.channel.send(nth_message(n, 300), patience());
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_TRUE(pair.child.wait().killed_by(SIGKILL));
}

// Sends without end.
MILLRACE_CHILD(chatter) {
    Channel channel = accept_one(arguments);
    Status status = Status::ok;
    for (unsigned n = 0; status == Status::ok; ++n) {
        status = channel.send(nth_message(n, 500), patience());
    }
    return 1;
}

TEST(Channel, WhatAKilledPeerSentWholeIsReceivedBeforeItIsLost) {
    for (int round = 0; round < 10; ++round) {
        ChannelPair pair = ChannelPair::start("chatter", 1 << 14);
        Bytes message;
        unsigned n = 0;
        for (; n < 100 + static_cast<unsigned>(round) * 37; ++n) {
            ASSERT_EQ(pair.channel.receive(message, patience()), Status::ok);
            ASSERT_EQ(message, nth_message(n, 500));
        }
        pair.child.kill();
        Status status;
        while ((status = pair.channel.receive(message, patience())) == Status::ok) {
            ASSERT_EQ(message, nth_message(n, 500));
            ++n;
        }
        EXPECT_EQ(status, Status::peer_lost);
        EXPECT_TRUE(pair.child.wait().killed_by(SIGKILL));
    }
}

TEST(Channel, WhatFillWritesArrivesAndOnlyWhatItUsed) {
    ChannelPair pair = ChannelPair::start("echo", 1 << 12);
    Bytes answer;
    for (unsigned turn = 0; turn < 200; ++turn) {
        const Bytes expected = pattern(turn * 3, turn);
        ASSERT_EQ(pair.channel.send(
                      1000,
                      [&](std::span<std::byte> room) {
                          std::fill(room.begin(), room.end(), std::byte{0xff});
                          std::copy(expected.begin(), expected.end(), room.begin());
                          return expected.size();
                      },
                      patience()),
                  Status::ok);
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok);
        ASSERT_EQ(answer, expected);
    }
}

TEST(Channel, WhenFillThrowsNothingIsSentAndTheChannelGoesOn) {
    ChannelPair pair = ChannelPair::start("echo", 1 << 12);
    Bytes answer;
    for (unsigned turn = 0; turn < 100; ++turn) {
        EXPECT_THROW((void)pair.channel.send(
                         500,
                         [&](std::span<std::byte> room) {
                             const Bytes dirt = pattern(room.size(), turn);
                             std::copy(dirt.begin(), dirt.end(), room.begin());
                             throw std::runtime_error{"thought better of it"};
                         },
                         patience()),
                     std::runtime_error);
        const Bytes message = pattern(turn, turn);
        ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok);
        ASSERT_EQ(answer, message);
    }
    EXPECT_EQ(pair.channel.stats().messages_sent, 100U);
}

TEST(Channel, WhenTakeThrowsTheMessageStaysTheNext) {
    ChannelPair pair = ChannelPair::start("echo", 1 << 12);
    for (const std::size_t size : {std::size_t{40}, std::size_t{20'000}}) {
        const Bytes message = pattern(size, 4);
        ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
        EXPECT_THROW((void)pair.channel.receive(
                         [](std::span<const std::byte>) { throw std::runtime_error{"not now"}; },
                         patience()),
                     std::runtime_error);
        Bytes answer;
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok);
        EXPECT_TRUE(answer == message);
    }
}

TEST(Channel, AMessageThatDoesNotFitTheBufferStaysTheNext) {
    ChannelPair pair = ChannelPair::start("echo");
    const Bytes message = pattern(100, 4);
    ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
    Bytes small(99);
    std::size_t size = 0;
    EXPECT_EQ(pair.channel.receive(small, size, patience()), Status::too_large);
    EXPECT_EQ(size, 100U);
    Bytes large(100);
    EXPECT_EQ(pair.channel.try_receive(large, size), Status::ok);
    EXPECT_EQ(large, message);
    EXPECT_EQ(pair.channel.try_receive(large, size), Status::empty);
}

TEST(Channel, WhatCanNeverFitIsTooLarge) {
    ChannelPair pair = ChannelPair::start("echo", 1 << 12);
    const std::size_t most = pair.channel.max_piece();
    EXPECT_EQ(most, (std::size_t{1} << 12) - 16);
    EXPECT_EQ(pair.channel.try_send(pattern(most + 1, 1)), Status::too_large);
    const auto untouched = [](std::span<std::byte>) { FAIL() << "there is no such room"; };
    EXPECT_EQ(pair.channel.try_send(most + 1, untouched), Status::too_large);
    EXPECT_EQ(pair.channel.try_send(~std::size_t{0}, untouched), Status::too_large);
    EXPECT_EQ(pair.channel.send(~std::size_t{0} - 6, untouched, patience()), Status::too_large);
    EXPECT_EQ(pair.channel.try_send(pattern(most, 1)), Status::ok);
}

// Receives whole messages of at most 1000 bytes.
MILLRACE_CHILD(modest_echo) {
    ChannelOptions options = options_of(arguments);
    options.max_message_bytes = 1000;
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    say(listener.address().to_string());
    Channel channel = listener.accept(patience());
    Bytes message;
    if (channel.receive(message, patience()) != Status::too_large) return 2;
    if (channel.receive(message, patience()) != Status::ok) return 3;
    if (channel.send(message, patience()) != Status::ok) return 4;
    return ends_well(channel) ? 0 : 5;
}

TEST(Channel, AMessageBeyondTheReceiversLimitIsReportedAndPassedOver) {
    ChannelPair pair = ChannelPair::start("modest_echo", 512);
    ASSERT_EQ(pair.channel.send(pattern(5000, 1), patience()), Status::ok);
    ASSERT_EQ(pair.channel.send(pattern(700, 2), patience()), Status::ok);
    Bytes answer;
    ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok);
    EXPECT_EQ(answer, pattern(700, 2));
    EXPECT_EQ(pair.channel.close(patience()), Status::ok);
    EXPECT_TRUE(pair.child.wait().success());
}

// Waits for a line, then echoes one message.
MILLRACE_CHILD(late_echo) {
    Channel channel = accept_one(arguments);
    say("ready");
    if (!hear()) return 2;
    Bytes message;
    if (channel.receive(message, patience()) != Status::ok) return 3;
    if (channel.send(message, patience()) != Status::ok) return 4;
    return ends_well(channel) ? 0 : 5;
}

TEST(Channel, ALargeMessageThatTimedOutIsGivenUpAndTheNextArrives) {
    ChannelPair pair = ChannelPair::start("late_echo", 1 << 12);
    ASSERT_EQ(pair.child.read_line(), "ready");
    ASSERT_EQ(pair.channel.send(pattern(50'000, 1), Deadline::after(20ms)), Status::timed_out);
    ASSERT_TRUE(pair.child.write_line("go"));
    const Bytes message = pattern(33, 2);
    ASSERT_EQ(pair.channel.send(message, patience()), Status::ok);
    Bytes answer;
    ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok);
    EXPECT_EQ(answer, message);
    EXPECT_EQ(pair.channel.close(patience()), Status::ok) << pair.channel.failure();
    EXPECT_TRUE(pair.child.wait().success());
}

TEST(Channel, OneMessageIsNoRequestWhereItIsStoredAndElseOneWriteWhereTheDeviceKeepsOrder) {
    ChannelPair pair = ChannelPair::start("echo");
    Bytes answer;
    for (unsigned n = 0; n < 100; ++n) {
        ASSERT_EQ(pair.channel.send(pattern(64, n), patience()), Status::ok);
        ASSERT_EQ(pair.channel.receive(answer, patience()), Status::ok);
    }
    const ChannelStats stats = pair.channel.stats();
    EXPECT_EQ(stats.messages_sent, 100U);
    EXPECT_EQ(stats.bytes_sent, 6400U);
    EXPECT_EQ(stats.messages_received, 100U);
    EXPECT_EQ(stats.bytes_received, 6400U);
    const bool in_order = pair.channel.link().writes_in_order();
    const std::string text = pair.channel.explain();
    const bool stores = text.find("carrier: store") != std::string::npos;
    EXPECT_EQ(stats.frame_writes, stores ? 0U : in_order ? 100U : 200U);
    EXPECT_EQ(stats.other_writes, 0U);
    EXPECT_EQ(stats.credit_writes, 0U) << "12800 bytes are less than a quarter of the ring";
    EXPECT_NE(text.find(stores     ? "nothing is posted"
                        : in_order ? "one WRITE per message"
                                   : "two WRITEs per message"),
              std::string::npos)
        << text;
}

TEST(Channel, HasANameForThoseWhoLookFromOutsideAndOneForItsPeer) {
    ChannelOptions options = with_ring(4096);
    options.name = "orders, as they come, to the second warehouse";
    std::optional<Channel> accepted;
    Channel channel = connect_within(options, accepted);
    EXPECT_NE(channel.peer(), "");
    EXPECT_EQ(channel.peer(), channel.link().peer_name());
    ASSERT_EQ(channel.try_send(pattern(64, 1)), Status::ok);
    (void)std::as_const(channel).stats();
    std::uint64_t sent = 0;
    int pages = 0;
    for (const auto& page : base::StatisticsPage::of_process(getpid())) {
        if (page.title != "message channel orders, as they come, to the se") continue;
        ++pages;
        sent += page.counters.at(0).second;
    }
    EXPECT_EQ(pages, 2);
    EXPECT_EQ(sent, 1U);
}

// --- setting up

TEST(ChannelSetup, ARingThatCannotBeIsRefusedWithTheSizesThatCan) {
    for (const std::size_t ring :
         {std::size_t{0}, std::size_t{64}, std::size_t{1000}, std::size_t{1} << 31}) {
        try {
            (void)Listener::listen(connect::Address::parse("127.0.0.1:0"), with_ring(ring));
            ADD_FAILURE() << ring;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_NE(error.cause().find("power of two"), std::string::npos);
        }
    }
}

TEST(ChannelSetup, RingsOfDifferentSizesGoTogether) {
    ChildProcess child = ChildProcess::start("echo", {"1024"});
    const auto address = child.read_line();
    ASSERT_TRUE(address);
    Channel channel = connect(connect::Address::parse(*address), with_ring(1 << 16), patience());
    EXPECT_EQ(channel.max_piece(), 1024U - 16);
    Bytes answer;
    for (unsigned n = 0; n < 200; ++n) {
        const Bytes message = pattern(n * 20, n);
        ASSERT_EQ(channel.send(message, patience()), Status::ok);
        ASSERT_EQ(channel.receive(answer, patience()), Status::ok);
        ASSERT_EQ(answer, message);
    }
}

TEST(ChannelSetup, ARingOfThePeerBeyondTheLimitIsRefused) {
    ChildProcess child = ChildProcess::start("echo", {"65536"});
    const auto address = child.read_line();
    ASSERT_TRUE(address);
    ChannelOptions options;
    options.max_peer_ring_bytes = 1 << 12;
    try {
        (void)connect(connect::Address::parse(*address), options, patience());
        FAIL() << "connected";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused);
        EXPECT_NE(error.cause().find("65536"), std::string::npos);
    }
}

TEST(ChannelSetup, APeerWhoseRingIsTooLargeIsToldSoAndTheNextOneAccepted) {
    ChannelOptions options;
    options.max_peer_ring_bytes = 1 << 12;
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    std::optional<Channel> accepted;
    std::thread accepting{[&] { accepted.emplace(listener.accept(patience())); }};
    try {
        (void)connect(listener.address(), with_ring(1 << 16), patience());
        ADD_FAILURE() << "connected";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
        EXPECT_NE(error.cause().find("at most 4096 bytes, and this side's has 65536"),
                  std::string::npos)
            << error.what();
    }
    Channel fitting = connect(listener.address(), with_ring(1 << 12), patience());
    accepting.join();
    ASSERT_EQ(fitting.send(pattern(10, 1), patience()), Status::ok);
    Bytes message;
    EXPECT_EQ(accepted->receive(message, patience()), Status::ok);
    EXPECT_EQ(message, pattern(10, 1));
}

// Speaks the link's protocol, but describes its end in nonsense.
MILLRACE_CHILD(stranger) {
    connect::LinkOptions options;
    options.service = "message channel";
    options.service_version = 3;
    connect::Link link =
        connect::connect(connect::Address::parse(arguments[0]), options, patience());
    const std::vector<std::byte> nonsense(std::stoul(arguments[1]), std::byte{0x5a});
    (void)link.exchange(nonsense, patience());
    return 0;
}

TEST(ChannelSetup, AStrangerIsPassedOverAndTheNextPeerAccepted) {
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"));
    for (const char* size : {"7", "48", "50000"}) {
        ChildProcess stranger =
            ChildProcess::start("stranger", {listener.address().to_string(), size});
        try {
            (void)listener.accept(Deadline::after(300ms));
            ADD_FAILURE() << "a stranger with " << size << " bytes was accepted";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::timed_out) << error.what();
        }
        (void)stranger.kill_and_wait();
    }
    ChildProcess friendly = ChildProcess::start("caller", {listener.address().to_string()});
    Channel channel = listener.accept(patience());
    Bytes message;
    EXPECT_EQ(channel.receive(message, patience()), Status::ok);
    EXPECT_EQ(message, pattern(10, 1));
    EXPECT_EQ(channel.receive(message, patience()), Status::closed);
}

MILLRACE_CHILD(caller) {
    Channel channel = message::connect(connect::Address::parse(arguments[0]), {}, patience());
    if (channel.send(pattern(10, 1), patience()) != Status::ok) return 2;
    return channel.close(patience()) == Status::ok ? 0 : 3;
}

TEST(ChannelSetup, NoPeerIsLostToAcceptsThatDoNotWait) {
    constexpr std::size_t count = 30;
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"));
    ChildProcess callers = ChildProcess::start(
        "many_callers", {listener.address().to_string(), std::to_string(count)});
    std::vector<Channel> channels;
    base::NapParker naps;
    (void)base::wait_until(
        [&] {
            try {
                channels.push_back(listener.accept(Deadline::now()));
            } catch (const base::Error& error) {
                EXPECT_EQ(error.code(), base::ErrorCode::timed_out) << error.what();
            }
            return channels.size() == count;
        },
        patience(), base::WaitPolicy::blocking(), naps);
    ASSERT_EQ(channels.size(), count);
    for (Channel& channel : channels) {
        Bytes message;
        EXPECT_EQ(channel.receive(message, patience()), Status::ok);
        EXPECT_EQ(message, pattern(10, 1));
    }
    ASSERT_TRUE(callers.write_line("go"));
    EXPECT_TRUE(callers.wait().success());
}

// Connects argument 1 channels one after the other, says something in each, and keeps them.
MILLRACE_CHILD(many_callers) {
    std::vector<Channel> channels;
    for (unsigned long n = std::stoul(arguments[1]); n != 0; --n) {
        channels.push_back(message::connect(connect::Address::parse(arguments[0]), {}, patience()));
        if (channels.back().send(pattern(10, 1), patience()) != Status::ok) return 2;
    }
    return hear() ? 0 : 3;
}

// --- both ends in one process, any interleaving

TEST(ChannelInOneProcess, TheRoomOfASkipReturnsWithTheLookThatPassesOverIt) {
    const ChannelOptions options = with_ring(1024);
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    std::optional<Channel> accepted;
    std::thread accepting{[&] { accepted.emplace(listener.accept(patience())); }};
    Channel sender = connect(listener.address(), options, patience());
    accepting.join();
    Bytes message;
    ASSERT_EQ(sender.send(pattern(500, 1), patience()), Status::ok);
    ASSERT_EQ(accepted->receive(message, patience()), Status::ok);
    // As long as the ring: it begins at 0, behind a skip that must have been read.
    const Bytes whole = pattern(sender.max_piece(), 2);
    Status status = Status::full;
    for (int look = 0; look < 50 && status == Status::full; ++look) {
        ASSERT_EQ(accepted->try_receive([](std::span<const std::byte>) {}), Status::empty);
        for (int question = 0; question < 20 && status == Status::full; ++question) {
            status = sender.try_send(whole);
            std::this_thread::sleep_for(1ms);
        }
    }
    ASSERT_EQ(status, Status::ok);
    ASSERT_EQ(accepted->receive(message, patience()), Status::ok);
    EXPECT_EQ(message, whole);
}

RC_GTEST_PROP(ChannelInOneProcess, AnyInterleavingDeliversWhatTwoQueuesWould, ()) {
    const std::size_t ring = std::size_t{128} << *rc::gen::inRange(0, 6);
    const auto start =
        *rc::gen::element<std::uint64_t>(0, (std::uint64_t{1} << 32) - 128, std::uint64_t{0} - 192);
    const auto steps = *rc::gen::container<std::vector<unsigned>>(
        *rc::gen::inRange<std::size_t>(0, 500), rc::gen::inRange<unsigned>(0, 1U << 20));

    const ring::detail::FirstPosition begins{start};
    const ChannelOptions options = with_ring(ring);
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    std::optional<Channel> accepted;
    std::thread accepting{[&] { accepted.emplace(listener.accept(patience())); }};
    Channel connected = connect(listener.address(), options, patience());
    accepting.join();
    Channel* const ends[2] = {&connected, &*accepted};
    std::deque<Bytes> queues[2];  // what end i has sent and the other not yet received

    const auto receive = [&](unsigned at) {
        std::deque<Bytes>& queue = queues[1 - at];
        Bytes got;
        const Status status = ends[at]->try_receive([&](std::span<const std::byte> message) {
            got.assign(message.begin(), message.end());
        });
        RC_ASSERT(status == Status::ok || status == Status::empty);
        if (status == Status::empty) return false;
        RC_ASSERT(!queue.empty());
        RC_ASSERT(got == queue.front());
        queue.pop_front();
        return true;
    };
    unsigned turn = 0;
    for (const unsigned step : steps) {
        const unsigned at = step & 1;
        const unsigned argument = step / 8;
        switch ((step / 2) & 3) {
            case 0:
            case 1: {
                Bytes message = pattern(argument % (ends[at]->max_piece() + 1), turn++);
                const Status status = ends[at]->try_send(message);
                RC_ASSERT(status == Status::ok || status == Status::full);
                if (status == Status::ok) queues[at].push_back(std::move(message));
                break;
            }
            case 2: (void)receive(at); break;
            case 3:
                while (receive(at)) {
                }
                break;
        }
    }
    // Where the device carries messages in its own time, they come before the deadline.
    base::NapParker nap;
    RC_ASSERT(base::wait_until(
                  [&] {
                      while (receive(0) || receive(1)) {
                      }
                      return queues[0].empty() && queues[1].empty();
                  },
                  patience(), base::WaitPolicy{}, nap) == Status::ok);
}

TEST(ChannelInOneProcess, NamesTheMistakeOfASecondThreadInIt) {
    if (test::sees_races) GTEST_SKIP() << "two threads race in it";
    const ChannelOptions options = with_ring(1024);
    std::optional<Channel> accepted;
    Channel channel = connect_within(options, accepted);
    const auto told = test::told_to_two_threads([&](const Deadline& deadline) {
        Bytes message;
        (void)channel.receive(message, deadline);
    });
    ASSERT_TRUE(told.has_value());
    EXPECT_NE(std::string{told->what()}.find("a call of another thread is under way in it"),
              std::string::npos)
        << told->what();
    // It goes on as before.
    EXPECT_EQ(accepted->send(pattern(64, 1), patience()), Status::ok);
    Bytes message;
    EXPECT_EQ(channel.receive(message, patience()), Status::ok);
    EXPECT_EQ(channel.close(patience()), Status::ok);
}

// Some naps while its announcement is on its way are no looks; how long that takes depends on what
// else runs here. Looks would never end.
void expect_sleep_without_looks(pid_t thread) {
    std::uint64_t sleeps = 7;
    for (int tries = 0; tries < 40 && sleeps >= 7; ++tries) {
        const std::uint64_t before = test::sleeps_of_thread(thread);
        std::this_thread::sleep_for(500ms);
        sleeps = test::sleeps_of_thread(thread) - before;
    }
    EXPECT_LT(sleeps, 7U) << "in half a second, where a look every 50 ms would be 10";
}

ChannelOptions that_block() {
    ChannelOptions options = with_ring(1024);
    options.wait = base::WaitPolicy::blocking();
    return options;
}

TEST(ChannelInOneProcess, LooksNoMoreWhileItSleepsForAMessage) {
    std::optional<Channel> accepted;
    Channel channel = connect_within(that_block(), accepted);
    std::thread sender{[&, receiver = ::gettid()] {
        expect_sleep_without_looks(receiver);
        EXPECT_EQ(accepted->send(pattern(64, 1), patience()), Status::ok);
    }};
    Bytes message;
    EXPECT_EQ(channel.receive(message, patience()), Status::ok);
    sender.join();
}

TEST(ChannelInOneProcess, LooksNoMoreWhileItSleepsForRoom) {
    std::optional<Channel> accepted;
    Channel channel = connect_within(that_block(), accepted);
    std::size_t sent = 0;
    while (channel.try_send(pattern(64, sent)) == Status::ok) ++sent;
    std::thread receiver{[&, sender = ::gettid()] {
        expect_sleep_without_looks(sender);
        Bytes message;
        for (std::size_t i = 0; i <= sent; ++i) {
            ASSERT_EQ(accepted->receive(message, patience()), Status::ok);
            EXPECT_EQ(message, pattern(64, i));
        }
    }};
    EXPECT_EQ(channel.send(pattern(64, sent), patience()), Status::ok);
    receiver.join();
}

}  // namespace
}  // namespace millrace::message
