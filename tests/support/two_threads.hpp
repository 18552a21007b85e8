// Two threads in one end that one at a time may use: what the second is told. Such a program is
// wrong, and races before it is told so, hence not for the thread sanitizer.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"

namespace millrace::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool sees_races = true;
#else
inline constexpr bool sees_races = false;
#endif

/// `call(deadline)` waits until the deadline or its cancellation. One thread is in it when another
/// one comes; what either is told of that. Empty: nothing within 40 s.
template <class Call>
[[nodiscard]] std::optional<base::Error> told_to_two_threads(Call&& call) {
    base::Cancellation over;
    std::mutex mutex;
    std::optional<base::Error> told;
    const auto limit = base::Deadline::after(std::chrono::seconds{40});
    const auto until_told = [&] {
        while (!over.requested() && !limit.expired()) {
            try {
                call(limit.cancelled_by(over));
            } catch (const base::Error& error) {
                if (error.code() != base::ErrorCode::invalid_argument) continue;
                const std::lock_guard lock{mutex};
                told = error;
                over.request();
            }
        }
    };
    std::thread first{until_told};
    // Two that begin at the same moment may pass.
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    std::thread second{until_told};
    first.join();
    second.join();
    return told;
}

}  // namespace millrace::test
