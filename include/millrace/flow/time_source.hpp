// The clock of structures that go by time: the library's own, or what the program says.
#pragma once

#include <chrono>
#include <functional>

#include "millrace/base/clock.hpp"

namespace millrace::flow {

/// Says what time it is: how long since an epoch of its own. Called within calls of the structure
/// that it was given to; must not throw. Where it goes back, it is taken to stand still. Empty:
/// base::Clock, which programs on one host share. A program whose windows shall begin with the
/// minute passes std::chrono::system_clock; one that replays a record, the times that it reads
/// there.
using TimeSource = std::function<std::chrono::nanoseconds()>;

namespace detail {

[[nodiscard]] inline std::chrono::nanoseconds time_by(const TimeSource& clock) {
    return clock ? clock() : base::Clock::now().time_since_epoch();
}

}  // namespace detail
}  // namespace millrace::flow
