// Ends and a fork: an end belongs to the process that made it. Its copy in a child says so, and
// harms nothing, whatever is called of it; the parent's goes on; and a child's own ends are whole.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "faults/ends.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/latest.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/message/halves.hpp"
#include "millrace/message/server.hpp"
#include "millrace/stream/socket.hpp"
#include "support/forked.hpp"

namespace millrace::faults {
namespace {

using millrace::test::Complaints;
using millrace::test::in_forked_child;

Deadline in_time() { return Deadline::after(5s); }

[[nodiscard]] bool tells_of_fork(std::string_view text) {
    return text.find("made by fork") != std::string_view::npos;
}
/// `call()` answers `peer_lost`, or throws an Error that says why.
template <class Call>
[[nodiscard]] bool is_refused(Call&& call) {
    try {
        return call() == Status::peer_lost;
    } catch (const base::Error& error) {
        return tells_of_fork(error.what());
    }
}
/// It throws an Error that says why.
template <class Call>
[[nodiscard]] bool throws_refusal(Call&& call) {
    try {
        (void)call();
        return false;
    } catch (const base::Error& error) {
        return tells_of_fork(error.what());
    }
}

/// Both ends of a kind, in this process.
struct Pair {
    explicit Pair(std::string_view kind) {
        const Setup setup{unique_address()};
        std::thread other{[&] { in = make_in(kind, setup, true, in_time()); }};
        out = make_out(kind, setup, false, in_time());
        other.join();
    }
    void put(std::uint64_t count) {
        for (; count != 0; --count) ASSERT_EQ(out->put(sent++, in_time()), Status::ok);
    }
    void take(std::uint64_t count) {
        for (; count != 0; --count) {
            bool right = false;
            ASSERT_EQ(in->take(taken++, right, in_time()), Status::ok);
            ASSERT_TRUE(right) << "item " << taken - 1;
        }
    }
    /// As many as that, of which some lie in the ring at a time.
    void pass(std::uint64_t count) {
        for (; count >= 4; count -= 4) {
            put(4);
            take(4);
        }
    }

    std::unique_ptr<Out> out;
    std::unique_ptr<In> in;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
};

class EndsAndAFork : public testing::TestWithParam<std::string> {};

TEST_P(EndsAndAFork, BelongToTheParentAndSaySoInTheChild) {
    Pair ends{GetParam()};
    ends.pass(8);
    ends.put(3);  // which the child must not take
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  child.unless(ends.out->put(99, in_time()) == Status::peer_lost, "it puts");
                  child.unless(tells_of_fork(ends.out->failure()), ends.out->failure());
                  bool right = false;
                  child.unless(ends.in->take(8, right, in_time()) == Status::peer_lost, "it takes");
                  child.unless(tells_of_fork(ends.in->failure()), ends.in->failure());
                  child.unless(ends.out->close(in_time()) == Status::peer_lost, "it closes");
                  ends.in->close();
                  ends.out.reset();
                  ends.in.reset();
              }),
              "");
    ends.take(3);
    ends.pass(400);
    EXPECT_EQ(ends.out->close(in_time()), Status::ok);
    bool right = false;
    EXPECT_EQ(ends.in->take(ends.taken, right, in_time()), Status::closed);
}

TEST_P(EndsAndAFork, OfTheChildAreWhole) {
    Pair parents{GetParam()};
    parents.pass(4);
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  Pair own{GetParam()};
                  own.pass(200);
                  child.unless(own.taken == 200, "not all came");
                  child.unless(own.out->close(in_time()) == Status::ok, "it does not close");
              }),
              "");
    parents.pass(4);
}

TEST_P(EndsAndAFork, GoOnInTheParentWhileAChildLives) {
    Pair ends{GetParam()};
    ends.put(2);
    // The second child is the first one's, and is as little an owner.
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  child.unless(in_forked_child([&](Complaints& second) {
                                   second.unless(ends.out->put(99, in_time()) == Status::peer_lost,
                                                 "it puts");
                               }) == "",
                               "a child's child is none");
              }),
              "");
    ends.take(2);
    ends.pass(40);
}

[[nodiscard]] std::vector<std::string> kinds_and_movers() {
    std::vector<std::string> all{std::begin(kinds), std::end(kinds)};
    for (const std::string& point : every_point()) all.push_back(point);
    for (const char* way :
         {"push1/watermark/push+mover", "push1/pull/push+mover", "push2/event/push+mover",
          "bytes:push2/event/push", "bytes:push1/pull/push"}) {
        all.emplace_back(way);
    }
    return all;
}
INSTANTIATE_TEST_SUITE_P(Of, EndsAndAFork, testing::ValuesIn(kinds_and_movers()),
                         [](const auto& tested) {
                             std::string name = test_name_of(tested.param);
                             for (char& c : name) c = c == '+' || c == ':' ? '_' : c;
                             return name;
                         });

// --- messages

std::span<const std::byte> bytes_of(const std::uint64_t& number) {
    return std::as_bytes(std::span{&number, 1});
}

struct Way {
    const char* name;
    message::ClientOptions options;
};

class ClientsAndAFork : public testing::TestWithParam<Way> {};

TEST_P(ClientsAndAFork, BelongToTheParentAndSoDoesTheServer) {
    const auto echo = [](message::Request& request) { (void)request.answer(request.payload()); };
    auto server = message::Server::listen(
        unique_address(),
        {.transports = connect::Transports::all(), .protection = message::Protection::trusted});
    std::optional<message::Client> client;
    std::exception_ptr failed;
    std::atomic<bool> is_there{false};
    std::thread other{[&] {
        try {
            client.emplace(
                message::Client::connect(server.address(), GetParam().options, in_time()));
        } catch (...) {
            failed = std::current_exception();
        }
        is_there = true;
    }};
    while (!is_there) (void)server.turn(echo);
    other.join();
    if (failed) std::rethrow_exception(failed);
    const auto call = [&](std::uint64_t number) {
        std::uint64_t id = 0;
        ASSERT_EQ(client->submit(bytes_of(number), id), Status::ok);
        std::uint64_t answer = 0;
        const Deadline limit = in_time();
        Status status = Status::empty;
        while (status == Status::empty && !limit.expired()) {
            (void)server.turn(echo);
            status = client->poll([&](const message::Answer& found) {
                std::memcpy(&answer, found.payload.data(), sizeof answer);
            });
        }
        ASSERT_EQ(status, Status::ok);
        ASSERT_EQ(answer, number);
    };
    for (std::uint64_t number = 0; number != 5; ++number) call(number);
    std::uint64_t waits = 0;
    ASSERT_EQ(client->submit(bytes_of(waits), waits), Status::ok);  // at the server's end
    EXPECT_EQ(
        in_forked_child([&](Complaints& child) {
            std::uint64_t id = 0;
            child.unless(client->submit(bytes_of(id), id) == Status::peer_lost, "it submits");
            child.unless(client->submit(
                             8, [](auto) {}, id, in_time()) == Status::peer_lost,
                         "it submits in place");
            child.unless(client->poll([](const auto&) {}) == Status::peer_lost, "it polls");
            child.unless(client->wait([](const auto&) {}, in_time()) == Status::peer_lost,
                         "it waits");
            child.unless(client->reconnect(in_time()) == Status::peer_lost, "it connects again");
            child.unless(tells_of_fork(client->failure()), client->failure());
            child.unless(throws_refusal([&] { return server.turn(echo); }), "the server turns");
            child.unless(throws_refusal([&] { return server.serve(echo, in_time()); }),
                         "the server serves");
            child.unless(throws_refusal([&] { return server.close(in_time()); }), "it closes");
            child.unless(client->close(in_time()) == Status::peer_lost, "the client closes");
            client.reset();
            const auto gone = std::move(server);
        }),
        "");
    const Deadline limit = in_time();
    Status status = Status::empty;
    while (status == Status::empty && !limit.expired()) {
        (void)server.turn(echo);
        status = client->poll([](const message::Answer&) {});
    }
    EXPECT_EQ(status, Status::ok);
    for (std::uint64_t number = 5; number != 200; ++number) call(number);
    EXPECT_EQ(server.stats().clients, 1U);
}

INSTANTIATE_TEST_SUITE_P(
    By, ClientsAndAFork,
    testing::Values(Way{"ring", {}}, Way{"ring_that_resumes", {.resumes = true}},
                    Way{"send",
                        {.requests = message::Transfer::send, .answers = message::Transfer::send}},
                    Way{"uc", {.transport = connect::Transport::uc}},
                    Way{"ud", {.transport = connect::Transport::ud}},
                    Way{"tcp", {.transport = connect::Transport::tcp}}),
    [](const auto& tested) { return std::string{tested.param.name}; });

TEST(PortsAndAFork, BelongToTheParentAsTheirDispatcherDoes) {
    const auto echo = [](message::Request& request) { (void)request.answer(request.payload()); };
    auto server = message::Server::listen(unique_address());
    std::optional<message::Dispatcher> dispatcher;
    std::atomic<bool> is_there{false};
    std::thread other{[&] {
        dispatcher.emplace(
            message::Dispatcher::connect(std::vector{server.address()}, {}, in_time()));
        is_there = true;
    }};
    while (!is_there) (void)server.turn(echo);
    other.join();
    dispatcher->adopt();
    auto port = dispatcher->port();
    const auto call = [&](std::uint64_t number) {
        std::uint64_t id = 0;
        ASSERT_EQ(port.submit(bytes_of(number), id), Status::ok);
        const Deadline limit = in_time();
        Status status = Status::empty;
        while (status == Status::empty && !limit.expired()) {
            (void)dispatcher->turn();
            (void)server.turn(echo);
            status = port.poll([](const message::Answer&) {});
        }
        ASSERT_EQ(status, Status::ok);
    };
    for (std::uint64_t number = 0; number != 5; ++number) call(number);
    EXPECT_EQ(
        in_forked_child([&](Complaints& child) {
            std::uint64_t id = 0;
            child.unless(port.submit(bytes_of(id), id) == Status::peer_lost, "it submits");
            child.unless(port.poll([](const auto&) {}) == Status::peer_lost, "it polls");
            child.unless(port.wait([](const auto&) {}, in_time()) == Status::peer_lost, "it waits");
            child.unless(throws_refusal([&] { return dispatcher->turn(); }), "it turns");
            child.unless(throws_refusal([&] { return dispatcher->rest(in_time()); }), "it rests");
            const auto gone = std::move(port);
        }),
        "");
    for (std::uint64_t number = 5; number != 50; ++number) call(number);
}

// --- latest values, structures, and what has no status

TEST(LatestValuesAndAFork, BelongToTheParent) {
    const std::string address = unique_address();
    std::optional<flow::LatestReader<std::uint64_t>> reader;
    std::thread other{[&] {
        reader.emplace(flow::LatestReader<std::uint64_t>::listen(address, {.cells = 2}, in_time()));
    }};
    auto writer = flow::LatestWriter<std::uint64_t>::connect(address, {}, in_time());
    other.join();
    ASSERT_EQ(writer.put(0, 1), Status::ok);
    ASSERT_EQ(writer.flush(in_time()), Status::ok);
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  std::uint64_t value = 0;
                  std::uint32_t cell = 0;
                  child.unless(writer.put(0, 99) == Status::peer_lost, "it puts");
                  child.unless(writer.flush(in_time()) == Status::peer_lost, "it flushes");
                  child.unless(tells_of_fork(writer.failure()), writer.failure());
                  child.unless(reader->try_get(0, value) == Status::peer_lost, "it gets");
                  child.unless(reader->read(0, value) == Status::peer_lost, "it reads");
                  child.unless(reader->next(cell, value) == Status::peer_lost, "it finds");
                  child.unless(reader->wait(in_time()) == Status::peer_lost, "it waits");
                  child.unless(tells_of_fork(reader->failure()), reader->failure());
                  reader.reset();
                  const auto gone = std::move(writer);
              }),
              "");
    std::uint64_t value = 0;
    EXPECT_EQ(reader->try_get(0, value), Status::ok);
    EXPECT_EQ(value, 1U);
    for (std::uint64_t number = 2; number != 100; ++number) {
        ASSERT_EQ(writer.put(0, number), Status::ok);
        ASSERT_EQ(writer.flush(in_time()), Status::ok);
        ASSERT_EQ(reader->try_get(0, value), Status::ok);
        ASSERT_EQ(value, number);
    }
}

TEST(StructuresAndAFork, BelongToTheParent) {
    auto fan_in = flow::FanIn<Item>::listen(unique_address(), {.levels = 2, .expected = 3});
    const std::string at = fan_in.address().to_string();
    auto inbox = flow::FanIn<Item>::listen(unique_address(), {.expected = 1});
    std::optional<flow::FanOut<Item>> fan_out;
    std::optional<flow::PriorityProducer<Item>> levels;
    std::optional<flow::Replicator<Item>> replicator;
    std::atomic<bool> is_there{false};
    std::thread other{[&] {
        fan_out.emplace(flow::FanOut<Item>::connect({fan_in.address()}, {}, in_time()));
        levels.emplace(flow::PriorityProducer<Item>::connect(fan_in.address(), 2, {}, in_time()));
        replicator.emplace(flow::Replicator<Item>::connect({inbox.address()}, {}, in_time()));
        is_there = true;
    }};
    Item item;
    while (!is_there) {
        (void)fan_in.try_dequeue(item);
        (void)inbox.try_dequeue(item);
    }
    other.join();
    const auto pass = [&](std::uint64_t number) {
        ASSERT_EQ(fan_out->enqueue(Item::make(number), in_time()), Status::ok);
        ASSERT_EQ(fan_in.dequeue(item, in_time()), Status::ok);
        ASSERT_TRUE(item.is(number));
        ASSERT_EQ(levels->enqueue(1, Item::make(number), in_time()), Status::ok);
        ASSERT_EQ(fan_in.dequeue(item, in_time()), Status::ok);
        ASSERT_TRUE(item.is(number));
        ASSERT_EQ(replicator->enqueue(Item::make(number), in_time()), Status::ok);
        ASSERT_EQ(inbox.dequeue(item, in_time()), Status::ok);
        ASSERT_TRUE(item.is(number));
    };
    for (std::uint64_t number = 0; number != 5; ++number) pass(number);
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  const Item none = Item::make(99);
                  const auto refuses = [&](const char* what, auto&& call) {
                      child.unless(is_refused(call), what);
                  };
                  refuses("fan-out", [&] { return fan_out->try_enqueue(none); });
                  refuses("fan-out, waiting", [&] { return fan_out->enqueue(none, in_time()); });
                  refuses("level", [&] { return levels->try_enqueue(1, none); });
                  refuses("replicator", [&] { return replicator->enqueue(none, in_time()); });
                  refuses("fan-in", [&] { return fan_in.dequeue(item, in_time()); });
                  refuses("inbox", [&] { return inbox.dequeue(item, in_time()); });
                  replicator.reset();
                  levels.reset();
                  fan_out.reset();
                  const auto gone = std::move(fan_in);
              }),
              "");
    for (std::uint64_t number = 5; number != 100; ++number) pass(number);
}

TEST(WhatHasNoStatusAndAFork, ThrowsAnErrorThatSaysWhy) {
    Pair ends{"flow2"};
    auto listener = flow::Listener::listen(unique_address());
    connect::Hub hub;
    EXPECT_EQ(
        in_forked_child([&](Complaints& child) {
            child.unless(throws_refusal([&] { return hub.turn(); }), "a hub turns");
            child.unless(throws_refusal([&] { return hub.rest(in_time()); }), "a hub rests");
            child.unless(
                throws_refusal([&] { return flow::Consumer<Item>::accept(listener, in_time()); }),
                "a listener accepts");
            child.unless(throws_refusal([&] { return flow::Consumer<Item>::try_accept(listener); }),
                         "a listener looks");
        }),
        "");
}

TEST(WaitsAndAFork, OfOtherThreadsAreNotInTheChildsWay) {
    const std::string address = unique_address();
    std::optional<message::Channel> waits;
    std::thread other{[&] {
        waits.emplace(
            message::Listener::listen(connect::Address::parse(address)).accept(in_time()));
    }};
    auto sends = message::connect(connect::Address::parse(address), {}, in_time());
    other.join();
    auto halves = std::move(*waits).split();
    std::uint64_t found = 0;
    std::thread waiter{[&] {
        EXPECT_EQ(
            halves.receiver.receive(
                [&](std::span<const std::byte> message) { found = message.size(); }, in_time()),
            Status::ok);
    }};
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  child.unless(halves.receiver.receive([](std::span<const std::byte>) {},
                                                       in_time()) == Status::peer_lost,
                               "it receives");
                  const std::uint64_t number = 1;
                  child.unless(halves.sender.send(bytes_of(number), in_time()) == Status::peer_lost,
                               "it sends");
              }),
              "");
    const std::uint64_t number = 1;
    EXPECT_EQ(sends.send(bytes_of(number), in_time()), Status::ok);
    waiter.join();
    EXPECT_EQ(found, sizeof number);
}

TEST(DescriptorsAndAFork, BelongToTheParent) {
    const std::string address = unique_address();
    std::optional<flow::Consumer<Item>> consumer;
    std::thread other{
        [&] { consumer.emplace(flow::Consumer<Item>::listen(address, {}, in_time())); }};
    auto producer = flow::Producer<Item>::connect(address, {}, in_time());
    other.join();
    (void)consumer->descriptor();
    Item item;
    // Asleep, with a wake-up announced that is the parent's.
    while (consumer->try_dequeue(item) != Status::empty) {
    }
    EXPECT_EQ(in_forked_child([&](Complaints& child) {
                  child.unless(throws_refusal([&] { return consumer->descriptor(); }),
                               "it gives the parent's descriptor");
                  child.unless(throws_refusal([&] { return producer.descriptor(); }),
                               "it makes a descriptor");
                  child.unless(consumer->try_dequeue(item) == Status::peer_lost, "it dequeues");
                  consumer.reset();
              }),
              "");
    ASSERT_EQ(producer.enqueue(Item::make(1), in_time()), Status::ok);
    ASSERT_EQ(consumer->dequeue(item, in_time()), Status::ok);
    EXPECT_TRUE(item.is(1));
}

}  // namespace
}  // namespace millrace::faults
