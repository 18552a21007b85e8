// Flow queues with a secret, and with a budget for what a listener registers.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "flow/ends.hpp"
#include "millrace/base/error.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using connect::Secret;
using test::unique_address;
using test::with_endpoint;

Options with(connect::Admission admission) {
    return with_endpoint({.ring = {.capacity = 512}, .admission = std::move(admission)});
}
Options with_secret(const char* text) { return with({.secret = Secret{std::string_view{text}}}); }

/// What connecting a producer ends with.
template <ring::Design D = ring::design_2>
std::string connect_producer(const connect::Address& address, const Options& options,
                             std::optional<Producer<std::uint64_t, D>>& producer) {
    try {
        producer.emplace(
            Producer<std::uint64_t, D>::connect(address, options, Deadline::after(40s)));
        return "connected";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
        return error.what();
    }
}

TEST(FlowAdmission, TakesWhoKnowsTheSecretAndRefusesOthers) {
    const Options options = with_secret("a secret of both ends");
    Listener listener = Listener::listen(unique_address(), options);
    std::optional<Producer<std::uint64_t>> wrong, none, right;
    std::string told_wrong, told_none;
    std::thread connecting{[&] {
        told_wrong =
            connect_producer(listener.address(), with_secret("another end's secret"), wrong);
        told_none = connect_producer(listener.address(), with({}), none);
        EXPECT_EQ(connect_producer(listener.address(), options, right), "connected");
    }};
    auto consumer = Consumer<std::uint64_t>::accept(listener, Deadline::after(40s));
    connecting.join();
    EXPECT_NE(told_wrong.find("this end does not know its secret"), std::string::npos);
    EXPECT_NE(told_none.find("this end has none"), std::string::npos) << told_none;
    EXPECT_EQ(right->enqueue(7, Deadline::after(40s)), Status::ok);
    std::uint64_t item = 0;
    EXPECT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(item, 7U);
}

/// In which there is room for one ring and its words, not for two.
template <ring::Design D>
void fill(std::uint64_t budget) {
    Listener listener =
        Listener::listen(unique_address(), with({.budget = {.registered_bytes = budget}}));
    const std::string reason = "registers " + std::to_string(budget) + " bytes at most, and has";
    std::optional<Consumer<std::uint64_t, D>> first;
    for (int round = 0; round < 2; ++round) {
        std::optional<Producer<std::uint64_t, D>> one, two;
        std::string told;
        std::thread connecting{[&] {
            EXPECT_EQ(connect_producer<D>(listener.address(), with({}), one), "connected");
        }};
        first.emplace(Consumer<std::uint64_t, D>::accept(listener, Deadline::after(40s)));
        connecting.join();
        EXPECT_GE(listener.links().given().registered_bytes, budget / 2);
        std::thread late{[&] { told = connect_producer<D>(listener.address(), with({}), two); }};
        std::string here;
        for (int i = 0; i < 200 && here.find("did not fit") == std::string::npos; ++i) {
            try {
                (void)Consumer<std::uint64_t, D>::accept(listener, Deadline::after(100ms));
                ADD_FAILURE() << "accepted";
                break;
            } catch (const base::Error& error) {
                here = error.what();
            }
        }
        late.join();
        EXPECT_NE(here.find(reason), std::string::npos) << here;
        EXPECT_NE(told.find("the peer refused: the listener " + reason), std::string::npos) << told;
        first.reset();
        EXPECT_EQ(listener.links().given().registered_bytes, 0U);
        EXPECT_EQ(listener.links().given().clients, 0U);
    }
}

TEST(FlowAdmission, CountsRingsAndGivesThemBack) { fill<ring::design_2>(12 * 1024); }

TEST(FlowAdmission, CountsRingsOfPull) {
    fill<ring::Design{ring::DataFlow::pull, ring::TransferNotification::push,
                      ring::SpaceNotification::push}>(6 * 1024);
}

TEST(FlowAdmission, TellsAConsumerInTimeThatThereIsNoRingForItsProducer) {
    Options options = with({.budget = {.registered_bytes = 20 * 1024}});
    options.ring.carrier = ring::Carrier::post;
    Listener listener = Listener::listen(unique_address(), options);
    std::string told;
    std::thread connecting{[&] {
        Options large = with({});
        large.ring.capacity = 512;
        const auto first =
            Consumer<std::uint64_t>::connect(listener.address(), large, Deadline::after(40s));
        try {
            (void)Consumer<std::uint64_t>::connect(listener.address(), large, Deadline::after(40s));
            told = "connected";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::refused);
            told = error.what();
        }
    }};
    const auto first = Producer<std::uint64_t>::accept(listener, Deadline::after(40s));
    std::string here;
    for (int i = 0; i < 200 && here.find("did not fit") == std::string::npos; ++i) {
        try {
            (void)Producer<std::uint64_t>::accept(listener, Deadline::after(100ms));
            ADD_FAILURE() << "accepted";
            break;
        } catch (const base::Error& error) {
            here = error.what();
        }
    }
    connecting.join();
    EXPECT_NE(told.find("the peer refused: the listener registers 20480 bytes at most"),
              std::string::npos)
        << told;
}

TEST(FlowAdmission, TellsTheClientOfALoopThatItHasNoPlace) {
    Listener listener = Listener::listen(unique_address(), with({.budget = {.clients = 1}}));
    std::optional<Producer<std::uint64_t>> one, two;
    std::string told;
    std::thread connecting{[&] {
        EXPECT_EQ(connect_producer(listener.address(), with({}), one), "connected");
        told = connect_producer(listener.address(), with({}), two);
    }};
    std::optional<Consumer<std::uint64_t>> consumer;
    std::atomic<bool> over{false};
    std::thread waiting{[&] {
        connecting.join();
        over = true;
    }};
    while (!over) {
        auto next = Consumer<std::uint64_t>::try_accept(listener);
        if (next.has_value()) consumer.emplace(std::move(*next));
        if (consumer.has_value()) {
            std::uint64_t item = 0;
            (void)consumer->try_dequeue(item);
        }
        std::this_thread::yield();
    }
    waiting.join();
    EXPECT_TRUE(consumer.has_value());
    EXPECT_NE(told.find("the listener serves 1 clients at most, and has 1"), std::string::npos)
        << told;
}

}  // namespace
}  // namespace millrace::flow
