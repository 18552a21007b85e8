// Calls that are made again: which, when, and at whose cost.
#include "millrace/rpc/detail/again.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/base/wait.hpp"
#include "millrace/rpc/detail/client_core.hpp"

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

Status ClientCore::submit_again(std::unique_ptr<AgainCall> call, std::uint64_t& id) {
    check_thread();
    AgainCall& its = *call;
    // Before it is sent: what could not be kept would have nobody to end it.
    again_.push_back(std::move(call));
    Status status = Status::closed;
    try {
        status = its.send(*this);
    } catch (...) {
        (void)take(its);
        throw;
    }
    if (status == Status::ok) {
        its.first_id = its.id;
    } else if ((status == Status::closed || status == Status::peer_lost) &&
               waits_for_connection(its)) {
        its.first_id = unsent_++;
        put_off(its, its.due);
    } else {
        (void)take(its);
        return status;
    }
    earn();
    id = its.first_id;
    return Status::ok;
}

/// It could not be sent, as the connection has ended. False: it is over.
bool ClientCore::waits_for_connection(AgainCall& call) {
    const auto at = again_at(Code::not_sent, call.attempt, call.deadline);
    if (!at.has_value()) return false;
    call.due = *at;
    lose();
    return true;
}

void ClientCore::put_off(AgainCall& call, base::Clock::time_point due) noexcept {
    call.is_put_off = true;
    call.due = due;
    ++put_off_;
    times_.add(call.deadline);
    times_.no_later_than(due);
}

bool ClientCore::puts_off(AgainCall& call, Code code) {
    const auto at = again_at(code, call.attempt, call.deadline);
    if (!at.has_value()) return false;
    call.code = code;
    if (has_ended(code)) lose();
    put_off(call, *at);
    return true;
}

std::unique_ptr<AgainCall> ClientCore::take(AgainCall& call) noexcept {
    if (call.is_put_off) {
        call.is_put_off = false;
        --put_off_;
        times_.remove(call.deadline);
    }
    const auto found = std::find_if(again_.begin(), again_.end(),
                                    [&](const auto& one) { return one.get() == &call; });
    std::unique_ptr<AgainCall> taken = std::move(*found);
    again_.erase(found);
    return taken;
}

AgainCall* ClientCore::due_again(base::Clock::time_point now) noexcept {
    AgainCall* low = nullptr;  // only where no other one is due
    for (const auto& one : again_) {
        if (!one->is_put_off) continue;
        if (one->deadline.point() <= now || one->deadline.cancelled()) return one.get();
        if (is_lost_ || one->due > now) continue;
        if (one->priority != Priority::low) return one.get();
        if (low == nullptr) low = one.get();
    }
    return low;
}

/// Those that were put off, and whose time has come. How many are over by that.
std::size_t ClientCore::send_again() {
    constexpr std::chrono::milliseconds room{1};
    std::size_t ended = 0;
    const auto now = base::Clock::now();
    // Whoever is told that a call is over may do anything to the others.
    while (put_off_ != 0) {
        AgainCall* const call = due_again(now);
        if (call == nullptr) break;
        Code code = call->code;
        Status status = Status::closed;
        bool was_tried = false;
        if (call->deadline.cancelled()) {
            code = Code::cancelled;
        } else if (call->deadline.expired()) {
            ++counts_.timed_out;
            code = Code::timed_out;
        } else if (knows(call->attempt)) {
            status = call->send(*this);
            was_tried = true;
        }
        if (was_tried && (status == Status::closed || status == Status::peer_lost) &&
            waits_for_connection(*call)) {
            continue;
        }
        if (status == Status::full) {
            call->due = now + room;
            continue;
        }
        if (status == Status::ok) {
            call->is_put_off = false;
            --put_off_;
            times_.remove(call->deadline);
            continue;
        }
        take(*call)->end(code);
        ++ended;
    }
    return ended;
}

std::size_t ClientCore::note_vain_attempt() {
    const std::uint32_t attempts = ++vain_attempts_;
    retry_at_ = base::Clock::now() + pause_before({.made = attempts});
    std::size_t ended = 0;
    // Whoever is told that a call is over may do anything to the others.
    while (true) {
        const auto found = std::find_if(again_.begin(), again_.end(), [&](const auto& one) {
            return one->is_put_off && one->vain_attempts != attempts;
        });
        if (found == again_.end()) return ended;
        AgainCall& call = **found;
        call.vain_attempts = attempts;
        if (again_at(Code::not_sent, call.attempt, call.deadline).has_value()) continue;
        const std::unique_ptr<AgainCall> over = take(call);
        over->end(over->code);
        ++ended;
    }
}

}  // namespace millrace::rpc::detail
