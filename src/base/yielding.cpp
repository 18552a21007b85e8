// Implementation of yielding.hpp.
#include "millrace/base/detail/yielding.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"

namespace millrace::base {
namespace {

/// In ticks.
struct Times {
    /// Who comes back later has let somebody run: the call alone takes less than 1 µs.
    std::uint64_t taken = ticks_in(std::chrono::microseconds{4});
    std::uint64_t first_rest = ticks_in(std::chrono::microseconds{10});
    /// What somebody who comes to need the processor waits for it at most. One call of half a
    /// microsecond in this time is what offering it in vain costs.
    std::uint64_t longest_rest = ticks_in(std::chrono::microseconds{320});
};

[[nodiscard]] const Times& times() noexcept {
    static const Times instance;
    return instance;
}

}  // namespace

Yields yields_of_environment() {
    const char* const text = std::getenv("MILLRACE_YIELD");
    const std::string_view value = text == nullptr ? "" : text;
    if (value.empty() || value == "auto") return Yields::as_needed;
    if (value == "always") return Yields::always;
    if (value == "never") return Yields::never;
    throw Error{ErrorCode::invalid_argument, "choose when a poller yields its processor",
                fmt::format("'{}'", value), "there is no such value",
                "set MILLRACE_YIELD to auto, always or never"};
}

Yields yields_of_process() noexcept {
    static const Yields instance = [] {
        try {
            return yields_of_environment();
        } catch (const std::exception&) {  // who opens a device is told of it
            return Yields::as_needed;
        }
    }();
    return instance;
}

bool Yielding::may_offer(std::uint64_t now) const noexcept {
    if (how_ == Yields::as_needed) {
        return !contention_of_process.is_busy(now);
    }
    return how_ == Yields::always;
}

Taken Yielding::offer() noexcept {
    const std::uint64_t before = ticks();
    sched_yield();
    count_system_call();
    const std::uint64_t now = ticks();
    return note(now, now - before);
}

Taken Yielding::note(std::uint64_t now, std::uint64_t away) noexcept {
    const bool was_taken = away >= times().taken;
    if (how_ == Yields::always || was_taken) {
        rest_ = 0;
    } else {
        rest_ = std::min(std::max(2 * rest_, times().first_rest), times().longest_rest);
    }
    due_ = now + rest_;
    if (!was_taken) return Taken::not_at_all;
    return contention_of_process.came_back(now, away);
}

}  // namespace millrace::base
