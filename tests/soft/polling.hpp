// Polling as tests do: busily at first, and then so that others have the processor.
#pragma once

#include <chrono>
#include <thread>

#include "millrace/base/detail/uncancelled.hpp"

namespace millrace::test {

/// What `poll()` gives at last; nothing, after `limit`. For a millisecond it polls as a program
/// that spins does; what takes longer waits for a timer or for another process.
template <class Poll>
[[nodiscard]] auto poll_for(std::chrono::milliseconds limit, Poll&& poll) -> decltype(poll()) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    for (auto now = begin; now < begin + limit; now = Clock::now()) {
        if (auto found = poll()) return found;
        if (now > begin + std::chrono::milliseconds{1}) {
            const base::Uncancelled held;  // polling is no place to be cancelled in
            std::this_thread::sleep_for(std::chrono::microseconds{50});
        }
    }
    return poll();
}

}  // namespace millrace::test
