// Which failures of a peer's setup end the wait for peers, see the header.
#include "millrace/connect/accepting.hpp"

#include <fmt/format.h>

#include "millrace/base/log.hpp"

namespace millrace::connect::detail {

using base::ErrorCode;

bool PassedOver::add(const std::string& peer, const base::Error& error) {
    const ErrorCode code = error.code();
    if (code != ErrorCode::refused && code != ErrorCode::protocol && code != ErrorCode::peer_lost &&
        code != ErrorCode::closed && code != ErrorCode::timed_out) {
        return false;
    }
    base::log(base::LogLevel::warn, "connect", "passed over {}: {}", peer, error.what());
    ++count_;
    last_ = error;
    return true;
}

void PassedOver::end(const base::Error& error) const {
    if (count_ == 0) throw error;
    // Where nothing but time ended the wait, the peer that did not fit is what there is to mend.
    throw base::Error{
        error.code(), error.attempted(), error.object(),
        fmt::format("{}: cannot {} ({}): {}; after that, {}",
                    count_ == 1
                        ? std::string{"one peer connected that did not fit"}
                        : fmt::format("{} peers connected that did not fit, the last", count_),
                    last_->attempted(), last_->object(), last_->cause(), error.cause()),
        error.code() == ErrorCode::timed_out ? last_->remedy() : error.remedy()};
}

void PassedOver::end(const Listener& listener, const base::Deadline& deadline) const {
    end(base::Error{deadline.cancelled() ? ErrorCode::cancelled : ErrorCode::timed_out,
                    "accept a peer", listener.address().to_string(),
                    deadline.cancelled() ? "it was cancelled" : "the time was over", ""});
}

}  // namespace millrace::connect::detail
