// Callables that write or read a message in place, and use the same end meanwhile, which they must
// not: the call says so, sends and takes nothing twice, and the end goes on.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/dispatcher.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;

std::span<const std::byte> bytes_of(const std::uint64_t& number) {
    return std::as_bytes(std::span{&number, 1});
}
std::uint64_t number_in(std::span<const std::byte> bytes) {
    std::uint64_t number = 0;
    EXPECT_EQ(bytes.size(), sizeof number);
    std::memcpy(&number, bytes.data(), sizeof number);
    return number;
}
void write(std::span<std::byte> room, std::uint64_t number) {
    std::memcpy(room.data(), &number, sizeof number);
}

/// `call()` throws an Error that names the callable.
template <class Call>
void expect_refused(Call&& call) {
    try {
        (void)call();
        ADD_FAILURE() << "nothing is said";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_NE(std::string{error.what()}.find("callable"), std::string::npos) << error.what();
    }
}

struct Channels {
    Channels() {
        auto listener = Listener::listen(unique_address(), {.ring_bytes = 1024});
        std::thread other{
            [&] { first.emplace(connect(listener.address(), {.ring_bytes = 1024}, patience())); }};
        second.emplace(listener.accept(patience()));
        other.join();
    }
    void pass(std::uint64_t number) {
        ASSERT_EQ(first->send(bytes_of(number), patience()), Status::ok);
        expect(number);
    }
    void expect(std::uint64_t number) {
        std::uint64_t found = 0;
        ASSERT_EQ(
            second->receive([&](std::span<const std::byte> bytes) { found = number_in(bytes); },
                            patience()),
            Status::ok);
        ASSERT_EQ(found, number);
    }
    void expect_nothing() {
        for (int look = 0; look != 100; ++look) {
            ASSERT_EQ(second->try_receive([](std::span<const std::byte>) {}), Status::empty);
        }
    }
    std::optional<Channel> first;
    std::optional<Channel> second;
};

TEST(NestedUse, OfAChannelThatSendsSendsWhatWasSentWithinAndNoMore) {
    Channels channels;
    for (std::uint64_t lap = 0; lap != 50; ++lap) {
        expect_refused([&] {
            return channels.first->try_send(8, [&](std::span<std::byte> room) {
                write(room, 999);
                ASSERT_EQ(channels.first->try_send(bytes_of(lap)), Status::ok);
            });
        });
        channels.expect(lap);
        channels.expect_nothing();
        channels.pass(lap);
    }
}

TEST(NestedUse, OfAChannelThatReceivesTakesWhatWasTakenWithinAndNoMore) {
    Channels channels;
    for (std::uint64_t lap = 0; lap != 50; ++lap) {
        ASSERT_EQ(channels.first->send(bytes_of(lap), patience()), Status::ok);
        ASSERT_EQ(channels.first->send(bytes_of(lap + 1), patience()), Status::ok);
        expect_refused([&] {
            return channels.second->receive(
                [&](std::span<const std::byte>) { channels.expect(lap); }, patience());
        });
        channels.expect(lap + 1);
        channels.pass(lap);
    }
}

/// What a client and a port have alike.
template <class End>
void expect_nested_use_to_be_refused(End& end) {
    const auto answer = [&](std::uint64_t id, std::uint64_t number) {
        ASSERT_EQ(end.wait(
                      [&](const Answer& one) {
                          EXPECT_EQ(one.id, id);
                          EXPECT_EQ(number_in(one.payload), number);
                      },
                      patience()),
                  Status::ok);
    };
    for (std::uint64_t lap = 0; lap != 100; ++lap) {
        std::uint64_t within = 0;
        std::uint64_t without = 0;
        expect_refused([&] {
            return end.submit(
                8,
                [&](std::span<std::byte> room) {
                    write(room, 999);
                    ASSERT_EQ(end.submit(bytes_of(lap), within), Status::ok);
                },
                without);
        });
        EXPECT_EQ(end.outstanding(), 1U);
        answer(within, lap);
        std::uint64_t first = 0;
        std::uint64_t second = 0;
        ASSERT_EQ(end.submit(bytes_of(lap), first), Status::ok);
        ASSERT_EQ(end.submit(bytes_of(lap + 1), second), Status::ok);
        expect_refused(
            [&] { return end.wait([&](const Answer&) { answer(first, lap); }, patience()); });
        EXPECT_EQ(end.outstanding(), 1U);
        answer(second, lap + 1);
        // And where one answer is asked for by its number.
        ASSERT_EQ(end.submit(bytes_of(lap), first), Status::ok);
        ASSERT_EQ(end.submit(bytes_of(lap + 1), second), Status::ok);
        expect_refused([&] {
            return end.answer_to(
                first, [&](std::span<const std::byte>) { answer(first, lap); }, patience());
        });
        EXPECT_EQ(end.outstanding(), 1U);
        answer(second, lap + 1);
    }
}

TEST(NestedUse, OfAClientIsRefused) {
    Running server;
    Client client = server.connect();
    expect_nested_use_to_be_refused(client);
}

TEST(NestedUse, OfAPortIsRefused) {
    Running server;
    auto dispatcher = Dispatcher::connect(std::vector{server.server.address()}, {}, patience());
    test::ServingThread<Dispatcher> thread{
        dispatcher, [](Dispatcher& its) { return its.run(Deadline::never()); }};
    auto port = dispatcher.port();
    expect_nested_use_to_be_refused(port);
}

}  // namespace
}  // namespace millrace::message
