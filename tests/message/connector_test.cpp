// Channels that connect without waiting: in the thread that accepts them, by descriptors alone, and
// by coroutines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/connect/hub.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/coroutine.hpp"
#include "support/failed_connect.hpp"
#include "support/readable.hpp"

namespace millrace::message {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::ErrorCode;
using base::Status;
using test::code_of_failure;

Deadline patience_to_connect() { return Deadline::after(40s); }

connect::Address address_to_connect_to() {
    static int number = 0;
    return connect::Address::parse("unix:@millrace-channel-connector-" + std::to_string(getpid()) +
                                   "-" + std::to_string(++number));
}

void expect_talk(Channel& near, Channel& far) {
    const std::vector<std::byte> sent(100, std::byte{3});
    std::vector<std::byte> received;
    ASSERT_EQ(near.send(sent, patience_to_connect()), Status::ok);
    ASSERT_EQ(far.receive(received, patience_to_connect()), Status::ok);
    EXPECT_EQ(received, sent);
    ASSERT_EQ(far.send(sent, patience_to_connect()), Status::ok);
    ASSERT_EQ(near.receive(received, patience_to_connect()), Status::ok);
    EXPECT_EQ(received, sent);
}

TEST(ChannelConnector, ConnectsInTheThreadThatAccepts) {
    for (const auto& where : {connect::Address::parse("127.0.0.1:0"), address_to_connect_to()}) {
        Listener listener = Listener::listen(where);
        Connector connector{listener.address()};
        std::optional<Channel> near;
        std::optional<Channel> far;
        ASSERT_TRUE(test::connects_in_loop(connector, listener, near, far));
        ASSERT_NO_FATAL_FAILURE(expect_talk(*near, *far));
    }
}

TEST(ChannelConnector, TriesUntilSomebodyListens) {
    const connect::Address free = address_to_connect_to();
    Connector connector{free};
    for (int i = 0; i < 4; ++i) {
        EXPECT_FALSE(connector.try_connect().has_value());
        ASSERT_TRUE(test::becomes_readable(connector.descriptor(), 40s));
    }
    Listener listener = Listener::listen(free);
    std::optional<Channel> near;
    std::optional<Channel> far;
    ASSERT_TRUE(test::connects_in_loop(connector, listener, near, far));
    ASSERT_NO_FATAL_FAILURE(expect_talk(*near, *far));
}

TEST(ChannelConnector, ConnectsManySideBySide) {
    Listener listener = Listener::listen(address_to_connect_to(), {.ring_bytes = 4096});
    std::vector<Connector> connectors;
    for (int i = 0; i < 8; ++i) {
        connectors.emplace_back(listener.address(), ChannelOptions{.ring_bytes = 4096});
    }
    std::vector<std::optional<Channel>> far(connectors.size());
    std::vector<Channel> near;
    std::size_t connected = 0;
    const Deadline deadline = patience_to_connect();
    while (connected < far.size() || near.size() < far.size()) {
        ASSERT_FALSE(deadline.expired()) << connected << " and " << near.size();
        for (std::size_t i = 0; i != far.size(); ++i) {
            if (far[i].has_value()) continue;
            far[i] = connectors[i].try_connect();
            if (far[i].has_value()) ++connected;
        }
        if (auto channel = listener.try_accept()) near.push_back(std::move(*channel));
    }
    std::size_t answered = 0;
    const std::vector<std::byte> question(10, std::byte{7});
    for (auto& channel : far) ASSERT_EQ(channel->send(question, patience_to_connect()), Status::ok);
    for (Channel& channel : near) {
        std::vector<std::byte> received;
        ASSERT_EQ(channel.receive(received, patience_to_connect()), Status::ok);
        if (received == question) ++answered;
    }
    EXPECT_EQ(answered, far.size());
}

TEST(ChannelConnector, SaysHowFarItCame) {
    const connect::Address free = address_to_connect_to();
    std::string text;
    Connector early{free};
    EXPECT_FALSE(early.try_connect().has_value());
    EXPECT_EQ(code_of_failure(early, Deadline::now(), text), ErrorCode::refused);
    EXPECT_THAT(text, testing::HasSubstr("nothing listens there"));
    // A peer whose link stands, and who says nothing more.
    connect::Listener silent = connect::Listener::listen(
        address_to_connect_to(), {.service = "message channel", .service_version = 4});
    Connector linked{silent.address()};
    std::optional<connect::Link> link;
    while (!link) {
        EXPECT_FALSE(linked.try_connect().has_value());
        link = silent.try_accept();
    }
    EXPECT_EQ(code_of_failure(linked, Deadline::after(20ms), text), ErrorCode::timed_out);
}

TEST(ChannelConnector, IsToldWhyItIsRefused) {
    Listener listener = Listener::listen(address_to_connect_to(), {.max_peer_ring_bytes = 4096});
    Connector connector{listener.address(), {.ring_bytes = 8192}};
    std::optional<Channel> far;
    try {
        const Deadline deadline = patience_to_connect();
        while (!far && !deadline.expired()) {
            (void)listener.try_accept();
            far = connector.try_connect();
        }
        ADD_FAILURE() << "it was not refused";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::refused) << error.what();
        EXPECT_THAT(error.what(), testing::HasSubstr("8192"));
    }
}

base::Task<> connect_one_channel(Connector& connector, std::optional<Channel>& far) {
    auto connected = co_await connect(connector, patience_to_connect());
    EXPECT_EQ(connected.status, Status::ok);
    far = std::move(connected.end);
}

base::Task<> accept_one_channel(Listener& listener, std::optional<Channel>& near) {
    auto accepted = co_await accept(listener, patience_to_connect());
    EXPECT_EQ(accepted.status, Status::ok);
    near = std::move(accepted.end);
}

TEST(ChannelConnector, IsAwaitedByACoroutine) {
    connect::Hub hub;
    Listener listener = Listener::listen(address_to_connect_to());
    Connector connector{listener.address()};
    std::optional<Channel> near;
    std::optional<Channel> far;
    base::spawn(hub, accept_one_channel(listener, near));
    base::spawn(hub, connect_one_channel(connector, far));
    const Deadline deadline = patience_to_connect();
    while ((!near || !far) && !deadline.expired()) {
        if (hub.turn(64) == 0) (void)hub.rest(deadline);
    }
    ASSERT_TRUE(near.has_value() && far.has_value());
    ASSERT_NO_FATAL_FAILURE(expect_talk(*near, *far));
}

}  // namespace
}  // namespace millrace::message
