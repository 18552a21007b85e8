// The first message of a connection finds its memory mapped and made: of thousands that are idle,
// any may be the next one, and waits for nothing of that.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "millrace/message/channel.hpp"
#include "support/child_process.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using millrace::test::ChildProcess;

constexpr std::size_t counted_channels = 64;

Deadline end_of_first_use() { return Deadline::after(std::chrono::seconds{40}); }

/// Page faults of this thread so far that read no file.
long page_faults() {
    rusage use{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &use), 0);
    return use.ru_minflt;
}

/// Sends 64 bytes; the page faults that it took.
long faults_of_sending(Channel& channel) {
    const std::array<std::byte, 64> bytes{};
    const long before = page_faults();
    const Status status = channel.try_send(std::span<const std::byte>{bytes});
    const long after = page_faults();
    EXPECT_EQ(status, Status::ok);
    return after - before;
}

Status receive_one(Channel& channel) {
    std::array<std::byte, 64> bytes{};
    std::size_t size = 0;
    return channel.receive(std::span<std::byte>{bytes}, size, end_of_first_use());
}

TEST(FirstUse, OfAChannelTakesNoPageFaults) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's own memory takes page faults";
#endif
    ChildProcess child =
        ChildProcess::start("message_first_use", {std::to_string(counted_channels)});
    const auto address = connect::Address::parse(child.read_line().value_or(""));
    std::vector<Channel> channels;
    while (channels.size() != counted_channels + 1) {
        channels.push_back(connect(address, {.ring_bytes = 4096}, end_of_first_use()));
    }
    if (channels.front().explain().find("carrier: store") == std::string::npos) {
        GTEST_SKIP() << "the device has no memory of the peer's to map";
    }
    long ours = 0;
    for (std::size_t i = 0; i != channels.size(); ++i) {
        // Longer than the peer spins: it is to be woken.
        std::this_thread::sleep_for(std::chrono::milliseconds{2});
        const long faults = faults_of_sending(channels[i]);
        if (i != 0) ours += faults;  // the first one is the process's
        ASSERT_EQ(receive_one(channels[i]), Status::ok) << i;
    }
    // Without what connecting makes: 1.6 for each of this end's, and one of the other's.
    EXPECT_LE(ours, static_cast<long>(counted_channels / 4));
    const long theirs = std::stol(child.read_line().value_or("-1"));
    EXPECT_GE(theirs, 0);
    EXPECT_LE(theirs, static_cast<long>(counted_channels / 4));
    EXPECT_TRUE(child.wait().success());
}

/// channels: accepts one more and answers a message on each, one behind the other.
MILLRACE_CHILD(message_first_use) {
    try {
        Listener listener =
            Listener::listen(connect::Address::parse("127.0.0.1:0"), {.ring_bytes = 4096});
        millrace::test::say(listener.address().to_string());
        const std::size_t count = std::stoul(arguments.at(0)) + 1;
        std::vector<Channel> channels;
        while (channels.size() != count) channels.push_back(listener.accept(end_of_first_use()));
        long faults = 0;
        for (std::size_t i = 0; i != count; ++i) {
            if (receive_one(channels[i]) != Status::ok) return 2;
            const long taken = faults_of_sending(channels[i]);
            if (i != 0) faults += taken;
        }
        millrace::test::say(std::to_string(faults));
        return 0;
    } catch (const base::Error& error) {
        millrace::test::say(error.what());
        return 1;
    }
}

}  // namespace
}  // namespace millrace::message
