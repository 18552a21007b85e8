// Waiting on sockets in slices, so that a cancellation is noticed. Used by this folder only.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "millrace/base/deadline.hpp"

namespace millrace::connect {

/// poll() with a limit in nanoseconds. Returns how many are ready; 0 also when interrupted.
inline int poll_for(std::span<pollfd> entries, std::chrono::nanoseconds limit) noexcept {
    using namespace std::chrono;
    limit = std::clamp<nanoseconds>(limit, nanoseconds{0}, hours{1});
    const timespec time{.tv_sec = duration_cast<seconds>(limit).count(),
                        .tv_nsec = (limit % seconds{1}).count()};
    return std::max(ppoll(entries.data(), entries.size(), &time, nullptr), 0);
}

/// As above, until the deadline, at most 50 ms: the caller asks the deadline and comes again.
inline int poll_for(std::span<pollfd> entries, const base::Deadline& deadline) noexcept {
    return poll_for(entries, std::min<std::chrono::nanoseconds>(std::chrono::milliseconds{50},
                                                                deadline.remaining()));
}

}  // namespace millrace::connect
