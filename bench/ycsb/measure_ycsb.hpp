// One run of the Yahoo! Cloud Serving Benchmark: clients load the records into a store, and then
// carry out a workload, in a closed loop or at a rate. Called by run_ycsb.hpp.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "connections.hpp"
#include "millrace/base/histogram.hpp"
#include "workload/ycsb/workload.hpp"

namespace millrace::bench {

struct YcsbCase {
    workload::YcsbWorkload workload = workload::ycsb_workloads[2];
    std::uint64_t records = 10'000;
    std::size_t fields = 10;
    std::size_t field_bytes = 100;
    unsigned clients = 1;  ///< each in a thread of its own
    /// Of all clients together; each operation is due at a time of its own, and what it takes
    /// counts from then. 0: each client goes on as soon as it has its answer.
    double offered_per_second = 0;
    bool loads = true;  ///< false: the records are there
    std::chrono::nanoseconds warm_up = std::chrono::milliseconds{250};  ///< which does not count
    std::chrono::nanoseconds duration = std::chrono::seconds{1};
};

struct YcsbResult {
    double load_per_second = 0;  ///< records; 0: they were there
    double operations_per_second = 0;
    // Operations that failed. They count neither above nor below.
    std::uint64_t missing = 0;  ///< there was no such record
    std::uint64_t refused = 0;  ///< the store did not do it
    std::uint64_t wrong = 0;    ///< a value of another record, or none that was written
    /// Nanoseconds of each that succeeded, by YcsbOperation.
    std::array<std::unique_ptr<base::Histogram>, workload::every_ycsb_operation.size()> times;

    YcsbResult();
    [[nodiscard]] std::uint64_t failed() const noexcept { return missing + refused + wrong; }
    [[nodiscard]] const base::Histogram& times_of(
        workload::YcsbOperation operation) const noexcept {
        return *times[static_cast<std::size_t>(operation)];
    }
};

/// By connections that `connect()` makes, one for each client, on the cores of the calling thread.
/// Throws Error: what it throws; timed_out: the rate is not held by far.
[[nodiscard]] YcsbResult run_ycsb_clients(
    const YcsbCase& chosen, const std::function<std::unique_ptr<YcsbConnection>()>& connect);

/// With a server of its own on the second core, started for this; `mode`: of the soft device, as
/// MILLRACE_SOFT_MODE has it. Throws Error; not_found: there is no such program.
[[nodiscard]] YcsbResult measure_ycsb(const YcsbCase& chosen, const YcsbWay& way,
                                      const std::string& mode);
/// Of a server that is there, with what it may have of other keys.
[[nodiscard]] YcsbResult measure_ycsb_of(const YcsbCase& chosen, const YcsbWay& way,
                                         const std::string& server);

}  // namespace millrace::bench
