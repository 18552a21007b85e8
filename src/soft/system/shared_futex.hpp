// Sleeping on a word of memory that processes share, and waking who sleeps there. Called by both
// ends of the copy service.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "millrace/base/detail/system_calls.hpp"

namespace millrace::soft {

/// Sleeps while `word` is `seen`, at most for `limit`; may wake for nothing.
inline void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::chrono::nanoseconds limit) noexcept {
    static_assert(sizeof word == sizeof(std::uint32_t));
    timespec time{};
    time.tv_sec = limit.count() / 1'000'000'000;
    time.tv_nsec = limit.count() % 1'000'000'000;
    base::count_system_call();
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr,
            0);
}

inline void wake_sleepers(std::atomic<std::uint32_t>& word) noexcept {
    base::count_system_call();
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

}  // namespace millrace::soft
