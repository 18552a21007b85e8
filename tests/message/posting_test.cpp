// What ends hand to the device, counted below the library: lists of the requests that a dispatcher
// has together, and the calls that let the device move on while its memory alone is looked at.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "message/serving.hpp"
#include "millrace/base/detail/yielding.hpp"
#include "millrace/message/dispatcher.hpp"
#include "support/counted_posts.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

/// Eight ports of a dispatcher that turns when it is told to, and a server that does.
class PostedTogether : public testing::TestWithParam<Way> {
  protected:
    static ServerOptions server_options() {
        ServerOptions options = options_of_server(GetParam());
        options.tuning.carrier = ring::Carrier::post;
        options.ring_bytes = std::size_t{64} << 10;  // by SEND: credits for 128
        return options;
    }
    DispatcherOptions dispatcher_options() {
        DispatcherOptions options;
        options.client.requests = GetParam().requests;
        options.client.answers = GetParam().answers;
        options.client.tuning.carrier = ring::Carrier::post;
        options.client.endpoint = counted_.endpoint;
        options.client.window = 256;
        return options;
    }
    void submit(Port& port, std::uint64_t whose, std::uint64_t number) {
        std::uint64_t id = 0;
        ASSERT_EQ(port.submit(content(whose, number, 40), id), Status::ok);
    }
    /// Until all that was submitted has its answer, each its own.
    void take(std::span<Port> ports, std::size_t expected) {
        std::size_t answered = 0;
        for (const Deadline deadline = patience(); answered < expected && !deadline.expired();) {
            (void)running_.server.turn(echo);
            (void)dispatcher_.turn();
            for (std::uint64_t whose = 0; whose < ports.size(); ++whose) {
                while (ports[whose].poll([&](const Answer& answer) {
                    EXPECT_EQ(answer.outcome, Outcome::ok);
                    std::uint64_t asked_by = ~std::uint64_t{0};
                    ASSERT_EQ(answer.payload.size(), 40U);
                    std::memcpy(&asked_by, answer.payload.data(), sizeof asked_by);
                    EXPECT_EQ(asked_by, whose);
                }) == Status::ok) {
                    ++answered;
                }
            }
        }
        EXPECT_EQ(answered, expected);
    }

    test::CountedEndpoint counted_;
    Running running_{server_options()};
    Dispatcher dispatcher_ = Dispatcher::connect(std::array{running_.server.address()},
                                                 dispatcher_options(), patience());
};
INSTANTIATE_TEST_SUITE_P(Every, PostedTogether,
                         testing::Values(Way{Polling::flag}, Way{Polling::dense},
                                         Way{Polling::flag, Transfer::send, Transfer::write},
                                         Way{Polling::dense, Transfer::send, Transfer::send},
                                         Way{Polling::flag, Transfer::send, Transfer::send,
                                             Receives::shared}),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(PostedTogether, TheRequestsOfATurnTakeFewMessages) {
    constexpr std::uint64_t ports_in_all = 8;
    constexpr std::uint64_t of_each = 4;
    constexpr std::uint64_t requests = ports_in_all * of_each;
    std::vector<Port> ports;
    for (std::uint64_t i = 0; i < ports_in_all; ++i) ports.push_back(dispatcher_.port());
    running_.stop();
    // Whoever has slept is awake behind this one.
    submit(ports[0], 0, 0);
    take(ports, 1);
    const DispatcherStats before = dispatcher_.stats();
    counted_.posts.clear();
    for (std::uint64_t number = 0; number < of_each; ++number) {
        for (std::uint64_t whose = 0; whose < ports_in_all; ++whose) {
            submit(ports[whose], whose, number);
        }
    }
    EXPECT_EQ(dispatcher_.turn(), 2 * requests) << "taken from ports, and sent";
    const DispatcherStats after = dispatcher_.stats();
    EXPECT_EQ(after.requests - before.requests, requests);
    EXPECT_EQ(after.batches - before.batches, 1U);
    const test::Posts& posts = counted_.posts;
    const bool is_dense = GetParam().polling == Polling::dense;
    if (GetParam().requests == Transfer::send) {
        EXPECT_LE(posts.send, requests / 4) << "as many in each as a receive has room for";
        EXPECT_EQ(posts.write, 0U);
        EXPECT_LT(posts.signaled, requests / 4);
    } else {
        // One for a message of all, one more where the ring ends, and one for the byte.
        EXPECT_EQ(posts.send, 0U);
        EXPECT_LE(posts.write, is_dense ? 3U : 2U);
        EXPECT_EQ(posts.doorbells, posts.write);
    }
    take(ports, requests);
}

TEST_P(PostedTogether, MoreThanHasSlotsOrCreditsAreSentAndAnsweredAll) {
    std::vector<Port> ports;
    for (std::uint64_t i = 0; i < 3; ++i) ports.push_back(dispatcher_.port({.window = 64}));
    running_.stop();
    for (std::uint64_t round = 0; round < 20; ++round) {
        for (std::uint64_t number = 0; number < 64; ++number) {
            for (std::uint64_t whose = 0; whose < ports.size(); ++whose) {
                submit(ports[whose], whose, number);
            }
        }
        take(ports, 64 * ports.size());
    }
}

/// A client and a server that post, whose polls are counted.
TEST(Looking, AtMemoryAloneLetsTheDeviceMoveOn) {
    for (const Way& way : every_ring_way) {
        SCOPED_TRACE(name_of(way));
        chosen_way() = way;
        test::CountedEndpoint at_server;
        test::CountedEndpoint at_client;
        ServerOptions server_options = options_of_server(way);
        server_options.tuning.carrier = ring::Carrier::post;
        server_options.endpoint = at_server.endpoint;
        Running running{server_options};
        ClientOptions options;
        options.tuning.carrier = ring::Carrier::post;
        options.endpoint = at_client.endpoint;
        Client client = running.connect(options);
        Bytes answer;
        ASSERT_EQ(client.call(content(1, 1, 40), answer, patience()), Outcome::ok);
        running.stop();
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(content(1, 2, 40), id), Status::ok);
        constexpr std::uint64_t looks = 640;
        const base::WaitsByPolicy here;  // or each vain look may give the processor away
        at_client.posts.clear();
        for (std::uint64_t i = 0; i < looks; ++i) {
            ASSERT_EQ(client.poll([](const Answer&) {}), Status::empty);
        }
        EXPECT_GE(at_client.posts.polls, looks / 8);
        (void)running.server.turn(echo);
        while (client.poll([](const Answer&) {}) == Status::empty) (void)running.server.turn(echo);
        at_server.posts.clear();
        for (std::uint64_t i = 0; i < looks; ++i) (void)running.server.turn(echo);
        EXPECT_GE(at_server.posts.polls, looks / 16);
        // A wait looks more often than it looks around.
        ASSERT_EQ(client.submit(content(1, 3, 40), id), Status::ok);
        at_client.posts.clear();
        // By the shortest look there is, which a wait begins with.
        for (const Deadline end = patience(); at_client.posts.polls == 0 && !end.expired();) {
            EXPECT_EQ(client.wait([](const Answer&) {}, Deadline::after(1ms)), Status::timed_out);
        }
        EXPECT_GT(at_client.posts.polls, 0U);
        chosen_way() = {};
    }
}

}  // namespace
}  // namespace millrace::message
