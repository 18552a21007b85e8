// What the ends count, read by another process from their statistics pages.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "flow/ends.hpp"
#include "millrace/base/statistics.hpp"
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

/// The counters of the one page of that title in a process.
std::map<std::string, std::uint64_t> page_of(int pid, const std::string& title) {
    std::map<std::string, std::uint64_t> counters;
    for (const auto& page : base::StatisticsPage::of_process(pid)) {
        if (page.title != title) continue;
        EXPECT_TRUE(counters.empty()) << "two pages of that title";
        counters.insert(page.counters.begin(), page.counters.end());
    }
    return counters;
}

constexpr std::uint64_t items = 5000;

MILLRACE_CHILD(flow_watched_producer) {
    auto producer = Producer<std::uint64_t>::connect(
        arguments[0], {.ring = {.carrier = ring::Carrier::post}, .name = "watched"},
        Deadline::after(40s));
    for (std::uint64_t i = 0; i < items; ++i) {
        if (producer.enqueue(i, Deadline::after(40s)) != Status::ok) return 1;
    }
    if (producer.flush(Deadline::after(40s)) != Status::ok) return 2;
    say("flushed");
    if (!hear()) return 3;
    // The other way round: the consumer's page, read from here.
    auto consumer = page_of(std::stoi(arguments[1]), "flow consumer watched");
    say(std::to_string(consumer["items"]) + " " + std::to_string(consumer["payload_bytes"]));
    return producer.close(Deadline::after(40s)) == Status::ok ? 0 : 4;
}

TEST(FlowStatistics, AreReadByOtherProcesses) {
    const std::string address = unique_address();
    ChildProcess child =
        ChildProcess::start("flow_watched_producer", {address, std::to_string(getpid())});
    auto consumer =
        Consumer<std::uint64_t>::listen(address, {.name = "watched"}, Deadline::after(40s));
    std::uint64_t item = 0;
    for (std::uint64_t i = 0; i < items; ++i) {
        ASSERT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
        ASSERT_EQ(item, i);
    }
    ASSERT_EQ(child.read_line(60s), "flushed");
    auto producer = page_of(child.pid(), "flow producer watched");
    EXPECT_EQ(producer["items"], items);
    EXPECT_EQ(producer["payload_bytes"], items * sizeof(std::uint64_t));
    EXPECT_GE(producer["data_writes"], 1U);
    EXPECT_GE(producer["work_requests"], producer["data_writes"]);
    const std::uint64_t ring_bytes = items * 2 * sizeof(std::uint64_t);  // an item and its mark
    for (const char* const position : {"ring_bytes", "intransit_bytes", "transferred_bytes"}) {
        EXPECT_EQ(producer[position], ring_bytes) << position;
    }
    EXPECT_LE(producer["credited_bytes"], ring_bytes);
    (void)std::as_const(consumer).stats();  // shows what there is to this instant
    child.write_line("read mine");
    EXPECT_EQ(child.read_line(60s), std::to_string(items) + " " + std::to_string(items * 8));
    EXPECT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::closed);
    EXPECT_TRUE(child.wait().success());
}

}  // namespace
}  // namespace millrace::flow
