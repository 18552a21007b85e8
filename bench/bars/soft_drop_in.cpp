// Bars of the soft device under unmodified programs: perftest with its buffers shared
// (MILLRACE_REMAP=1), to what two cores can do at best, and on its own private memory to
// the bare system call.
#include <cstdint>
#include <string>

#include "bench/framework/bars.hpp"
#include "bench/limits/cache_line.hpp"
#include "bench/limits/copies.hpp"
#include "bench/peers/perftest.hpp"

namespace millrace::bench {
namespace {

constexpr std::uint64_t round_trips = 40'000;
constexpr std::uint64_t large_writes = 1U << 20;

/// One way, in nanoseconds.
double latency(const std::string& program, bool remapped) {
    return 1e3 * run_perftest({.program = program,
                               .iterations = round_trips,
                               .remapped = remapped})[typical_microseconds];
}

/// The yardstick one way: perftest halves its round trips, too.
double cache_line_one_way() { return cache_line_round_trip(round_trips) / 2; }

/// A program's latency with shared buffers, in cache lines.
Bar latency_bar(const std::string& program, double limit) {
    return {.group = "soft",
            .name = program + " -s 8, shared buffers, to a cache line one way",
            .limit = limit,
            .sense = Sense::at_most,
            .unit = "x",
            .measure = [program](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({program, [program] { return latency(program, true); }, "ns"});
                rounds.add({"line", cache_line_one_way, "ns"});
                return rounds.run().ratio(program, "line");
            }};
}

/// Millions of messages a second, posted in lists of 32.
Bar rate_bar(const std::string& program, std::uint64_t messages) {
    return {.group = "soft",
            .name = program + " -s 8 -l 32, shared buffers",
            .limit = 6,
            .sense = Sense::at_least,
            .unit = "M/s",
            .measure = [program, messages](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({program,
                            [program, messages] {
                                return run_perftest({.program = program,
                                                     .iterations = messages,
                                                     .arguments = {"-l", "32"},
                                                     .remapped = true})[million_messages];
                            },
                            "M/s"});
                return rounds.run().summary(program);
            }};
}

const BarRegistration write_latency{latency_bar("ib_write_lat", 1.8)};
const BarRegistration send_latency{latency_bar("ib_send_lat", 4)};
const BarRegistration perftest_write_rate{rate_bar("ib_write_bw", 4'000'000)};
const BarRegistration perftest_send_rate{rate_bar("ib_send_bw", 1'000'000)};

const BarRegistration bandwidth{
    {.group = "soft",
     .name = "ib_write_bw -s 1048576, shared buffers, to memcpy between hot ones",
     .limit = 0.9,
     .sense = Sense::at_least,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"ib_write_bw",
                     [] {
                         return run_perftest({.program = "ib_write_bw",
                                              .bytes = large_writes,
                                              .iterations = 4'000,
                                              .arguments = {"--report_gbits"},
                                              .remapped = true})[average_bandwidth] /
                                8;
                     },
                     "GB/s"});
         rounds.add({"memcpy", [] { return copy_hot(large_writes); }, "GB/s"});
         return rounds.run().ratio("ib_write_bw", "memcpy");
     }}};

const BarRegistration private_memory{
    {.group = "soft",
     .name = "ib_write_lat -s 8, private memory, to the bare system call",
     .limit = 1.3,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"ib_write_lat", [] { return latency("ib_write_lat", false); }, "ns"});
         rounds.add({"bare", [] { return process_vm_one_way(round_trips); }, "ns"});
         return rounds.run().ratio("ib_write_lat", "bare");
     }}};

}  // namespace
}  // namespace millrace::bench
