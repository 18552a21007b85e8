// Join, see the header.
#include "millrace/ring/detail/joining.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace millrace::ring::detail {
namespace {

/// One counter is in flight at most: what is pushed, or what the consumer's mover pulls.
constexpr std::uint32_t second_queue_requests = 16;

}  // namespace

std::optional<Places> Join::meet(const Places& mine, const Terms& terms, Joining joining,
                                 const base::Deadline& deadline) {
    if (joining == Joining::at_once) {
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
        const auto now = base::Clock::now();
        left_ -= std::min<std::chrono::nanoseconds>(now - std::exchange(last_look_, now), slice);
        if (left_.count() > 0) return base::Status::empty;
        fail(base::Error{base::ErrorCode::timed_out, "set up a ring", link_->peer_name(),
                         "the peer agreed and did not say where its memory is for 5 s",
                         "is it stopped or busy?"});
        link_->say_goodbye();
    } catch (const base::Error& error) {
        fail(error);
    } catch (const std::exception&) {  // out of memory
        ended_ = base::Status::peer_lost;
    }
    return ended_;
}

void Join::fail(const base::Error& error) noexcept {
    ended_ =
        error.code() == base::ErrorCode::closed ? base::Status::closed : base::Status::peer_lost;
    try {
        failure_ = error.what();
    } catch (const std::bad_alloc&) {
        failure_.clear();
    }
}

}  // namespace millrace::ring::detail
