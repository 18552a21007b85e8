// A sender that says to `millrace cat listen` that it sent something else than what arrived: as a
// device would that loses or changes bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/channel.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using testing::HasSubstr;

/// As tools/cat/protocol.hpp lays it out.
struct Note {
    std::uint32_t magic = 0x3143524d;
    std::uint32_t kind = 0;
    std::uint32_t flags = 1;
    std::uint32_t error = 0;
    std::uint64_t total = 0;
    std::uint64_t checksum = 0;
};

base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{20}); }

template <class Value>
void say(message::Channel& channel, const Value& value) {
    ASSERT_EQ(channel.send(std::as_bytes(std::span{&value, 1}), soon()), base::Status::ok);
}

TEST(CatListen, FailsIfTheChecksumIsNotWhatWasSentThoughNobodyAskedForOne) {
    const test::TemporaryFolder folder;
    const std::string address = "unix:" + folder.path("socket");
    ChildProcess receiver = ChildProcess::start_program(
        {"sh", "-c", "exec \"$0\" cat listen \"$1\" 2>&1", MILLRACE_COMMAND, address});
    auto channel = message::connect(connect::Address::parse(address), {}, soon());
    say(channel, Note{.kind = 1});
    std::vector<std::byte> hello;
    ASSERT_EQ(channel.receive(hello, soon()), base::Status::ok);
    const char data[] = "abc";
    say(channel, data);
    ASSERT_EQ(channel.send(std::span<const std::byte>{}, soon()), base::Status::ok);
    say(channel, Note{.kind = 2, .total = sizeof data, .checksum = 0});
    EXPECT_THAT(receiver.read_all(), HasSubstr("what was received is not what it sent"));
    EXPECT_TRUE(receiver.wait().exited_with(1));
}

}  // namespace
}  // namespace millrace::faults
