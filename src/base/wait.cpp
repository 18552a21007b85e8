// Parkers: how long they sleep, how long naps are, and the parker for conditions that nobody
// announces.
#include "millrace/base/wait.hpp"

#include <poll.h>

#include <algorithm>
#include <ctime>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"

namespace millrace::base {

std::chrono::nanoseconds StandingParker::next_nap() noexcept {
    nap_ = std::clamp<std::chrono::nanoseconds>(nap_ * 2, std::chrono::microseconds{20},
                                                std::chrono::milliseconds{1});
    return nap_;
}

void Parker::sleep(const Deadline& deadline) {
    const Cancellation* const cancellation = deadline.cancellation();
    auto limit = std::min(patience(), deadline.remaining());
    // Without a descriptor it is looked at by the clock.
    if (cancellation != nullptr && cancellation->descriptor() < 0) limit = std::min(limit, slice);
    park(limit, cancellation);
    if (cancellation != nullptr) cancellation->settle();
}

void NapParker::park(std::chrono::nanoseconds limit, const Cancellation* cancellation) {
    const Uncancelled held;
    constexpr std::chrono::nanoseconds longest = std::chrono::milliseconds{1};
    const auto nap = std::min(nap_, limit);
    if (nap.count() <= 0) return;
    const timespec duration{static_cast<time_t>(nap.count() / 1'000'000'000),
                            static_cast<long>(nap.count() % 1'000'000'000)};
    // A signal ends the nap early; the waiter looks again, as after any spurious return.
    pollfd entry{.fd = descriptor_of(cancellation), .events = POLLIN, .revents = 0};
    (void)ppoll(&entry, 1, &duration, nullptr);
    count_system_call();
    nap_ = std::min(nap_ * 2, longest);
}

}  // namespace millrace::base
