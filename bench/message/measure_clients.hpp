// What a crowd of clients gets of one server: as threads that share two cores, at a rate that does
// not wait for answers, and while nobody asks anything. Used by the bars of messaging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/wait.hpp"
#include "millrace/message/session.hpp"

namespace millrace::bench {

/// Calls of 64 bytes a second of so many threads, each with a client of its own and one request at
/// a time. They and the server's thread share two cores.
double calls_of_threads(std::size_t threads);

/// Echoes of 64 bytes a second of so many channels, whose ends are a thread each and share two
/// cores. `mode`: the soft device's. `wait`: of both.
double echoes_of_pairs(std::size_t pairs, const std::string& mode,
                       const base::WaitPolicy& wait = {});

/// Requests that come at random times of a rate, whatever has been answered, as a share of what the
/// same clients get answered at most.
struct OpenLoad {
    message::Polling polling = message::Polling::automatic;
    std::size_t clients = 64;  ///< driven by one thread
    double share = 0.7;
    std::uint64_t requests = 300'000;
};
struct OpenLatency {
    double capacity = 0;    ///< requests a second
    double median_ns = 0;   ///< from when a request was due, to its answer
    double longest_ns = 0;  ///< of all but one in a thousand
};
OpenLatency latency_at_rate(const OpenLoad& setting);

/// Percent of a core that the process of a server takes whose clients, so many, are idle.
double percent_of_idle_clients(std::size_t clients);
/// Nanoseconds of a call of one of so many clients, to a server that sleeps: the median.
double call_to_sleeping(std::size_t clients);

}  // namespace millrace::bench
