// What a crowd of clients gets of one server: as threads that share two cores, and while nobody
// asks anything. Used by the bars of messaging. (At a rate that does not wait for answers:
// open_loop.hpp.)
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

struct CrowdSetting {
    message::Polling polling = message::Polling::flag;
    std::size_t clients = 16;
    bool processes = false;  ///< each client in a process of its own; else in a thread
    std::string mode{};      ///< of the soft device; empty: as the environment says
};
struct CrowdOfCalls {
    double per_second = 0;
    double mean_us = 0;  ///< of the same calls
    double p99_us = 0;
};
/// Calls of 64 bytes, each client with one at a time; all of them on one core, the server's thread
/// on another.
CrowdOfCalls calls_of_crowd(const CrowdSetting& setting);

/// Echoes of 64 bytes a second of so many channels, whose ends are a thread each and share two
/// cores. `mode`: the soft device's. `wait`: of both.
double echoes_of_pairs(std::size_t pairs, const std::string& mode,
                       const base::WaitPolicy& wait = {});

/// Percent of a core that the process of a server takes whose clients, so many, are idle.
double percent_of_idle_clients(std::size_t clients);
/// Nanoseconds of a call of one of so many clients, to a server that sleeps: the median.
double call_to_sleeping(std::size_t clients);
/// What the machine takes for that: nanoseconds from a write to an eventfd until a thread that
/// slept in an epoll of it on the other core has stored an answer: the median.
double wake_of_sleeping();

}  // namespace millrace::bench
