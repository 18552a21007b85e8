// Parkers: how long naps are, and the parker for conditions that nobody announces.
#include "millrace/base/wait.hpp"

#include <ctime>

#include "millrace/base/uncancelled.hpp"

namespace millrace::base {

std::chrono::nanoseconds StandingParker::next_nap() noexcept {
    nap_ = std::clamp<std::chrono::nanoseconds>(nap_ * 2, std::chrono::microseconds{20},
                                                std::chrono::milliseconds{1});
    return nap_;
}

void NapParker::park(std::chrono::nanoseconds limit) {
    const Uncancelled held;
    constexpr std::chrono::nanoseconds longest = std::chrono::milliseconds{1};
    const auto nap = std::min(nap_, limit);
    if (nap.count() <= 0) return;
    const timespec duration{static_cast<time_t>(nap.count() / 1'000'000'000),
                            static_cast<long>(nap.count() % 1'000'000'000)};
    // A signal ends the nap early; the waiter looks again, as after any spurious return.
    clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
    count_system_call();
    nap_ = std::min(nap_ * 2, longest);
}

}  // namespace millrace::base
