// Why the other end is lost: each end says what happened, and not what a device makes of it,
// whether that process was killed or ended without a close.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "faults/ends.hpp"
#include "millrace/stream/socket.hpp"
#include "support/child_process.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

constexpr std::uint64_t items = 8;

// arguments: kind, "produces" or "consumes", address, "exits" or "is killed".
MILLRACE_CHILD(faults_leaves_without_a_close) {
    const Setup setup{arguments[2]};
    std::unique_ptr<Out> out;
    std::unique_ptr<In> in;
    if (arguments[1] == "produces") {
        out = make_out(arguments[0], setup, false, Deadline::after(20s));
        for (std::uint64_t number = 0; number != items; ++number) {
            if (out->put(number, Deadline::after(20s)) != Status::ok) say("did not put");
        }
    } else {
        in = make_in(arguments[0], setup, false, Deadline::after(20s));
    }
    say("is there");
    (void)hear();
    if (arguments[3] == "is killed") raise(SIGKILL);
    _exit(0);
}

struct Case {
    std::string kind;
    const char* how;
};

class ReasonsOf : public testing::TestWithParam<Case> {
  protected:
    ChildProcess start(const char* role, const std::string& address) {
        return ChildProcess::start("faults_leaves_without_a_close",
                                   {GetParam().kind, role, address, GetParam().how});
    }
    static void expect_reason(const std::string& failure) {
        EXPECT_NE(failure.find("its process ended"), std::string::npos) << failure;
        EXPECT_EQ(failure.find("GID"), std::string::npos) << failure;
    }
};

TEST_P(ReasonsOf, AConsumerAreTheEndOfItsProducersProcess) {
    const std::string address = unique_address();
    ChildProcess child = start("produces", address);
    const auto in = make_in(GetParam().kind, {address}, true, Deadline::after(20s));
    ASSERT_EQ(child.read_line(), "is there");
    EXPECT_EQ(in->failure(), "");
    ASSERT_TRUE(child.write_line("go"));
    Status status = Status::ok;
    bool right = false;
    for (std::uint64_t number = 0; status == Status::ok; ++number) {
        status = in->take(number, right, Deadline::after(20s));
    }
    ASSERT_EQ(status, Status::peer_lost);
    expect_reason(in->failure());
}

TEST_P(ReasonsOf, AProducerAreTheEndOfItsConsumersProcess) {
    const std::string address = unique_address();
    ChildProcess child = start("consumes", address);
    const auto out = make_out(GetParam().kind, {address}, true, Deadline::after(20s));
    ASSERT_EQ(child.read_line(), "is there");
    EXPECT_EQ(out->failure(), "");
    ASSERT_TRUE(child.write_line("go"));
    ASSERT_TRUE(child.wait().how != millrace::test::Exit::How::timed_out);
    Status status = Status::ok;
    for (std::uint64_t number = 0; status == Status::ok; ++number) {
        status = out->put(number, Deadline::after(20s));
    }
    ASSERT_EQ(status, Status::peer_lost);
    expect_reason(out->failure());
}

[[nodiscard]] std::vector<Case> cases() {
    std::vector<Case> all;
    for (const char* how : {"exits", "is killed"}) {
        for (const char* kind : kinds) all.push_back({kind, how});
        for (const char* kind : {"push2/event/push2", "pull/push/push", "push1/immediate/push",
                                 "push1/watermark/push+mover", "push1/pull/pull"}) {
            all.push_back({kind, how});
        }
    }
    return all;
}
INSTANTIATE_TEST_SUITE_P(Of, ReasonsOf, testing::ValuesIn(cases()), [](const auto& tested) {
    std::string name =
        test_name_of(tested.param.kind) + (tested.param.how[0] == 'e' ? "_exit" : "_kill");
    for (char& c : name) c = c == '+' ? '_' : c;
    return name;
});

TEST(ReasonsOfAStream, AreThatItsPeerWentBeforeTheEndOfIt) {
    const connect::Address address = connect::Address::parse(unique_address());
    const stream::SocketOptions options{.ring_bytes = 4096};
    auto listener = stream::Listener::listen(address, options);
    std::optional<stream::Socket> sender;
    std::thread other{
        [&] { sender.emplace(stream::connect(address, options, Deadline::after(20s))); }};
    auto receiver = listener.accept(Deadline::after(20s));
    other.join();
    // Of which the ring takes a quarter: the rest cannot have arrived when it closes.
    const std::vector<std::byte> bytes(16'384);
    ASSERT_EQ(sender->send(bytes, 1), Status::ok);
    // It gives nothing up; who goes away then does.
    ASSERT_EQ(sender->close(Deadline::now()), Status::timed_out);
    sender.reset();
    std::vector<std::byte> into(bytes.size());
    Status status = Status::ok;
    std::size_t size = 0;
    std::size_t all = 0;
    while (status == Status::ok) {
        status = receiver.read_some(into, size, Deadline::after(20s));
        all += size;
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_LT(all, bytes.size());
    EXPECT_EQ(
        receiver.failure(),
        "its socket ended without a goodbye: its process ended, or let go of its end without a "
        "close");
}

}  // namespace
}  // namespace millrace::faults
