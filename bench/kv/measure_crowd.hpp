// Many clients of one key-value server, each in a thread of its own, as work 002 measured: this
// library's server and memcached. The clients share one core, the server has another.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/wait.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::bench {

struct CrowdCase {
    unsigned clients = 1;
    std::string mode = "fast";  ///< as MILLRACE_SOFT_MODE has it
    base::WaitPolicy wait{};    ///< of clients and server
    connect::Transport transport = connect::Transport::rc;
    /// Over `rc`: how requests and answers travel.
    message::Transfer transfer = message::Transfer::write;
    std::size_t value_bytes = 256;
    std::uint64_t keys = 10'000;
    unsigned get_percent = 95;
    std::chrono::nanoseconds duration = std::chrono::milliseconds{250};
};

struct CrowdResult {
    double operations_per_second = 0;
    double mean_us = 0;
    double p50_us = 0;
    double p95_us = 0;
    double p99_us = 0;
    double least_to_mean = 0;  ///< operations of the client that was served least, to the mean
    /// Context switches of both processes, per operation.
    double switches = 0;
};

/// Throws Error; not_found, if the program is not installed.
[[nodiscard]] CrowdResult measure_crowd(const CrowdCase& chosen);
/// Over Unix stream sockets; its clients' calls block. In `mode` fast alone: no link limits it.
[[nodiscard]] CrowdResult measure_memcached_crowd(const CrowdCase& chosen);

}  // namespace millrace::bench
