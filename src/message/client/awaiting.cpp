#include "millrace/message/detail/awaiting.hpp"

namespace millrace::message::detail {

using base::Status;

void AwaitingCore::readable() {
    constexpr int budget = 64;  // others have their turn
    const auto alive = shared_from_this();
    Status status = Status::ok;
    // A task that is resumed may destroy the client.
    for (int i = 0; i < budget && status == Status::ok && !has_left_; ++i) status = poll();
    // A channel that has ended is readable for ever.
    if (status == Status::closed || status == Status::peer_lost) unwatch();
    set_alarm();
}

void AwaitingCore::set_alarm() {
    if (has_left_) return;
    const Time due_at = due();
    if (due_at == Time::max() || (alarm_.has_value() && alarm_at_ <= due_at)) return;
    take_back(alarm_);
    alarm_at_ = due_at;
    alarm_ = executor_->at(due_at, [this] {
        const auto alive = shared_from_this();
        alarm_.reset();
        look_around();
    });
}

}  // namespace millrace::message::detail
