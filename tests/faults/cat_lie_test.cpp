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
#include "millrace/stream/socket.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using testing::HasSubstr;

/// As tools/cat/protocol.hpp lays it out.
struct Note {
    std::uint32_t magic = 0x3243524d;
    std::uint32_t kind = 0;
    std::uint32_t flags = 1;
    std::uint32_t error = 0;
    std::uint64_t total = 0;
    std::uint64_t checksum = 0;
};

base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{20}); }

template <class Value>
void say(stream::Socket& socket, const Value& value) {
    ASSERT_EQ(socket.write_all(std::as_bytes(std::span{&value, 1}), soon()), base::Status::ok);
}

TEST(CatListen, FailsIfTheChecksumIsNotWhatWasSentThoughNobodyAskedForOne) {
    const test::TemporaryFolder folder;
    const std::string address = "unix:" + folder.path("socket");
    ChildProcess receiver = ChildProcess::start_program(
        {"sh", "-c", "exec \"$0\" cat listen \"$1\" 2>&1", MILLRACE_COMMAND, address});
    auto socket =
        stream::connect(connect::Address::parse(address), stream::SocketOptions{}, soon());
    say(socket, Note{.kind = 1});
    std::vector<std::byte> hello(sizeof(Note));
    ASSERT_EQ(socket.receive(hello, 0, stream::ReceiveFlags::wait_all), base::Status::ok);
    stream::Completion done;
    ASSERT_EQ(socket.wait(done, soon()), base::Status::ok);
    const char data[] = "abc";
    say(socket, std::uint64_t{sizeof data});
    say(socket, data);
    say(socket, std::uint64_t{0});
    say(socket, Note{.kind = 2, .total = sizeof data, .checksum = 0});
    EXPECT_THAT(receiver.read_all(), HasSubstr("what was received is not what it sent"));
    EXPECT_TRUE(receiver.wait().exited_with(1));
}

}  // namespace
}  // namespace millrace::faults
