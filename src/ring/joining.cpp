// Join, see the header.
#include "millrace/ring/detail/joining.hpp"

namespace millrace::ring::detail {

base::Status Join::look(std::optional<Places>& theirs) noexcept {
    if (ended_ != base::Status::ok) return ended_;
    try {
        theirs = hear_places(*link_);
        return theirs.has_value() ? base::Status::ok : base::Status::empty;
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
