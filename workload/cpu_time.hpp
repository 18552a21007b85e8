// Processor time of this process, for what reports it.
#pragma once

#include <sys/resource.h>

namespace millrace::workload {

/// Seconds, of all threads.
struct CpuTime {
    double user = 0;
    double system = 0;
    [[nodiscard]] double all() const noexcept { return user + system; }
};

/// Until now.
[[nodiscard]] inline CpuTime cpu_time() noexcept {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    return {seconds(usage.ru_utime), seconds(usage.ru_stime)};
}

}  // namespace millrace::workload
