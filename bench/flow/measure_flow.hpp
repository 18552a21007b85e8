// One measurement of a flow queue between two processes, as work 000, chapter 6, makes it: a stream
// of items, or items to and fro. Called by run_flow.cpp for every point of every figure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/flow/options.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::bench {

/// Modes of the two networks of work 000.
inline constexpr const char* ten_gigabits = "shaped:10g,latency=1us";
inline constexpr const char* forty_gigabits = "shaped:40g,latency=1us";

struct FlowCase {
    ring::Design design = ring::design_1;
    std::size_t item_bytes = 64;
    std::uint64_t capacity = 8192;  ///< items in each of the two rings
    std::uint32_t receive_pool = 64;
    std::uint32_t credit_parts = 8;
    end::Completions completions = end::Completions::polled;  ///< of the producer
    std::optional<std::uint32_t> batch{};  ///< designs with batching; not given: their default
    std::string mode = "fast";             ///< as MILLRACE_SOFT_MODE has it
    std::string device = "soft0";
    ring::Carrier carrier = ring::Carrier::post;  ///< the work measures requests
    std::uint64_t items = std::uint64_t{1} << 20;
    /// A run ends after this time even if it has not moved that many items.
    std::chrono::nanoseconds limit = std::chrono::seconds{30};
};

/// What a stream of items took. Everything is per item that was measured; items that warm up are
/// not counted. Times are means of every 17th call without the slowest hundredth, in nanoseconds; 0
/// where there was no such call.
struct StreamResult {
    std::uint64_t items = 0;
    double seconds = 0;            ///< from the first enqueue to the end of the flush
    double enqueue_ns = 0;         ///< of calls that answered ok
    double full_ns = 0;            ///< full
    double dequeue_ns = 0;         ///< ok
    double empty_ns = 0;           ///< empty
    double fulls = 0;              ///< answers `full`
    double empties = 0;            ///< answers `empty`
    double transfer_ratio = 0;     ///< requests that told or asked how far items have arrived
    double space_ratio = 0;        ///< requests that told or asked for space
    double producer_requests = 0;  ///< all work requests, and receives posted
    double consumer_requests = 0;
    double consumer_events = 0;  ///< of these, wake-ups for a producer that slept in its flush
    double producer_calls = 0;   ///< system calls
    double consumer_calls = 0;
    // Where a producer sends without credit (studies/flow/measure_uncredited.hpp).
    double retried = 0;  ///< sends that found no receive, and were sent again
    double dropped = 0;  ///< ... and were lost

    [[nodiscard]] double items_per_second() const { return static_cast<double>(items) / seconds; }
    [[nodiscard]] double requests() const { return producer_requests + consumer_requests; }
};

/// Enqueues without pauses in one process, dequeues in another; both spin. Throws base::Error.
[[nodiscard]] StreamResult measure_stream(const FlowCase& chosen);

/// Nanoseconds from enqueue to dequeue in empty queues: half of the round trip over two queues of
/// opposite direction, median of the windows. At most `handshakes`. Rings of at most 4 MiB.
[[nodiscard]] double measure_transfer(const FlowCase& chosen,
                                      std::uint64_t handshakes = std::uint64_t{1} << 17);

/// What a program does around a queue: how its items come, and what else its threads have to do.
struct FlowLoad {
    std::uint32_t burst = 0;                     ///< items that come together; 0: they never stop
    std::chrono::nanoseconds producer_works{0};  ///< for each item
    std::chrono::nanoseconds consumer_works{0};
};

/// Items a second, while they never stop, by the consumer's laps of the ring; of bursts, the
/// median's nanoseconds from the first enqueue until the last item has been taken, where a burst
/// begins after the one before it was taken. A producer that has nothing else to do helps what it
/// has sent on its way, by flush; a busy one calls nothing between bursts, unless one is late by a
/// millisecond.
[[nodiscard]] double measure_load(const FlowCase& chosen, const FlowLoad& load);

/// The same by raw WRITEs of the same size, each side looking at the last word; written and read in
/// full, as items are.
[[nodiscard]] double measure_raw_write(const FlowCase& chosen,
                                       std::uint64_t handshakes = std::uint64_t{1} << 17);

/// A stream over a TCP connection of the loopback: one send for each item and one recv that waits
/// for all of it. Uses size, items and limit, and of the mode a link's rate: the sender is paced.
[[nodiscard]] StreamResult measure_socket_stream(const FlowCase& chosen);
/// Half of the round trip of blocking sends and receives.
[[nodiscard]] double measure_socket_transfer(const FlowCase& chosen);

}  // namespace millrace::bench
