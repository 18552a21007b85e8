// A program whose standard streams are closed, as a daemon's are: what it prints must reach neither
// the device's memory nor its sockets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "message/patience.hpp"
#include "millrace/message/channel.hpp"
#include "support/child_process.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;

TEST(ClosedStandardStreams, StayClosedWhateverIsOpened) {
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"));
    ChildProcess child =
        ChildProcess::start("talk_without_streams", {listener.address().to_string()});
    Channel channel = listener.accept(patience());
    std::vector<std::byte> message;
    ASSERT_EQ(channel.receive(message, patience()), Status::ok);
    EXPECT_EQ(channel.send(message, patience()), Status::ok);
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(talk_without_streams) {
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(number);
    const Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"));
    Channel channel = message::connect(connect::Address::parse(arguments[0]), {}, patience());
    std::vector<std::byte> message(100);
    if (channel.send(message, patience()) != Status::ok) return 4;
    if (channel.receive(message, patience()) != Status::ok) return 5;
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(number, F_GETFD) >= 0) return 10 + number;
    }
    return 0;
}

}  // namespace
}  // namespace millrace::message
