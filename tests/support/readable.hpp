// Looking at descriptors as a program's own loop does.
#pragma once

#include <poll.h>

#include <chrono>

namespace millrace::test {

/// True if it becomes readable within `limit`.
[[nodiscard]] inline bool becomes_readable(int descriptor, std::chrono::milliseconds limit) {
    pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}
[[nodiscard]] inline bool is_readable(int descriptor) {
    return becomes_readable(descriptor, std::chrono::milliseconds{0});
}

}  // namespace millrace::test
