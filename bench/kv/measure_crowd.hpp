// Many clients of one key-value server, each in a thread of its own, as work 002 measured: this
// library's server and memcached. The clients share one core, the server has another.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/histogram.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/kv/store.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::bench {

struct CrowdCase {
    unsigned clients = 1;
    std::string mode = "fast";  ///< as MILLRACE_SOFT_MODE has it
    base::WaitPolicy wait{};    ///< of clients and server
    connect::Transport transport = connect::Transport::rc;
    /// Over `rc`: how requests and answers travel.
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
    kv::TableKind table = kv::TableKind::cuckoo;
    /// Of the server. More than one, and clients, run where they like within half of the processors
    /// each; with two processors that is one.
    unsigned server_threads = 1;
    std::size_t value_bytes = 256;
    std::uint64_t keys = 10'000;
    unsigned get_percent = 95;
    std::chrono::nanoseconds duration = std::chrono::milliseconds{250};
    std::uint64_t operations = 0;  ///< of all clients, in place of the duration; 0: by time
    /// Where each operation of the run is written (workload::write_operations); empty: nowhere.
    std::string save{};
    /// Of all clients together; latencies count from when a request was due (workload/pace.hpp). 0:
    /// each asks again as soon as it has its answer.
    double offered_per_second = 0;
    std::uint32_t outstanding = 1;      ///< requests of a client on their way at a time
    std::string carrier = "automatic";  ///< as MILLRACE_CARRIER has it
    message::PostingHabits posting{};
};

struct CrowdResult {
    double operations_per_second = 0;
    double mean_us = 0;
    double p50_us = 0;
    double p99_us = 0;
    double p999_us = 0;
    /// Of latencies; of all clients together. By it the quantities above are computed.
    std::shared_ptr<const base::Histogram> latencies{};
    double least_to_mean = 0;  ///< operations of the client that was served least, to the mean
    /// Context switches of each process, per operation; those of connecting included.
    double server_switches = 0;
    double client_switches = 0;

    /// What so many thousandths of all latencies do not exceed.
    [[nodiscard]] double quantile_us(std::size_t thousandths) const;
    /// From the first quarter's end to the third's.
    [[nodiscard]] double interquartile_us() const;
    /// Of 2,000 quantiles.
    [[nodiscard]] double deviation_us() const;
};

/// Throws Error; not_found, if the program is not installed.
[[nodiscard]] CrowdResult measure_crowd(const CrowdCase& chosen);
/// Over Unix stream sockets; its clients' calls block. In `mode` fast alone: no link limits it.
[[nodiscard]] CrowdResult measure_memcached_crowd(const CrowdCase& chosen);

}  // namespace millrace::bench
