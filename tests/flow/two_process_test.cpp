// Flow queues between two processes: completeness, sleeping, death, standstill.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "flow/ends.hpp"
#include "support/child_process.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;
using test::unique_address;

struct SentItem {
    std::uint64_t number;
    std::uint64_t body[7];

    static SentItem make(std::uint64_t number) {
        SentItem item{number, {}};
        for (std::uint64_t i = 0; i < 7; ++i) item.body[i] = number ^ (i << 32);
        return item;
    }
    [[nodiscard]] bool is(std::uint64_t expected) const {
        const SentItem right = make(expected);
        return std::memcmp(this, &right, sizeof right) == 0;
    }
};

base::WaitPolicy policy_of(const std::string& name) {
    if (name == "polling") return base::WaitPolicy::polling();
    if (name == "blocking") return base::WaitPolicy::blocking();
    return {};
}

// ---- children: arguments are address, design, capacity, wait policy, count

template <ring::Design D>
int consume(const std::vector<std::string>& a) {
    auto consumer = Consumer<SentItem, D>::listen(
        a[0], {.ring = {.capacity = std::stoull(a[2])}, .wait = policy_of(a[3])},
        Deadline::after(40s));
    say("connected");
    std::uint64_t next = 0;
    SentItem item;
    Status status;
    while ((status = consumer.dequeue(item, Deadline::after(40s))) == Status::ok) {
        if (!item.is(next)) {
            say("wrong item at " + std::to_string(next));
            return 1;
        }
        ++next;
    }
    say(std::to_string(next) + " " + std::string{name_of(status)});
    return 0;
}
MILLRACE_CHILD(flow_consumer) {
    return arguments[1] == "1" ? consume<ring::design_1>(arguments)
                               : consume<ring::design_2>(arguments);
}

template <ring::Design D>
int produce(const std::vector<std::string>& a) {
    auto producer = Producer<SentItem, D>::connect(
        a[0], {.ring = {.capacity = std::stoull(a[2])}, .wait = policy_of(a[3])},
        Deadline::after(40s));
    say("connected");
    Status status = Status::ok;
    const std::uint64_t count = std::stoull(a[4]);
    for (std::uint64_t i = 0; i < count && status == Status::ok; ++i) {
        status = producer.enqueue(SentItem::make(i), Deadline::after(40s));
    }
    if (status == Status::ok) status = producer.close(Deadline::after(40s));
    say(std::string{name_of(status)});
    return 0;
}
MILLRACE_CHILD(flow_producer) {
    return arguments[1] == "1" ? produce<ring::design_1>(arguments)
                               : produce<ring::design_2>(arguments);
}

struct Case {
    const char* design;
    const char* capacity;
    const char* wait;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "design " << c.design << ", capacity " << c.capacity << ", " << c.wait;
}

/// On a device that is not this host's memory, or behind a link, an item takes microseconds; in
/// mode strict, too, and waking who sleeps for space takes several requests that come late.
std::uint64_t item_count(std::uint64_t many) {
    const char* const device = std::getenv("MILLRACE_DEVICE");
    const bool soft = device == nullptr || std::string{device}.starts_with("soft");
    const char* const mode = std::getenv("MILLRACE_SOFT_MODE");
    const bool late = mode != nullptr && (std::string{mode}.starts_with("shaped") ||
                                          std::string{mode}.starts_with("strict"));
    return soft && !late ? many : many / 20;
}

class FlowBetweenProcesses : public testing::TestWithParam<Case> {};

TEST_P(FlowBetweenProcesses, DeliversEveryItemInOrder) {
    const std::string address = unique_address();
    const auto [design, capacity, wait] = GetParam();
    // Laps of the ring are what counts, and an item for which somebody is woken costs most.
    const bool is_long = std::string{capacity}.size() > 1;
    const bool sleeps = std::string{wait} == "blocking";
    const std::string count = std::to_string(item_count(!is_long ? 20'000
                                                        : sleeps ? 50'000
                                                                 : 200'000));
    ChildProcess consumer = ChildProcess::start("flow_consumer", {address, design, capacity, wait});
    ChildProcess producer =
        ChildProcess::start("flow_producer", {address, design, capacity, wait, count});
    EXPECT_EQ(producer.read_line(60s), "connected");
    EXPECT_EQ(consumer.read_line(60s), "connected");
    EXPECT_EQ(producer.read_line(60s), "ok");
    EXPECT_EQ(consumer.read_line(60s), count + " closed");
    EXPECT_TRUE(producer.wait().success());
    EXPECT_TRUE(consumer.wait().success());
}

INSTANTIATE_TEST_SUITE_P(Every, FlowBetweenProcesses,
                         testing::Values(Case{"1", "1", "default"}, Case{"2", "1", "default"},
                                         Case{"1", "2", "blocking"}, Case{"2", "2", "blocking"},
                                         Case{"1", "3", "default"}, Case{"2", "3", "default"},
                                         Case{"1", "4", "blocking"}, Case{"2", "4", "blocking"},
                                         Case{"1", "100", "blocking"}, Case{"2", "100", "blocking"},
                                         Case{"1", "1000", "default"},
                                         Case{"2", "1000", "default"}),
                         [](const auto& tested) {
                             return "design" + std::string{tested.param.design} + "capacity" +
                                    tested.param.capacity + tested.param.wait;
                         });

class FlowAndDeath : public testing::TestWithParam<const char*> {};

TEST_P(FlowAndDeath, ConsumerTakesWhatArrivedAndReportsTheProducersDeath) {
    const std::string address = unique_address();
    ChildProcess consumer =
        ChildProcess::start("flow_consumer", {address, GetParam(), "100", "default"});
    ChildProcess producer = ChildProcess::start(
        "flow_producer", {address, GetParam(), "100", "default", "1000000000000"});
    ASSERT_EQ(producer.read_line(60s), "connected");
    ASSERT_EQ(consumer.read_line(60s), "connected");
    std::this_thread::sleep_for(20ms);
    producer.kill();
    const auto line = consumer.read_line(30s);  // dequeue itself would wait for 40 s
    ASSERT_TRUE(line.has_value());
    EXPECT_TRUE(line->ends_with(" peer_lost")) << *line;
    EXPECT_TRUE(consumer.wait().success());
}

TEST_P(FlowAndDeath, ProducerReportsTheConsumersDeath) {
    const std::string address = unique_address();
    ChildProcess consumer =
        ChildProcess::start("flow_consumer", {address, GetParam(), "100", "default"});
    ChildProcess producer = ChildProcess::start(
        "flow_producer", {address, GetParam(), "100", "default", "1000000000000"});
    ASSERT_EQ(producer.read_line(60s), "connected");
    ASSERT_EQ(consumer.read_line(60s), "connected");
    std::this_thread::sleep_for(20ms);
    consumer.kill();
    EXPECT_EQ(producer.read_line(30s), "peer_lost");
    EXPECT_TRUE(producer.wait().success());
}

TEST_P(FlowAndDeath, SleepingConsumerHearsOfTheProducersDeath) {
    const std::string address = unique_address();
    ChildProcess consumer =
        ChildProcess::start("flow_consumer", {address, GetParam(), "100", "blocking"});
    {
        ChildProcess other =
            ChildProcess::start("flow_idle_producer", {address, GetParam(), "100", "blocking"});
        ASSERT_EQ(other.read_line(60s), "connected");
        ASSERT_EQ(consumer.read_line(60s), "connected");
        std::this_thread::sleep_for(100ms);
        other.kill();
    }
    EXPECT_EQ(consumer.read_line(30s), "1 peer_lost");
    EXPECT_TRUE(consumer.wait().success());
}

template <ring::Design D>
int idle(const std::vector<std::string>& a) {
    auto producer = Producer<SentItem, D>::connect(
        a[0], {.ring = {.capacity = std::stoull(a[2])}, .wait = policy_of(a[3])},
        Deadline::after(40s));
    (void)producer.enqueue(SentItem::make(0), Deadline::after(40s));
    (void)producer.flush(Deadline::after(40s));
    say("connected");
    (void)hear();
    return 0;
}
MILLRACE_CHILD(flow_idle_producer) {
    return arguments[1] == "1" ? idle<ring::design_1>(arguments) : idle<ring::design_2>(arguments);
}

TEST_P(FlowAndDeath, NothingIsLostWhenEitherSideStandsStill) {
    for (const char* const wait : {"default", "blocking"}) {
        const std::string address = unique_address();
        // Enough for all rounds below: those who sleep take ten times as long for an item.
        const bool sleeps = std::string{wait} == "blocking";
        const std::string count = std::to_string(item_count(sleeps ? 100'000 : 400'000));
        ChildProcess consumer =
            ChildProcess::start("flow_consumer", {address, GetParam(), "50", wait});
        ChildProcess producer =
            ChildProcess::start("flow_producer", {address, GetParam(), "50", wait, count});
        ASSERT_EQ(producer.read_line(60s), "connected");
        ASSERT_EQ(consumer.read_line(60s), "connected");
        for (int round = 0; round < 10; ++round) {
            ChildProcess& other = round % 2 == 0 ? consumer : producer;
            if (!other.stop(1s)) {  // it has ended already, or is slow to stop
                other.resume();
                break;
            }
            std::this_thread::sleep_for(10ms);
            other.resume();
            std::this_thread::sleep_for(3ms);
        }
        EXPECT_EQ(producer.read_line(60s), "ok");
        EXPECT_EQ(consumer.read_line(60s), count + " closed");
        EXPECT_TRUE(producer.wait().success());
        EXPECT_TRUE(consumer.wait().success());
    }
}

TEST_P(FlowAndDeath, ANewPairConnectsAtOnceAfterAKillAtAnyInstant) {
    for (int round = 0; round < 10; ++round) {
        const std::string address = unique_address();
        ChildProcess consumer =
            ChildProcess::start("flow_consumer", {address, GetParam(), "20", "default"});
        ChildProcess producer = ChildProcess::start(
            "flow_producer", {address, GetParam(), "20", "default", "1000000000000"});
        ASSERT_EQ(producer.read_line(60s), "connected");
        ASSERT_EQ(consumer.read_line(60s), "connected");
        std::this_thread::sleep_for(std::chrono::microseconds{round * 700});
        if (round % 2 == 0) {
            producer.kill();
            const auto line = consumer.read_line(30s);
            ASSERT_TRUE(line.has_value());
            EXPECT_TRUE(line->ends_with(" peer_lost")) << *line;
        } else {
            consumer.kill();
            EXPECT_EQ(producer.read_line(30s), "peer_lost");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Designs, FlowAndDeath, testing::Values("1", "2"),
                         [](const auto& tested) { return "design" + std::string{tested.param}; });

}  // namespace
}  // namespace millrace::flow
