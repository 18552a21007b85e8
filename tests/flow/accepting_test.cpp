// Accepting without waiting: ends whose peers speak late, or never, and a loop that serves them
// all.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>

#include "flow/any_ends.hpp"
#include "flow/conformance.hpp"
#include "millrace/ring/terms.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::accept_in_loop;
using millrace::test::becomes_readable;
using millrace::test::is_readable;

constexpr std::chrono::milliseconds patience{20'000};

class EveryDesignsListener : public EveryDesign {};
INSTANTIATE_TEST_SUITE_P(Points, EveryDesignsListener, testing::ValuesIn(every_design()),
                         [](const auto& point) { return name_of_point(point.param); });

TEST_P(EveryDesignsListener, GivesConsumersWithoutWaiting) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 8}}));
    constexpr std::uint64_t count = 300;
    std::thread producing{[&, address = listener.address().to_string()] {
        auto producer = AnyProducer<Numbered>::connect(
            GetParam(), address, with_endpoint({.ring = {.capacity = 8}}), Deadline::after(40s));
        for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_EQ(producer.enqueue(Kind<Numbered>::make(i), Deadline::after(40s)), Status::ok);
        }
        ASSERT_EQ(producer.close(Deadline::after(40s)), Status::ok);
    }};
    auto consumer = accept_in_loop(
        listener, [&] { return AnyConsumer<Numbered>::try_accept(GetParam(), listener); });
    ASSERT_TRUE(consumer.has_value());
    Numbered item;
    std::uint64_t taken = 0;
    Status status = Status::ok;
    while (status == Status::ok || status == Status::empty) {
        ASSERT_TRUE(becomes_readable(consumer->descriptor(), patience)) << taken;
        status = consumer->try_dequeue(item);
        if (status == Status::ok) {
            ASSERT_EQ(Kind<Numbered>::number_of(item), taken++);
        }
    }
    producing.join();
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(taken, count);
}

TEST_P(EveryDesignsListener, GivesProducersWithoutWaiting) {
    if (!can_run(GetParam())) GTEST_SKIP() << "this device does not promise the order of bytes";
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 8}}));
    constexpr std::uint64_t count = 300;
    std::thread consuming{[&, address = listener.address().to_string()] {
        auto consumer = AnyConsumer<Numbered>::connect(
            GetParam(), address, with_endpoint({.ring = {.capacity = 8}}), Deadline::after(40s));
        Numbered item;
        for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
            ASSERT_EQ(Kind<Numbered>::number_of(item), i);
        }
        EXPECT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::closed);
    }};
    auto producer = accept_in_loop(
        listener, [&] { return AnyProducer<Numbered>::try_accept(GetParam(), listener); });
    ASSERT_TRUE(producer.has_value());
    for (std::uint64_t sent = 0; sent < count;) {
        const Status status = producer->try_enqueue(Kind<Numbered>::make(sent));
        if (status == Status::ok) {
            ++sent;
            continue;
        }
        ASSERT_EQ(status, Status::full);
        ASSERT_TRUE(becomes_readable(producer->descriptor(), patience)) << sent;
    }
    EXPECT_EQ(producer->close(Deadline::after(40s)), Status::ok);
    consuming.join();
}

/// A consumer's program that stops in the middle of its setup: it has agreed, and says no more.
class Silent {
  public:
    explicit Silent(const std::string& address) {
        thread_ = std::thread{[this, address] {
            connect::LinkOptions options = ring::link_options("flow queue");
            options.endpoint = with_endpoint({}).endpoint;
            link_.emplace(
                connect::connect(connect::Address::parse(address), options, Deadline::after(40s)));
            (void)ring::agree(*link_, ring::Role::consumer, ring::design_2, {.capacity = 8},
                              detail::item_facts<std::uint64_t>(), Deadline::after(40s));
            said_ = true;
        }};
    }
    ~Silent() { join(); }
    void join() {
        if (thread_.joinable()) thread_.join();
    }
    [[nodiscard]] bool has_agreed() const { return said_; }
    void leave() { link_.reset(); }

  private:
    std::optional<connect::Link> link_;
    std::atomic<bool> said_{false};
    std::thread thread_;
};

using Numbers = Producer<std::uint64_t, ring::design_2>;

TEST(FlowAccepting, HoldsNobodyUpForAPeerThatStopsInItsSetup) {
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 8}}));
    Silent silent{listener.address().to_string()};
    auto first = accept_in_loop(listener, [&] { return Numbers::try_accept(listener); });
    ASSERT_TRUE(first.has_value());
    silent.join();
    ASSERT_TRUE(silent.has_agreed());
    // There is no room in a queue whose other end has not said where it is.
    EXPECT_EQ(first->try_enqueue(1), Status::full);
    EXPECT_EQ(first->enqueue(1, Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(first->flush(Deadline::after(1ms)), Status::timed_out);
    EXPECT_NE(first->explain().find("producer of a flow queue"), std::string::npos);
    EXPECT_EQ(first->stats().items, 0U);
    while (is_readable(first->descriptor())) EXPECT_EQ(first->try_enqueue(1), Status::full);

    std::thread other{[address = listener.address().to_string()] {
        auto consumer = Consumer<std::uint64_t>::connect(connect::Address::parse(address),
                                                         with_endpoint({.ring = {.capacity = 8}}),
                                                         Deadline::after(40s));
        std::uint64_t item = 0;
        EXPECT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
        EXPECT_EQ(item, 2U);
    }};
    auto second = accept_in_loop(listener, [&] { return Numbers::try_accept(listener); });
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(second->enqueue(2, Deadline::after(40s)), Status::ok);
    other.join();

    silent.leave();
    ASSERT_TRUE(becomes_readable(first->descriptor(), patience));
    EXPECT_EQ(first->try_enqueue(1), Status::peer_lost);
    EXPECT_EQ(first->close(Deadline::after(40s)), Status::peer_lost);
    EXPECT_NE(first->explain().find("failure"), std::string::npos) << first->explain();
}

TEST(FlowAccepting, GivesUpAPeerThatSaysNoMoreInItsSetup) {
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 8}}));
    Silent silent{listener.address().to_string()};
    auto end = accept_in_loop(listener, [&] { return Numbers::try_accept(listener); });
    ASSERT_TRUE(end.has_value());
    silent.join();
    const Deadline deadline = Deadline::after(60s);
    Status status = Status::full;
    while (status == Status::full && !deadline.expired()) {
        ASSERT_TRUE(becomes_readable(end->descriptor(), patience));
        status = end->try_enqueue(1);
    }
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_NE(end->explain().find("did not say where its memory is for 5 s"), std::string::npos)
        << end->explain();
}

TEST(FlowAccepting, TriesAreEmptyHandedUntilSomebodyComes) {
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 8}}));
    EXPECT_FALSE(is_readable(listener.descriptor()));
    EXPECT_FALSE(Numbers::try_accept(listener).has_value());
    EXPECT_FALSE(is_readable(listener.descriptor()));
}

TEST(FlowAccepting, OneThreadServesManyByTheirDescriptors) {
    constexpr std::uint64_t clients = 40;
    constexpr std::uint64_t each = 50;
    Listener listener =
        Listener::listen(unique_address(), with_endpoint({.ring = {.capacity = 8}}));
    std::thread crowd{[&, address = listener.address()] {
        std::vector<Producer<std::uint64_t>> producers;
        for (std::uint64_t i = 0; i < clients; ++i) {
            producers.push_back(Producer<std::uint64_t>::connect(
                address, with_endpoint({.ring = {.capacity = 8}}), Deadline::after(40s)));
        }
        for (std::uint64_t number = 0; number < each; ++number) {
            for (auto& producer : producers) {
                ASSERT_EQ(producer.enqueue(number, Deadline::after(40s)), Status::ok);
            }
        }
        for (auto& producer : producers) {
            ASSERT_EQ(producer.close(Deadline::after(40s)), Status::ok);
        }
    }};
    struct Client {
        Consumer<std::uint64_t> consumer;
        std::uint64_t taken = 0;
        bool open = true;
    };
    std::vector<Client> served;
    std::uint64_t closed = 0;
    while (closed < clients) {
        std::vector<pollfd> entries{{listener.descriptor(), POLLIN, 0}};
        for (Client& client : served) {
            entries.push_back({client.open ? client.consumer.descriptor() : -1, POLLIN, 0});
        }
        ASSERT_GT(poll(entries.data(), entries.size(), 20'000), 0) << closed << " have closed";
        for (std::size_t i = 0; i < served.size(); ++i) {
            if (entries[i + 1].revents == 0) continue;
            Client& client = served[i];
            std::uint64_t item = 0;
            Status status;
            while ((status = client.consumer.try_dequeue(item)) == Status::ok) {
                ASSERT_EQ(item, client.taken++);
            }
            if (status == Status::empty) continue;
            ASSERT_EQ(status, Status::closed);
            EXPECT_EQ(client.taken, each);
            client.open = false;
            ++closed;
        }
        if (entries[0].revents != 0) {
            while (auto consumer = Consumer<std::uint64_t>::try_accept(listener)) {
                served.push_back({std::move(*consumer)});
            }
        }
    }
    crowd.join();
}

}  // namespace
}  // namespace millrace::flow
