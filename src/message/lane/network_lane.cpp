// NetworkLane, see the header.
#include "lane/network_lane.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "memory.hpp"
#include "millrace/message/detail/copy.hpp"

namespace millrace::message {

using base::Status;

Status NetworkLane::look(std::span<const std::byte>& message) {
    if (readiness_ == nullptr) [[likely]]
        return take(message);
    end_rest();
    const Status status = take(message);
    if (status != Status::empty) {
        readiness_->wake();
    } else if (!readiness_->stays_awake(progress())) {
        rest();
    }
    return status;
}

Status NetworkLane::commit(std::size_t size) noexcept {
    const Status status = lay(size);
    // A program's loop is to come here once more.
    if (readiness_ != nullptr && holds_back()) readiness_->wake();
    return status;
}

Status NetworkLane::try_send(const SessionHead& head, std::span<const std::byte> payload) {
    std::span<std::byte> place;
    const Status status = claim(sizeof head + payload.size(), place);
    if (status != Status::ok) return status;
    copy_two_words(place.data(), head);
    if (!payload.empty()) std::memcpy(place.data() + sizeof head, payload.data(), payload.size());
    return commit(place.size());
}

Status NetworkLane::send(const SessionHead& head, std::span<const std::byte> payload) {
    const Status status = try_send(head, payload);
    if (status != Status::full && status != Status::too_large) return status;
    return keep(head, payload);
}

void NetworkLane::rest() noexcept {
    const base::Clock::time_point due_at = due();
    readiness_->rest(
        parker(),
        [this] {
            std::span<const std::byte> message;
            return take(message) != Status::empty;
        },
        due_at == base::Clock::time_point::max()
            ? connect::Readiness::until_woken
            : std::max<std::chrono::nanoseconds>(due_at - base::Clock::now(),
                                                 std::chrono::nanoseconds{1}));
}

void NetworkLane::end_rest() noexcept {
    if (readiness_ != nullptr) readiness_->end(parker());
}

int NetworkLane::descriptor(const base::WaitPolicy& policy) {
    if (readiness_ == nullptr) {
        readiness_ = std::make_unique<connect::Readiness>(news(), policy.spin,
                                                          connect::Readiness::Alarm::timer);
    }
    return readiness_->descriptor();
}

Status NetworkLane::try_close() {
    if (closed_.has_value()) return *closed_;
    const Status status = finish();
    if (status == Status::full) return status;
    closed_ = status;
    end(Status::closed, {});
    return status;
}

void NetworkLane::end(Status how, std::string_view why) noexcept {
    if (ended_ != Status::ok) return;
    ended_ = how;
    set_text(why_failed_, why);
}

}  // namespace millrace::message
