// How often a thread has slept, as the kernel counts it: what a wait without looks is told by.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace millrace::test {

/// Times that the calling thread has given its processor away to wait, so far.
[[nodiscard]] inline std::uint64_t sleeps_of_this_thread() noexcept {
    rusage use{};
    (void)getrusage(RUSAGE_THREAD, &use);
    return static_cast<std::uint64_t>(use.ru_nvcsw);
}

}  // namespace millrace::test
