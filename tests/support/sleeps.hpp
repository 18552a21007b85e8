// How often a thread has slept, as the kernel counts it: what a wait without looks is told by.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace millrace::test {

/// Times that the calling thread has given its processor away to wait, so far.
[[nodiscard]] inline std::uint64_t sleeps_of_this_thread() noexcept {
    rusage use{};
    (void)getrusage(RUSAGE_THREAD, &use);
    return static_cast<std::uint64_t>(use.ru_nvcsw);
}

/// The same of another thread of this process.
[[nodiscard]] inline std::uint64_t sleeps_of_thread(pid_t thread) {
    std::ifstream status{"/proc/self/task/" + std::to_string(thread) + "/status"};
    const std::string name = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name)) return std::stoull(line.substr(name.size()));
    }
    return 0;
}

}  // namespace millrace::test
