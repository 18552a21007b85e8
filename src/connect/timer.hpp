// Setting timerfds. Used by what has one in an epoll: hubs, listeners, Readiness.
#pragma once

#include <sys/timerfd.h>

#include <algorithm>
#include <chrono>

#include "millrace/base/detail/system_calls.hpp"

namespace millrace::connect {

inline constexpr std::chrono::nanoseconds no_alarm = std::chrono::nanoseconds::max();

/// Readable behind `delay`, at once if that is not positive; never, for no_alarm. What was due
/// before is forgotten.
inline void set_timer(int timer, std::chrono::nanoseconds delay) noexcept {
    itimerspec time{};
    if (delay != no_alarm) {
        const auto left = std::max(delay, std::chrono::nanoseconds{1});
        time.it_value.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
        time.it_value.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    }
    timerfd_settime(timer, 0, &time, nullptr);
    base::count_system_call();
}

}  // namespace millrace::connect
