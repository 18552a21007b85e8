// Connecting without waiting: both ends in one thread, in loops and coroutines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/stream/coroutine.hpp"
#include "pair.hpp"
#include "support/failed_connect.hpp"
#include "support/readable.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using base::ErrorCode;
using base::Status;
using test::code_of_failure;
using namespace std::chrono_literals;

void expect_joined(Socket& near, Socket& far) {
    ASSERT_EQ(near.write_all(pattern(100, 3), patience()), Status::ok);
    Bytes into(100);
    std::size_t size = 0;
    ASSERT_EQ(far.read_some(into, size, patience()), Status::ok);
    EXPECT_EQ(size, 100U);
    EXPECT_TRUE(is_right(into, 0, 3));
}

class StreamConnectors : public testing::TestWithParam<bool> {
  protected:
    [[nodiscard]] static connect::Address address() {
        return GetParam() ? connect::Address::parse("127.0.0.1:0") : unused_address();
    }
};
INSTANTIATE_TEST_SUITE_P(By, StreamConnectors, testing::Bool(), [](const auto& chosen) {
    return std::string{chosen.param ? "tcp" : "unix"};
});

TEST_P(StreamConnectors, ConnectInTheThreadThatAccepts) {
    Listener listener = Listener::listen(address());
    Connector connector{listener.address()};
    std::optional<Socket> near;
    std::optional<Socket> far;
    ASSERT_TRUE(test::connects_in_loop(connector, listener, near, far));
    expect_joined(*near, *far);
    EXPECT_EQ(far->close(patience()), Status::ok);
}

TEST(StreamConnector, TriesUntilSomebodyListens) {
    const connect::Address free = unused_address();
    Connector connector{free};
    for (int i = 0; i < 4; ++i) {
        EXPECT_FALSE(connector.try_connect().has_value());
        ASSERT_TRUE(test::becomes_readable(connector.descriptor(), 40s));
    }
    Listener listener = Listener::listen(free);
    std::optional<Socket> near;
    std::optional<Socket> far;
    ASSERT_TRUE(test::connects_in_loop(connector, listener, near, far));
    expect_joined(*near, *far);
}

/// While it lives, the process has no descriptor left.
class NoDescriptors {
  public:
    NoDescriptors() {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
        rlimit few = before_;
        few.rlim_cur = 256;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        for (int one = dup(STDIN_FILENO); one >= 0; one = dup(STDIN_FILENO)) taken_.push_back(one);
    }
    NoDescriptors(const NoDescriptors&) = delete;
    NoDescriptors& operator=(const NoDescriptors&) = delete;
    ~NoDescriptors() {
        for (const int one : taken_) ::close(one);
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
    }

  private:
    rlimit before_{};
    std::vector<int> taken_;
};

TEST(StreamConnector, NamesTheDescriptorsThatAreMissing) {
    Pair pair;  // the endpoint has its own
    Listener listener = Listener::listen(unused_address());
    {
        const NoDescriptors none;
        try {
            (void)stream::connect(listener.address(), SocketOptions{}, patience());
            ADD_FAILURE() << "it has connected without a descriptor";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::resource_exhausted) << error.what();
            EXPECT_THAT(error.what(), testing::HasSubstr("raise the limit of open files"));
        }
        EXPECT_THROW((void)pair.near->descriptor(), base::Error);
    }
    // Nothing is broken by that.
    EXPECT_GE(pair.near->descriptor(), 0);
    const Bytes bytes = pattern(100, 1);
    Bytes into(100);
    std::size_t size = 0;
    ASSERT_EQ(pair.near->write_all(bytes, patience()), Status::ok);
    ASSERT_EQ(pair.far->read_some(into, size, patience()), Status::ok);
    EXPECT_EQ(into, bytes);
}

TEST(StreamConnector, SaysHowFarItCame) {
    const connect::Address free = unused_address();
    std::string text;
    Connector early{free};
    EXPECT_FALSE(early.try_connect().has_value());
    EXPECT_EQ(code_of_failure(early, Deadline::now(), text), ErrorCode::refused);
    EXPECT_THAT(text, testing::HasSubstr("nothing listens there"));
    Listener listener = Listener::listen(free);
    Connector late{free};
    EXPECT_FALSE(late.try_connect().has_value());
    EXPECT_EQ(code_of_failure(late, Deadline::after(2ms), text), ErrorCode::timed_out);
    // A peer whose link stands, and who says nothing more.
    connect::Listener silent = connect::Listener::listen(
        unused_address(), {.service = "byte stream", .service_version = 4});
    Connector linked{silent.address()};
    std::optional<connect::Link> link;
    while (!link) {
        EXPECT_FALSE(linked.try_connect().has_value());
        link = silent.try_accept();
    }
    EXPECT_EQ(code_of_failure(linked, Deadline::after(20ms), text), ErrorCode::timed_out);
}

TEST_P(StreamConnectors, AreToldWhyTheyAreRefused) {
    Listener listener = Listener::listen(address(), in_mode(Mode::direct));
    Connector connector{listener.address(), in_mode(Mode::indirect)};
    std::optional<Socket> far;
    try {
        while (!far) {
            (void)listener.try_accept();
            far = connector.try_connect();
        }
        FAIL() << "they agreed";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::refused);
        EXPECT_THAT(error.what(), testing::HasSubstr("its mode is direct"));
    }
}

TEST_P(StreamConnectors, ThatGiveUpLeaveTheListenerToOthers) {
    Listener listener = Listener::listen(address());
    for (int steps = 0; steps < 6; ++steps) {
        Connector given_up{listener.address()};
        for (int i = 0; i < steps; ++i) {
            (void)given_up.try_connect();
            (void)listener.try_accept();
        }
    }
    Connector connector{listener.address()};
    std::optional<Socket> far;
    // One that had come far enough before it gave up is accepted, too.
    std::vector<Socket> accepted;
    while (!far) {
        if (std::optional<Socket> near = listener.try_accept()) {
            accepted.push_back(std::move(*near));
        }
        far = connector.try_connect();
    }
    ASSERT_EQ(far->write_all(pattern(100, 3), patience()), Status::ok);
    Bytes into(100);
    std::size_t size = 0;
    for (const Deadline deadline = patience(); size == 0 && !deadline.expired();) {
        if (std::optional<Socket> near = listener.try_accept()) {
            accepted.push_back(std::move(*near));
        }
        for (Socket& near : accepted) {
            if (size == 0) (void)near.try_read_some(into, size);
        }
    }
    EXPECT_EQ(size, 100U);
    EXPECT_TRUE(is_right(into, 0, 3));
}

TEST_P(StreamConnectors, AreAwaitedBesideTheirListener) {
    Listener listener = Listener::listen(address());
    Connector connector{listener.address()};
    connect::Hub hub;
    std::optional<Socket> near;
    std::optional<Socket> far;
    const auto both_there = [&] {
        if (near && far) hub.stop();
    };
    const auto accepting = [&]() -> base::Task<> {
        auto accepted = co_await accept(listener, patience());
        EXPECT_EQ(accepted.status, Status::ok);
        near = std::move(accepted.end);
        both_there();
    };
    const auto connecting = [&]() -> base::Task<> {
        auto connected = co_await connect(connector, patience());
        EXPECT_EQ(connected.status, Status::ok);
        far = std::move(connected.end);
        both_there();
    };
    base::spawn(hub, connecting());
    base::spawn(hub, accepting());
    EXPECT_EQ(hub.run(patience()), Status::closed);
    ASSERT_TRUE(near && far);
    expect_joined(*near, *far);
}

TEST_P(StreamConnectors, WhoseTimeIsOverInATaskAreCancelledByTheirEnd) {
    Listener listener = Listener::listen(address());
    connect::Hub hub;
    const auto connecting = [&]() -> base::Task<> {
        Connector connector{listener.address()};
        const auto connected = co_await connect(connector, Deadline::after(3ms));
        EXPECT_EQ(connected.status, Status::timed_out);
        EXPECT_FALSE(connected.end.has_value());
        hub.stop();
    };
    base::spawn(hub, connecting());
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

}  // namespace
}  // namespace millrace::stream
