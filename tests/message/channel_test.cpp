// Channels between two processes, on the device that MILLRACE_DEVICE names (or the default one).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/message/channel.hpp"
#include "support/child_process.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::hear;
using test::say;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

/// Generous: it only ends what has failed.
Deadline patience() { return Deadline::after(30s); }

Bytes pattern(std::size_t size, unsigned seed) {
    Bytes bytes(size);
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
    for (std::byte& byte : bytes) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        byte = static_cast<std::byte>(state >> 56);
    }
    return bytes;
}

ChannelOptions with_ring(std::size_t bytes, std::uint64_t first_position = 0) {
    ChannelOptions options;
    options.ring_bytes = bytes;
    options.first_position = first_position;
    return options;
}

ChannelOptions options_of(const std::vector<std::string>& arguments) {
    return with_ring(arguments.size() > 0 ? std::stoull(arguments[0]) : 1 << 16,
                     arguments.size() > 1 ? std::stoull(arguments[1]) : 0);
}

/// A child that listens, and the channel to it. The child's first line is its address.
struct Pair {
    ChildProcess child;
    Channel channel;

    static Pair start(std::string_view name, std::size_t ring = 1 << 16,
                      std::uint64_t first_position = 0, std::vector<std::string> more = {}) {
        std::vector<std::string> arguments{std::to_string(ring), std::to_string(first_position)};
        arguments.insert(arguments.end(), more.begin(), more.end());
        ChildProcess process = ChildProcess::start(name, std::move(arguments));
        const auto address = process.read_line();
        if (!address) throw std::runtime_error{"the child did not listen"};
        Channel made = connect(connect::Address::parse(*address), with_ring(ring, first_position),
                               patience());
        return {std::move(process), std::move(made)};
    }
};

/// For children: listens, says where, and accepts one channel.
Channel accept_one(const std::vector<std::string>& arguments) {
    Listener listener =
        Listener::listen(connect::Address::parse("127.0.0.1:0"), options_of(arguments));
    say(listener.address().to_string());
    return listener.accept(patience());
}

// Sends back every message, whole, until the peer closes.
MILLRACE_CHILD(echo) {
    Channel channel = accept_one(arguments);
    Bytes message;
    while (true) {
        const Status status = channel.receive(message, patience());
        if (status == Status::closed) break;
        if (status != Status::ok) return 2;
        if (channel.send(message, patience()) != Status::ok) return 3;
    }
    return channel.close(patience()) == Status::ok ? 0 : 4;
}

TEST(Channel, EchoesEverySizeFrom0To300) {
    Pair pair = Pair::start("echo");
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

}  // namespace
}  // namespace millrace::message
