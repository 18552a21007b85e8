// Looking at descriptors as a program's own loop does.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>

#include "millrace/base/deadline.hpp"

namespace millrace::test {

/// True if it becomes readable within `limit`.
[[nodiscard]] inline bool becomes_readable(int descriptor, std::chrono::milliseconds limit) {
    pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}
[[nodiscard]] inline bool is_readable(int descriptor) {
    return becomes_readable(descriptor, std::chrono::milliseconds{0});
}

/// Calls, as a loop does for a readable descriptor, until it is not. False: it stays readable.
template <class Call>
[[nodiscard]] bool goes_quiet(int descriptor, Call&& call) {
    const auto deadline = base::Deadline::after(std::chrono::seconds{40});
    do {
        call();
        if (!is_readable(descriptor)) return true;
    } while (!deadline.expired());
    return false;
}

/// Calls both, as loops of their own do, until neither is readable. False: they wake each other.
template <class Call, class OtherCall>
[[nodiscard]] bool both_go_quiet(int descriptor, Call&& call, int other, OtherCall&& other_call) {
    const auto deadline = base::Deadline::after(std::chrono::seconds{40});
    do {
        if (!goes_quiet(descriptor, call) || !goes_quiet(other, other_call)) return false;
        if (!is_readable(descriptor)) return true;
    } while (!deadline.expired());
    return false;
}

/// What `accept` gives at last, called whenever the listener's descriptor is readable; nothing,
/// when that takes too long.
template <class Listener, class Accept>
[[nodiscard]] auto accept_in_loop(const Listener& listener, Accept&& accept) -> decltype(accept()) {
    while (becomes_readable(listener.descriptor(), std::chrono::seconds{20})) {
        if (auto end = accept()) return end;
    }
    return {};
}

/// Goes on with both in one thread until each has its end, by their descriptors alone. False: that
/// takes too long.
template <class Connector, class Listener, class End>
[[nodiscard]] bool connects_in_loop(Connector& connector, Listener& listener,
                                    std::optional<End>& near, std::optional<End>& far) {
    const auto deadline = base::Deadline::after(std::chrono::seconds{40});
    while (!near || !far) {
        if (deadline.expired()) return false;
        if (!far) far = connector.try_connect();
        if (!near) near = listener.try_accept();
        // One that is connected still is readable when its peer says something.
        if (far) continue;
        pollfd entries[] = {
            {.fd = connector.descriptor(), .events = POLLIN, .revents = 0},
            {.fd = near ? -1 : listener.descriptor(), .events = POLLIN, .revents = 0}};
        if (poll(entries, 2, 40'000) <= 0) return false;
    }
    return true;
}

}  // namespace millrace::test
