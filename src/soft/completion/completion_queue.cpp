#include "completion/completion_queue.hpp"

#include <cstdint>
#include <mutex>

#include "completion/completion_channel.hpp"

namespace millrace::soft {

int CompletionQueue::bell() const noexcept {
    return soft_channel == nullptr ? -1 : soft_channel->bell;
}

void CompletionQueue::attach(CompletionSource& source, Node& node) {
    const std::lock_guard guard{lock};
    if (source.cable != nullptr) {
        shaped = true;
        service_interval = 0;  // what is in flight is moved by every poll that finds nothing
    }
    turns.add(source, node);
    look_whether_limited();
    source.arm_position = source.position.load(std::memory_order_relaxed);
    publish_armed(source);
}

void CompletionQueue::detach(CompletionSource& source) noexcept {
    const std::lock_guard guard{lock};
    turns.remove(source);
    next_source = 0;
    look_for_flushing();
    look_whether_limited();
}

void CompletionQueue::publish_armed() const noexcept {
    for (const CompletionSource* source : turns.all()) publish_armed(*source);
}

void CompletionQueue::publish_armed(const CompletionSource& source) const noexcept {
    const bool announced = source.place.page.load(std::memory_order_relaxed) != nullptr;
    source.armed().store(armed | (announced ? armed_news : 0U) | (stamps ? armed_stamps : 0U),
                         std::memory_order_relaxed);
}

void CompletionQueue::look_for_flushing() noexcept {
    // An exchange, because a queue pair sets its flag first and `attention` then, without the lock.
    attention.exchange(overrun, std::memory_order_acq_rel);
    for (const CompletionSource* source : turns.all()) {
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

void CompletionQueue::look_whether_limited() noexcept {
    std::uint64_t slots = 0;
    for (const CompletionSource* source : turns.all()) slots += std::uint64_t{source->mask} + 1;
    limited = overrun || (!overrun_ignored && slots > static_cast<std::uint64_t>(cqe));
}

}  // namespace millrace::soft
