#include "completion/completion_queue.hpp"

#include <cstdint>

#include "completion/completion_channel.hpp"

namespace millrace::soft {

int CompletionQueue::bell() const noexcept {
    return soft_channel == nullptr ? -1 : soft_channel->bell;
}

void CompletionQueue::attach(CompletionSource& source, Node& node) {
    const auto held = turn.hold();
    if (source.cable != nullptr) {
        held->shaped = true;
        held->service_interval = 0;  // what is in flight is moved by every poll that finds nothing
    }
    held->turns.add(source, node);
    look_whether_limited(held);
    source.polled_by(held).arm_position = source.position.load(std::memory_order_relaxed);
    publish_armed(held, source);
}

void CompletionQueue::detach(CompletionSource& source) noexcept {
    const auto held = turn.hold();
    held->turns.remove(source);
    held->next_source = 0;
    look_for_flushing(held);
    look_whether_limited(held);
}

void CompletionQueue::look_at_wire() noexcept {
    const auto held = turn.hold();
    held->wired = true;
    held->service_interval = 0;
}

void CompletionQueue::publish_armed(PollHeld held) const noexcept {
    for (const CompletionSource* source : turn(held).turns.all()) publish_armed(held, *source);
}

void CompletionQueue::publish_armed(PollHeld held, const CompletionSource& source) const noexcept {
    const bool announced = source.place.page.load(std::memory_order_relaxed) != nullptr;
    source.armed().store(
        turn(held).armed | (announced ? armed_news : 0U) | (stamps ? armed_stamps : 0U),
        std::memory_order_relaxed);
}

void CompletionQueue::look_for_flushing(PollHeld held) noexcept {
    // An exchange, because a queue pair sets its flag first and `attention` then, without the lock.
    attention.exchange(turn(held).overrun, std::memory_order_acq_rel);
    for (const CompletionSource* source : turn(held).turns.all()) {
        if (source->flushing.load(std::memory_order_relaxed)) {
            attention.store(true, std::memory_order_relaxed);
        }
    }
}

void CompletionQueue::flushed() noexcept {
    if (soft_channel == nullptr) return;
    event_forced.store(true, std::memory_order_release);
    soft_channel->ring();
}

void CompletionQueue::look_whether_limited(PollHeld held) noexcept {
    CompletionTurn& my = turn(held);
    std::uint64_t slots = 0;
    for (const CompletionSource* source : my.turns.all()) slots += std::uint64_t{source->mask} + 1;
    my.limited = my.overrun || (!overrun_ignored && slots > static_cast<std::uint64_t>(cqe));
}

}  // namespace millrace::soft
