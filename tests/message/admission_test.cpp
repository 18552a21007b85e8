// Channels with a secret, and with a budget for what a listener registers.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "message/patience.hpp"
#include "millrace/base/error.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::message {
namespace {

using base::Status;
using connect::Secret;

std::string failure_of(const connect::Address& address, const ChannelOptions& options) {
    try {
        (void)connect(address, options, patience());
        return "connected";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
        return error.what();
    }
}

TEST(ChannelAdmission, TakesWhoKnowsTheSecretAndRefusesOthers) {
    ChannelOptions options;
    options.admission.secret = Secret{std::string_view{"a secret of both ends"}};
    ChannelOptions wrong;
    wrong.admission.secret = Secret{std::string_view{"another end's secret"}};
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    std::optional<Channel> accepted;
    std::thread accepting{[&] { accepted.emplace(listener.accept(patience())); }};
    EXPECT_NE(failure_of(listener.address(), wrong).find("this end does not know its secret"),
              std::string::npos);
    EXPECT_NE(failure_of(listener.address(), {}).find("this end has none"), std::string::npos);
    Channel channel = connect(listener.address(), options, patience());
    accepting.join();
    EXPECT_NE(channel.explain().find("secret"), std::string::npos);
    const std::vector<std::byte> sent(10, std::byte{1});
    std::vector<std::byte> got;
    EXPECT_EQ(channel.send(sent, patience()), Status::ok);
    EXPECT_EQ(accepted->receive(got, patience()), Status::ok);
    EXPECT_EQ(got, sent);
}

TEST(ChannelAdmission, TellsThePeerWhenThereIsNoMemoryLeftAndTakesTheNextThatFits) {
    ChannelOptions options;
    options.ring_bytes = 4096;
    options.carrier = ring::Carrier::post;
    options.admission.budget.registered_bytes = 24 * 1024;
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), options);
    ChannelOptions client;
    client.ring_bytes = 4096;
    client.carrier = ring::Carrier::post;
    std::string told;
    std::thread connecting{[&] {
        const Channel first = connect(listener.address(), client, patience());
        // A copy of its ring would be needed here, too.
        ChannelOptions large = client;
        large.ring_bytes = 64 * 1024;
        told = failure_of(listener.address(), large);
        const Channel last = connect(listener.address(), client, patience());
    }};
    { const Channel gone = listener.accept(patience()); }
    const Channel next = listener.accept(patience());
    connecting.join();
    EXPECT_NE(told.find("the peer refused: the listener registers 24576 bytes at most"),
              std::string::npos)
        << told;
}

}  // namespace
}  // namespace millrace::message
