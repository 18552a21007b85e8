// Calls that are made again: which, when, and at whose cost.
#include "millrace/rpc/detail/client_core.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "millrace/base/wait.hpp"

namespace millrace::rpc::detail {

using base::Status;

namespace {

/// It is the connection that was wrong.
[[nodiscard]] bool has_ended(Code code) noexcept {
    return code == Code::not_sent || code == Code::peer_lost || code == Code::closed;
}

}  // namespace

bool ClientCore::pays(const Attempt& attempt) {
    if (attempt.made >= options_.retry.attempts) return false;
    if (budget_ < 1) {
        ++counts_.out_of_budget;
        return false;
    }
    budget_ -= 1;
    return true;
}

bool ClientCore::may_repeat(Code code, const Attempt& attempt) const noexcept {
    const bool is_unknown = has_ended(code) || code == Code::session_lost ||
                            code == Code::expired || code == Code::dropped;
    return !is_closed_ && (is_safe_to_repeat(code) || (is_unknown && attempt.is_idempotent));
}

std::chrono::nanoseconds ClientCore::pause_before(const Attempt& attempt) const noexcept {
    const auto doubled =
        options_.retry.pause * (std::int64_t{1} << std::min(attempt.made - 1, 20U));
    const auto pause = std::min(doubled, options_.retry.longest_pause);
    // Clients that failed together do not come back together.
    return pause - pause / 2 * static_cast<std::int64_t>(base::ticks() % 64) / 64;
}

bool ClientCore::repeats(Code code, Attempt& attempt, const base::Deadline& deadline) {
    if (!may_repeat(code, attempt) || !pays(attempt)) return false;
    const bool is_over = has_ended(code);
    if (is_over && !options_.reconnects) return false;
    // The first time anew at once, where it is the connection or the table that was wrong.
    if (code == Code::overloaded || code == Code::draining || attempt.made > 1) {
        base::NapParker nap;
        const Status waited =
            base::wait_until([] { return false; },
                             deadline.no_later_than(base::Clock::now() + pause_before(attempt)),
                             options_.messages.wait, nap);
        if (waited == Status::cancelled || deadline.expired()) return false;
    }
    if (is_over && !reconnects(deadline)) {
        // Nobody is there: perhaps a little later.
        ++attempt.made;
        return repeats(Code::not_sent, attempt, deadline);
    }
    if (procedures_.needs_table()) {
        try {
            read_table(deadline);
        } catch (const base::Error&) {
            return false;
        }
    }
    if (!has(attempt)) return false;  // the new server does not have it
    ++attempt.made;
    ++counts_.repeated;
    return true;
}

bool ClientCore::reconnects(const base::Deadline& deadline) {
    try {
        return reconnect(deadline) == Status::ok;
    } catch (const base::Error&) {
        return false;
    }
}

std::optional<base::Clock::time_point> ClientCore::again_at(Code code, Attempt& attempt,
                                                            const base::Deadline& deadline) {
    if (!may_repeat(code, attempt) || (has_ended(code) && !may_reconnect())) return std::nullopt;
    const auto at = base::Clock::now() + pause_before(attempt);
    if (at >= deadline.point() || deadline.cancelled() || !pays(attempt)) return std::nullopt;
    ++attempt.made;
    ++counts_.repeated;
    return at;
}

void ClientCore::note_vain_attempt() noexcept {
    retry_at_ = base::Clock::now() + pause_before({.made = ++vain_attempts_});
}

}  // namespace millrace::rpc::detail
