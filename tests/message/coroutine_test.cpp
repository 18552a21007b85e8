// Channels driven by coroutines in one thread: echo, both directions at once, deadlines, death.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "millrace/connect/hub.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/coroutine.hpp"

namespace millrace::message {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::Task;
using Bytes = std::vector<std::byte>;

Deadline soon() { return Deadline::after(40s); }

struct Pair {
    explicit Pair(const ChannelOptions& options) {
        static int number = 0;
        const auto address =
            connect::Address::parse("unix:@millrace-channel-coroutine-" + std::to_string(getpid()) +
                                    "-" + std::to_string(++number));
        Listener listener = Listener::listen(address, options);
        std::thread other{[&] { far.emplace(connect(address, options, soon())); }};
        near.emplace(listener.accept(soon()));
        other.join();
    }
    std::optional<Channel> near, far;
};

Bytes message_of(std::uint32_t number, std::size_t most) {
    Bytes bytes(4 + number * 37 % most, static_cast<std::byte>(number));
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
}

Task<> answer(Channel& channel) {
    Status status = Status::ok;
    for (Bytes message;;) {
        status = co_await receive(channel, message, soon());
        if (status != Status::ok) break;
        EXPECT_EQ(co_await send(channel, message, soon()), Status::ok);
    }
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(co_await finish(channel, soon()), Status::ok);
}

Task<> ask(Channel& channel, connect::Hub& hub) {
    for (std::uint32_t i = 0; i < 500; ++i) {
        const Bytes message = message_of(i, 300);
        EXPECT_EQ(co_await send(
                      channel, message.size(),
                      [&](std::span<std::byte> room) {
                          std::memcpy(room.data(), message.data(), room.size());
                      },
                      soon()),
                  Status::ok);
        Bytes got;
        EXPECT_EQ(
            co_await receive(
                channel,
                [&](std::span<const std::byte> bytes) { got.assign(bytes.begin(), bytes.end()); },
                soon()),
            Status::ok);
        EXPECT_EQ(got, message) << i;
    }
    EXPECT_EQ(co_await finish(channel, soon()), Status::ok);
    Bytes none;
    EXPECT_EQ(co_await receive(channel, none, soon()), Status::closed);
    hub.stop();
}

TEST(ChannelCoroutine, AsksAndAnswersInOneThread) {
    Pair pair{{.ring_bytes = 1024}};
    connect::Hub hub;
    base::spawn(hub, answer(*pair.far));
    base::spawn(hub, ask(*pair.near, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

Task<> send_many(Channel& channel, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
        const Bytes message = message_of(i, 300);
        const Status status = co_await send(channel, message, soon());
        EXPECT_EQ(status, Status::ok) << i;
        if (status != Status::ok) co_return;
    }
}

Task<> receive_many(Channel& channel, std::uint32_t count, int& running, connect::Hub& hub) {
    Bytes message;
    for (std::uint32_t i = 0; i < count; ++i) {
        const Status status = co_await receive(channel, message, soon());
        EXPECT_EQ(status, Status::ok) << i;
        if (status != Status::ok) break;
        EXPECT_EQ(message, message_of(i, 300)) << i;
        // A reader that is slow at times: messages lie there while the writer waits for room.
        if (i % 100 == 0) co_await base::sleep_for(2ms);
    }
    if (--running == 0) hub.stop();
}

TEST(ChannelCoroutine, SendsInOneTaskAndReceivesInAnotherAtBothEnds) {
    constexpr std::uint32_t count = 1000;
    Pair pair{{.ring_bytes = 1024}};
    connect::Hub hub;
    int running = 2;
    for (Channel* const channel : {&*pair.near, &*pair.far}) {
        base::spawn(hub, send_many(*channel, count));
        base::spawn(hub, receive_many(*channel, count, running, hub));
    }
    EXPECT_EQ(hub.run(soon()), Status::closed);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(ChannelCoroutine, AnswersAtTheDeadlineAndHandsExceptionsUp) {
    Pair pair{{.ring_bytes = 1024}};
    connect::Hub hub;
    base::spawn(hub, [](Pair& both, connect::Hub& in) -> Task<> {
        Bytes message;
        EXPECT_EQ(co_await receive(*both.near, message, Deadline::after(5ms)), Status::timed_out);
        const Bytes large(both.near->max_piece() + 1);
        EXPECT_EQ(co_await send(*both.near, large, soon()), Status::too_large);
        Status status = Status::ok;
        const Bytes small(100);
        while (status == Status::ok) {
            status = co_await send(*both.near, small, Deadline::after(5ms));
        }
        EXPECT_EQ(status, Status::timed_out);
        bool thrown = false;
        try {
            (void)co_await receive(
                *both.far,
                [](std::span<const std::byte>) { throw std::runtime_error{"on purpose"}; }, soon());
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        EXPECT_TRUE(thrown);
        // It stays the next one.
        EXPECT_EQ(co_await receive(*both.far, message, soon()), Status::ok);
        EXPECT_EQ(message, small);
        in.stop();
    }(pair, hub));
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(ChannelCoroutine, HandsUpWhatIsThrownWhenItWasSuspended) {
    Pair pair{{.ring_bytes = 1024}};
    connect::Hub hub;
    base::spawn(hub, [](Pair& both) -> Task<> {
        (void)co_await receive(
            *both.near, [](std::span<const std::byte>) { throw std::runtime_error{"on purpose"}; },
            soon());
    }(pair));
    while (hub.turn() != 0) {
    }
    ASSERT_EQ(pair.far->send(Bytes(10), soon()), Status::ok);
    EXPECT_THROW((void)hub.run(soon()), std::runtime_error);
    EXPECT_EQ(hub.size(), 0U);
}

TEST(ChannelCoroutine, TellsThatThePeerIsLost) {
    Pair pair{{.ring_bytes = 1024}};
    connect::Hub hub;
    base::spawn(hub, [](Channel& channel, connect::Hub& in) -> Task<> {
        Bytes message;
        EXPECT_EQ(co_await receive(channel, message, soon()), Status::peer_lost);
        in.stop();
    }(*pair.near, hub));
    while (hub.turn() != 0) {
    }
    pair.far.reset();
    EXPECT_EQ(hub.run(soon()), Status::closed);
}

TEST(ChannelCoroutine, AcceptsChannelsAndServesEachInATask) {
    constexpr int clients = 8;
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"));
    connect::Hub hub;
    const auto serve = [](Channel channel) -> Task<> {
        Bytes message;
        while (co_await receive(channel, message, soon()) == Status::ok) {
            EXPECT_EQ(co_await send(channel, message, soon()), Status::ok);
        }
    };
    base::spawn(hub, [](Listener& from, connect::Hub& in, const auto& serve_one) -> Task<> {
        for (;;) {
            auto accepted = co_await accept(from, Deadline::never());
            if (accepted.end.has_value()) base::spawn(in, serve_one(std::move(*accepted.end)));
        }
    }(listener, hub, serve));
    std::thread others{[&] {
        std::vector<Channel> channels;
        for (int i = 0; i < clients; ++i) {
            channels.push_back(connect(listener.address(), {.ring_bytes = 4096}, soon()));
        }
        for (std::uint32_t i = 0; i < 20; ++i) {
            for (Channel& channel : channels) {
                const Bytes message = message_of(i, 300);
                Bytes got;
                EXPECT_EQ(channel.send(message, soon()), Status::ok);
                EXPECT_EQ(channel.receive(got, soon()), Status::ok);
                EXPECT_EQ(got, message);
            }
        }
        hub.stop();
    }};
    EXPECT_EQ(hub.run(soon()), Status::closed);
    others.join();
}

}  // namespace
}  // namespace millrace::message
