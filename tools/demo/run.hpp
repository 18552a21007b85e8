// One measured run of one transport between two processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hosts.hpp"
#include "records.hpp"
#include "transport.hpp"

namespace millrace::tools::demo {

struct RunOptions {
    std::string rendezvous_folder;     ///< private to this process
    std::size_t ring_bytes = 4 << 20;  ///< per side
    std::uint32_t record_size = 1024;
    std::uint32_t latency_items = 2000;
    std::uint32_t latency_gap_us = 25;  ///< between latency items: the queue is empty then
    int producer_core = -1;             ///< -1: not pinned
    int consumer_core = -1;
    double limit_seconds = 120;
    const Hosts* hosts = nullptr;  ///< null: both ends are of this host
};

struct RunResult {
    double seconds = 0;  ///< first send to last record checked
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;  ///< content
    double cpu_seconds = 0;   ///< both processes, user and system, during those seconds
    double work_requests_per_item = 0;
    double system_calls_per_item = 0;
    double latency_median_us = 0;
    double latency_p99_us = 0;
    [[nodiscard]] double items_per_second() const { return static_cast<double>(items) / seconds; }
    [[nodiscard]] double megabytes_per_second() const {
        return static_cast<double>(bytes) / seconds / 1e6;
    }
};

/// Runs it: the consumer and the producer are forked, pinned and watched; a failure or death of
/// either ends the other, and throws Error. The consumer checks length, order and hash of every
/// record; the ends compare totals. `progress(items, bytes)` is called some ten times a second.
[[nodiscard]] RunResult run_once(const Transport& transport, const RecordSet& records,
                                 const RunOptions& options,
                                 const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace millrace::tools::demo
