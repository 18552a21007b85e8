// Join, see the header.
#include "millrace/ring/detail/joining.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>

namespace millrace::ring::detail {
namespace {

/// One counter is in flight at most: what is pushed, or what the consumer's mover pulls.
constexpr std::uint32_t second_queue_requests = 16;
constexpr const char* attempt = "set up a ring";

base::Error silent(const connect::Link& link, const char* how_long) {
    return {base::ErrorCode::timed_out, attempt, link.peer_name(),
            fmt::format("the peer agreed and did not say where its memory is {}", how_long),
            "is it stopped or busy?"};
}

}  // namespace

std::optional<Places> Join::meet(const Places& mine, const Terms& terms,
                                 const base::Deadline& deadline) {
    if (joining_ == Joining::at_once) {
        if (terms.second_queue) link_->open_second_queue(second_queue_requests, deadline);
        say_places(*link_, mine);
        return wait_for_places(*link_, deadline);
    }
    if (terms.second_queue) {
        link_->begin_second_queue(second_queue_requests);
        mine_ = mine;
    } else {
        say_places(*link_, mine);
    }
    return std::nullopt;
}

base::Status Join::look(std::optional<Places>& theirs) noexcept {
    if (ended_ != base::Status::ok) return ended_;
    try {
        if (mine_.has_value() && link_->try_open_second_queue()) {
            say_places(*link_, *mine_);
            mine_.reset();
        }
        if (!mine_.has_value()) theirs = hear_places(*link_);
        if (theirs.has_value()) return base::Status::ok;
        if (joining_ == Joining::unhurried) return base::Status::empty;
        const auto now = base::Clock::now();
        left_ -= std::min<std::chrono::nanoseconds>(now - std::exchange(last_look_, now), slice);
        if (left_.count() > 0) return base::Status::empty;
        (void)fail(silent(*link_, "for 5 s"));
        link_->say_goodbye();
    } catch (const base::Error& error) {
        (void)fail(error);
    } catch (const std::exception&) {
        (void)fail_for_want_of_memory();
    }
    return ended_;
}

base::Status Join::fail(const base::Error& error) noexcept {
    ended_ =
        error.code() == base::ErrorCode::closed ? base::Status::closed : base::Status::peer_lost;
    try {
        error_ = error;
    } catch (const std::bad_alloc&) {
        error_.reset();
    }
    return ended_;
}

base::Status Join::fail_for_want_of_memory() noexcept {
    ended_ = base::Status::peer_lost;
    try {
        return fail(base::Error{base::ErrorCode::resource_exhausted, attempt, link_->peer_name(),
                                "out of memory", "free some"});
    } catch (const std::bad_alloc&) {
        return ended_;
    }
}

void Join::raise(base::Status waited) const {
    using base::ErrorCode;
    if (error_.has_value()) throw base::Error{*error_};
    if (waited == base::Status::timed_out) throw silent(*link_, "in time");
    if (waited == base::Status::cancelled) {
        throw base::Error{ErrorCode::cancelled, attempt, link_->peer_name(), "it was cancelled",
                          ""};
    }
    throw base::Error{ErrorCode::peer_lost, attempt, link_->peer_name(), link_->why_lost(), ""};
}

}  // namespace millrace::ring::detail
