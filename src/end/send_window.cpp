// SendWindow, see the header. What stands here runs once per window of requests or less.
#include "millrace/end/send_window.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include <fmt/format.h>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"

namespace millrace::end {

SendWindow::SendWindow(verbs::QueuePair& queue_pair, verbs::CompletionQueue& completions) noexcept
    : queue_pair_{&queue_pair}, completions_{&completions} {
    slots_ = std::max<std::uint32_t>(queue_pair.capacity().max_send_wr, 1);
    ordinary_ = slots_ < fewest_with_reserve ? slots_ : slots_ - reserve;
    // A quarter: completions come in small numbers, and long before the queue is full.
    interval_ = std::max<std::uint32_t>(ordinary_ / 4, 1);
    signal_at_ = interval_;
    look_at_ = ordinary_;
}

void SendWindow::become_copy() noexcept {
    is_copy_ = broken_ = true;
    // So every post asks for room, of which there is none.
    look_at_ = 0;
    ordinary_ = slots_;
}

void SendWindow::use_events(verbs::CompletionChannel& channel) {
    if (!completions_->arm()) {
        throw base::Error{base::ErrorCode::unsupported, "ask for completion events",
                          fmt::format("queue pair {}", queue_pair_->number()),
                          "its completion queue cannot be armed", "poll for completions instead"};
    }
    channel_ = &channel;
    told_ = channel.drained();
    signal_at_ = interval_ = 1;
    look_at_ = 0;
}

bool SendWindow::was_told() noexcept {
    // One read of the descriptor for each event, and one that finds none.
    const int events = channel_->drain();
    for (int i = 0; i <= events; ++i) base::count_system_call();
    // Events that whoever slept has taken were told as well.
    if (channel_->drained() == told_) return false;
    told_ = channel_->drained();
    return true;
}

base::Status SendWindow::reap() noexcept {
    bool armed = channel_ == nullptr || broken_;
    if (!armed && !was_told()) return base::Status::ok;
    std::array<verbs::Completion, 8> batch;
    while (!broken_) {
        const int count = completions_->poll(batch);
        if (count < 0) {
            poll_error_ = count;
            broken_ = true;
            break;
        }
        for (const verbs::Completion& completion :
             std::span{batch}.first(static_cast<std::size_t>(count))) {
            if (!completion.ok()) {
                failed_ = completion;
                broken_ = true;
                return base::Status::peer_lost;
            }
            complete(completion.id());
        }
        if (static_cast<std::size_t>(count) == batch.size()) continue;
        if (armed) return base::Status::ok;
        // Behind the poll, as a device may raise an event at once for what was not polled; and
        // before another one, as a device may not.
        (void)completions_->arm();
        armed = true;
    }
    return base::Status::peer_lost;
}

base::Status SendWindow::make_room(std::uint64_t limit) noexcept {
    const base::Status status = reap();
    if (status != base::Status::ok) return status;
    return posted_ + held_ - completed_ >= limit ? base::Status::full : base::Status::ok;
}

void SendWindow::take_tickets(std::span<ibv_send_wr> list, Signal signal) noexcept {
    std::uint64_t ticket = posted_;
    for (ibv_send_wr& request : list) {
        request.wr_id = ++ticket;
        if (signal == Signal::now || ticket >= signal_at_) request.send_flags |= IBV_SEND_SIGNALED;
        if ((request.send_flags & IBV_SEND_SIGNALED) == 0) continue;
        signaled_ = ticket;
        signal_at_ = ticket + interval_;
    }
    held_ -= static_cast<std::uint32_t>(list.size());
    count_room();
}

base::Status SendWindow::refuse(int error) noexcept {
    // The completion of an earlier request tells the cause better than the refused post.
    if (reap() == base::Status::ok) {
        post_error_ = error;
        broken_ = true;
    }
    return base::Status::peer_lost;
}

std::string SendWindow::failure() const {
    if (is_copy_) return std::string{base::copy_in_child};
    if (!broken_) return {};
    if (post_error_ != 0) {
        return fmt::format("queue pair {} refused a request: {}", queue_pair_->number(),
                           base::describe_errno(post_error_));
    }
    if (poll_error_ != 0) {
        return fmt::format("the completion queue of queue pair {} is broken (overrun)",
                           queue_pair_->number());
    }
    return fmt::format("request {} of queue pair {} failed: {}", failed_.id(),
                       queue_pair_->number(), failed_.explain());
}

std::string cause_of_loss(const connect::Link& link, const SendWindow& window) {
    // A request fails because the peer is gone, and the device can only guess at that.
    if (window.is_copy() || link.peer_so_far() == connect::PeerState::alive) {
        return window.failure();
    }
    return link.why_lost();
}

}  // namespace millrace::end
