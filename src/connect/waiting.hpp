// Waiting on sockets, so that a cancellation ends it. Used by this folder only.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>

#include "millrace/base/cancellation.hpp"
#include "millrace/base/deadline.hpp"

namespace millrace::connect {

/// poll() with a limit in nanoseconds, of at most 3 entries. `cancellation` (which may be null),
/// requested, ends it, too. Returns how many are ready; 0 also when interrupted or cancelled.
inline int poll_for(std::span<pollfd> entries, std::chrono::nanoseconds limit,
                    const base::Cancellation* cancellation = nullptr) noexcept {
    using namespace std::chrono;
    limit = std::clamp<nanoseconds>(limit, nanoseconds{0}, hours{1});
    const timespec time{.tv_sec = duration_cast<seconds>(limit).count(),
                        .tv_nsec = (limit % seconds{1}).count()};
    if (cancellation == nullptr) {
        return std::max(ppoll(entries.data(), entries.size(), &time, nullptr), 0);
    }
    std::array<pollfd, 4> all{};
    std::copy(entries.begin(), entries.end(), all.begin());
    pollfd& last = all[entries.size()];
    last = {.fd = cancellation->descriptor(), .events = POLLIN, .revents = 0};
    int ready = std::max(ppoll(all.data(), entries.size() + 1, &time, nullptr), 0);
    if (ready > 0 && last.revents != 0) --ready;
    std::copy_n(all.begin(), entries.size(), entries.begin());
    return ready;
}

/// As above, until the deadline: the caller asks the deadline and comes again.
inline int poll_for(std::span<pollfd> entries, const base::Deadline& deadline) noexcept {
    auto limit = deadline.remaining();
    const base::Cancellation* const cancellation = deadline.cancellation();
    // Without a descriptor of its own it is looked at by the clock.
    if (cancellation != nullptr && cancellation->descriptor() < 0) {
        limit = std::min<std::chrono::nanoseconds>(limit, std::chrono::milliseconds{50});
    }
    const int ready = poll_for(entries, limit, cancellation);
    if (cancellation != nullptr) cancellation->settle();
    return ready;
}

}  // namespace millrace::connect
