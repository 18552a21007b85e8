// Join, see the header.
#include "millrace/ring/detail/joining.hpp"

#include <algorithm>
#include <utility>

namespace millrace::ring::detail {

base::Status Join::look(std::optional<Places>& theirs) noexcept {
    if (ended_ != base::Status::ok) return ended_;
    try {
        theirs = hear_places(*link_);
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
