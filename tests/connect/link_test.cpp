// Links at work: data through the queue pair, facts through the socket, sleeping, and knowing
// whether the peer lives.
#include "millrace/connect/link.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "millrace/connect/readiness.hpp"
#include "peers.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::connect {
namespace {

using base::ErrorCode;
using millrace::test::ChildProcess;
using test::bytes;
using test::error_of;
using test::eventually;
using test::fresh_address;
using test::Pair;
using test::soon;
using test::text;
using test::within;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto open_memory = verbs::Access::remote_write | verbs::Access::remote_read;

verbs::Completion next(verbs::CompletionQueue& queue) {
    verbs::Completion completion;
    EXPECT_TRUE(eventually([&] { return queue.poll({&completion, 1}) == 1; }));
    return completion;
}

std::vector<std::byte> pack(const verbs::RemoteAddress& address) {
    std::vector<std::byte> packed(12);
    std::memcpy(packed.data(), &address.address, 8);
    std::memcpy(packed.data() + 8, &address.rkey, 4);
    return packed;
}

verbs::RemoteAddress unpack(const std::vector<std::byte>& packed) {
    verbs::RemoteAddress address;
    EXPECT_EQ(packed.size(), 12U);
    std::memcpy(&address.address, packed.data(), 8);
    std::memcpy(&address.rkey, packed.data() + 8, 4);
    return address;
}

std::uint64_t load(std::byte* memory) {
    return std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(memory)}.load(
        std::memory_order_acquire);
}

void write_word(Link& link, const verbs::RegisteredBuffer& memory, verbs::RemoteAddress to) {
    const ibv_sge from = memory.slice(0, 8);
    ASSERT_EQ(link.queue_pair().post(
                  verbs::Write{.from = {&from, 1}, .to = to, .flags = verbs::SendFlags::signaled}),
              0);
    const verbs::Completion done = next(link.send_queue());
    EXPECT_TRUE(done.ok()) << done.explain();
}

TEST(Link, ExchangesFactsAndWritesIntoAnotherProcess) {
    Listener listener = Listener::listen(Address::parse("127.0.0.1:0"));
    ChildProcess child =
        ChildProcess::start("write_back_doubled", {listener.address().to_string()});
    Link link = listener.accept(soon());
    EXPECT_THAT(link.peer_name(), HasSubstr("pid " + std::to_string(child.pid())));
    verbs::RegisteredBuffer memory = link.protection_domain().allocate(4096, open_memory);
    const verbs::RemoteAddress theirs =
        unpack(link.exchange(pack(memory.region().remote(8)), soon()));
    for (std::uint64_t value = 1; value < 100'000; value = value * 3 + 1) {
        std::memcpy(memory.data(), &value, 8);
        write_word(link, memory, theirs);
        ASSERT_TRUE(eventually([&] { return load(memory.data() + 8) == 2 * value; }));
    }
    link.say_goodbye();
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(write_back_doubled) {
    Link link = connect(Address::parse(arguments.at(0)), {}, soon());
    verbs::RegisteredBuffer memory = link.protection_domain().allocate(4096, open_memory);
    const verbs::RemoteAddress theirs =
        unpack(link.exchange(pack(memory.region().remote(8)), soon()));
    std::uint64_t last = 0;
    while (eventually(
        [&] { return load(memory.data() + 8) != last || link.peer_now() != PeerState::alive; })) {
        const std::uint64_t value = load(memory.data() + 8);
        if (value == last) return link.peer_now() == PeerState::closed ? 0 : 1;
        last = value;
        const std::uint64_t doubled = 2 * value;
        std::memcpy(memory.data(), &doubled, 8);
        write_word(link, memory, theirs);
    }
    return 2;
}

TEST(Link, TellsWhatWasChosenAndWhy) {
    Pair pair{{.service = "test", .max_send_requests = 33}};
    const std::string told = pair.a->explain();
    EXPECT_THAT(told, HasSubstr("'test' version 1"));
    EXPECT_THAT(told, HasSubstr(std::string{pair.a->endpoint().context().name()}));
    EXPECT_THAT(told, HasSubstr("MTU"));
    EXPECT_THAT(told, HasSubstr(pair.a->writes_in_order() ? "yes: the last byte" : "no: one end"));
    EXPECT_EQ(pair.a->writes_in_order(), pair.b->writes_in_order());
    EXPECT_GE(pair.a->queue_pair().capacity().max_send_wr, 33U);
    EXPECT_GE(pair.a->send_queue().size(), 33);
}

TEST(Link, SharesAnEndpointWithOthers) {
    const auto endpoint = Endpoint::open();
    Pair one{{.endpoint = endpoint}}, two{{.endpoint = endpoint}};
    EXPECT_EQ(&one.a->endpoint(), &two.b->endpoint());
    EXPECT_THAT(endpoint->describe(), HasSubstr(std::string{endpoint->context().name()}));
}

TEST(Link, ExchangesAnySizeBothWaysAtOnce) {
    Pair pair;
    for (const std::size_t size : {0UL, 1UL, 4096UL, 60'000UL}) {
        const std::string from_a(size, 'a'), from_b(size / 2, 'b');
        auto b =
            std::async(std::launch::async, [&] { return pair.b->exchange(bytes(from_b), soon()); });
        EXPECT_EQ(text(pair.a->exchange(bytes(from_a), soon())), from_b);
        EXPECT_EQ(text(b.get()), from_a);
    }
}

TEST(Link, KeepsAnExchangeThatComesBeforeItIsAskedFor) {
    Pair pair;
    auto b =
        std::async(std::launch::async, [&] { return pair.b->exchange(bytes("early"), soon()); });
    for (int i = 0; i < 3; ++i) {
        std::this_thread::sleep_for(5ms);
        EXPECT_EQ(pair.a->peer_now(), PeerState::alive);  // which takes it off the socket
    }
    EXPECT_EQ(text(pair.a->exchange(bytes("late"), soon())), "early");
    EXPECT_EQ(text(b.get()), "late");
}

TEST(Link, RefusesAnExchangeThatIsTooLong) {
    Pair pair;
    const std::string long_text(60'001, 'x');
    EXPECT_EQ(error_of([&] { (void)pair.a->exchange(bytes(long_text), soon()); }).code(),
              ErrorCode::invalid_argument);
    auto b = std::async(std::launch::async, [&] { return pair.b->exchange({}, soon()); });
    EXPECT_NO_THROW((void)pair.a->exchange({}, soon())) << "nothing was sent before";
    (void)b.get();
}

TEST(Link, TimesOutWhenThePeerDoesNotExchange) {
    Pair pair;
    EXPECT_EQ(error_of([&] { (void)pair.a->exchange({}, within(20ms)); }).code(),
              ErrorCode::timed_out);
    EXPECT_EQ(error_of([&] { (void)pair.a->exchange({}, soon()); }).code(), ErrorCode::closed)
        << "it is out of step now";
}

TEST(Link, KnowsAGoodbyeAndItsLastWords) {
    Pair pair;
    EXPECT_EQ(pair.b->peer_now(), PeerState::alive);
    pair.a->say_goodbye(bytes("total 42"));
    pair.a->say_goodbye(bytes("ignored"));
    EXPECT_TRUE(eventually([&] { return pair.b->peer_now() == PeerState::closed; }));
    EXPECT_EQ(text(pair.b->last_words()), "total 42");
    pair.a.reset();
    EXPECT_EQ(pair.b->peer_now(), PeerState::closed) << "closed stays closed";
    EXPECT_EQ(error_of([&] { (void)pair.b->exchange({}, soon()); }).code(), ErrorCode::closed);
    pair.b->say_goodbye();  // to nobody: does nothing
}

TEST(Link, CallsAnEndWithoutGoodbyeLost) {
    Pair pair;
    pair.a.reset();
    EXPECT_TRUE(eventually([&] { return pair.b->peer() == PeerState::lost; }));
    EXPECT_EQ(error_of([&] { (void)pair.b->exchange({}, soon()); }).code(), ErrorCode::peer_lost);
}

TEST(Link, CallsGarbageOnTheSocketLost) {
    Pair pair;
    ASSERT_EQ(send(pair.a->socket(), "garbage garbage", 15, MSG_NOSIGNAL), 15);
    EXPECT_TRUE(eventually([&] { return pair.b->peer_now() == PeerState::lost; }));
}

TEST(Link, LosesAPeerThatFloodsItsSocket) {
    Pair pair;
    const std::string frame{"MLRC\x01\0\x04\0\0\0\0\0", 12};  // an empty exchange
    for (int i = 0; i < 100; ++i) {
        (void)send(pair.a->socket(), frame.data(), frame.size(), MSG_NOSIGNAL);
    }
    EXPECT_TRUE(eventually([&] { return pair.b->peer_now() == PeerState::lost; }));
}

TEST(Link, KnowsThatItsPeerWasKilled) {
    for (const Address& where : {Address::parse("127.0.0.1:0"), fresh_address()}) {
        Listener listener = Listener::listen(where);
        ChildProcess child =
            ChildProcess::start("connect_and_stay", {listener.address().to_string()});
        Link link = listener.accept(soon());
        ASSERT_EQ(child.read_line(), "connected");
        EXPECT_EQ(link.peer_now(), PeerState::alive);
        child.kill_and_wait();
        EXPECT_TRUE(eventually([&] { return link.peer() == PeerState::lost; }))
            << where.to_string();
    }
}

TEST(Link, WaitsForAPeerThatIsStopped) {
    Listener listener = Listener::listen(fresh_address());
    ChildProcess child = ChildProcess::start("connect_and_stay", {listener.address().to_string()});
    Link link = listener.accept(soon());
    ASSERT_EQ(child.read_line(), "connected");
    ASSERT_TRUE(child.stop());
    EXPECT_EQ(error_of([&] { (void)listener.accept(within(100ms)); }).code(), ErrorCode::timed_out);
    EXPECT_EQ(link.peer_now(), PeerState::alive) << "a stopped peer is not a dead one";
    child.resume();
    ASSERT_TRUE(child.write_line("goodbye"));
    EXPECT_TRUE(eventually([&] { return link.peer() == PeerState::closed; }));
    EXPECT_EQ(text(link.last_words()), "after all");
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(connect_and_stay) {
    Link link = connect(Address::parse(arguments.at(0)), {}, soon());
    millrace::test::say("connected");
    if (millrace::test::hear() == "goodbye") link.say_goodbye(bytes("after all"));
    return 0;
}

TEST(Link, OfAThousandthConnectionIsAsGoodAsTheFirst) {
    // Each must give everything back: descriptors, queue pairs, memory.
    const auto endpoint = Endpoint::open();
    Listener listener = Listener::listen(fresh_address(), {.endpoint = endpoint});
    for (int i = 0; i < 200; ++i) {
        auto accepted = test::accept_in_background(listener);
        Link a = connect(listener.address(), {.endpoint = endpoint}, soon());
        Link b = accepted.get();
        ASSERT_EQ(a.peer_now(), PeerState::alive);
        a.say_goodbye();
    }
}

TEST(Link, IsOneOfMoreThanFiveHundredToAProcessAndEachHearsOfItsDeath) {
    constexpr std::size_t count = 520;
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 8 * count) GTEST_SKIP() << "too few descriptors are allowed here";
    const auto endpoint = Endpoint::open();
    Listener listener = Listener::listen(fresh_address(), {.endpoint = endpoint});
    ChildProcess child = ChildProcess::start(
        "connect_many_and_stay", {listener.address().to_string(), std::to_string(count)});
    std::vector<Link> links;
    for (std::size_t i = 0; i < count; ++i) links.push_back(listener.accept(soon()));
    ASSERT_EQ(child.read_line(), "connected");
    child.kill_and_wait();
    for (Link& link : links) {
        pollfd entry{link.socket(), POLLIN, 0};
        ASSERT_EQ(poll(&entry, 1, 20'000), 1);
        ASSERT_TRUE(eventually([&] { return link.peer_now() == PeerState::lost; }));
    }
}

MILLRACE_CHILD(connect_many_and_stay) {
    std::vector<Link> links;
    const auto endpoint = Endpoint::open();
    for (unsigned long n = std::stoul(arguments.at(1)); n != 0; --n) {
        links.push_back(connect(Address::parse(arguments.at(0)), {.endpoint = endpoint}, soon()));
    }
    millrace::test::say("connected");
    return millrace::test::hear() ? 0 : 1;
}

TEST(LinkParker, WakesForACompletion) {
    Pair pair;
    verbs::RegisteredBuffer memory = pair.b->protection_domain().allocate(4096, open_memory);
    const ibv_sge into = memory.slice(0, 64);
    ASSERT_EQ(pair.b->queue_pair().post(verbs::Receive{.id = 9, .into = {&into, 1}}), 0);
    std::jthread sender{[&] {
        std::this_thread::sleep_for(20ms);
        const std::uint64_t word = 1;
        const ibv_sge from{reinterpret_cast<std::uint64_t>(&word), 8, 0};
        EXPECT_EQ(pair.a->queue_pair().post(
                      verbs::Send{.from = {&from, 1},
                                  .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled}),
                  0);
    }};
    LinkParker parker{*pair.b};
    verbs::Completion completion;
    const auto status = base::wait_until(
        [&] {
            return pair.b->receive_queue().poll({&completion, 1}) == 1;
        },
        soon(), base::WaitPolicy::blocking(), parker);
    EXPECT_EQ(status, base::Status::ok);
    EXPECT_EQ(completion.id(), 9U);
}

// A send window by events reads the events of all queues: what they told of raises none again.
TEST(LinkParker, LooksAgainWhenSomebodyHasTakenTheEventThatItWasToSleepFor) {
    Pair pair;
    LinkParker parker{*pair.b};
    ASSERT_EQ(pair.b->queue_pair().post(verbs::Receive{}), 0);
    parker.prepare();
    EXPECT_EQ(parker.settle(), LinkParker::Rest::sleep);
    ASSERT_EQ(pair.a->queue_pair().post(verbs::Send{.from = {}}), 0);
    ASSERT_TRUE(eventually([&] { return pair.b->channel().drain() == 1; }));
    EXPECT_EQ(parker.settle(), LinkParker::Rest::look);
    parker.prepare();
    EXPECT_EQ(parker.settle(), LinkParker::Rest::sleep) << "once is enough";
}

// By its descriptor alone, as a program's loop: nobody rings when time is over.
TEST(LinkParker, InALoopIsWokenForARequestThatRanOutOfTime) {
    Pair pair;
    pair.b->queue_pair() = verbs::QueuePair{};  // its socket, and the process, live on
    const std::uint64_t word = 1;
    const ibv_sge from{reinterpret_cast<std::uint64_t>(&word), 8, 0};
    ASSERT_EQ(pair.a->queue_pair().post(
                  verbs::Send{.from = {&from, 1},
                              .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled}),
              0);
    LinkParker parker{*pair.a};
    Readiness readiness{pair.a->news(), std::chrono::nanoseconds{0}};
    verbs::Completion completion;
    bool ended = false;
    const auto has_ended = [&] {
        ended = ended || pair.a->send_queue().poll({&completion, 1}) == 1;
        return ended;
    };
    const base::Deadline deadline = soon();
    while (!ended && !deadline.expired()) {
        readiness.rest(parker, has_ended);
        ASSERT_TRUE(millrace::test::becomes_readable(readiness.descriptor(), 20s));
        readiness.end(parker);
    }
    EXPECT_EQ(completion.status(), IBV_WC_RETRY_EXC_ERR);
}

TEST(LinkParker, WakesWhenThePeerLeaves) {
    Pair pair;
    std::jthread leaver{[&] {
        std::this_thread::sleep_for(20ms);
        pair.a->say_goodbye(bytes("bye"));
    }};
    LinkParker parker{*pair.b};
    parker.prepare();
    parker.park(20s, nullptr);
    parker.retract();
    EXPECT_EQ(pair.b->peer(), PeerState::closed);
}

// It sleeps for an hour where the request does not end it.
TEST(LinkParker, WakesWhenItIsCancelled) {
    Pair pair;
    base::Cancellation cancellation;
    std::jthread canceller{[&] {
        std::this_thread::sleep_for(20ms);
        cancellation.request();
    }};
    LinkParker parker{*pair.b};
    parker.prepare();
    parker.park(1h, &cancellation);
    parker.retract();
    EXPECT_TRUE(cancellation.requested());
    EXPECT_EQ(pair.b->peer(), PeerState::alive);
}

TEST(Link, HearsNothingOnceItIsCancelledAndSleepsUntilThen) {
    Pair pair;
    base::Cancellation cancellation;
    std::jthread canceller{[&] {
        std::this_thread::sleep_for(20ms);
        cancellation.request();
    }};
    const base::Error error = test::error_of([&] {
        (void)pair.b->exchange(bytes("?"), base::Deadline::never().cancelled_by(cancellation));
    });
    EXPECT_EQ(error.code(), base::ErrorCode::cancelled);
}

}  // namespace
}  // namespace millrace::connect
