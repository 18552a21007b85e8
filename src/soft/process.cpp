#include "process.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>

#include "asynchronous_events.hpp"
#include "completion_channel.hpp"
#include "millrace/base/clock.hpp"
#include "node.hpp"

namespace millrace::soft {

Process::Process(std::shared_ptr<Node> node, std::string fabric)
    : node_{std::move(node)},
      fabric_{std::move(fabric)},
      look_interval_{base::ticks_in(std::chrono::milliseconds{50})} {}

void Process::look_now(std::uint64_t now) noexcept {
    last_look_.store(now, std::memory_order_relaxed);
    if (!node_->check_liveness()) return;
    deaths_.fetch_add(1, std::memory_order_release);
    // Whoever found it serves the queue pairs of one completion queue; the others' owners may wait
    // for an event only.
    const std::lock_guard guard{events_mutex_};
    for (AsynchronousEvents* events : events_) events->ring();
    for (CompletionChannel* channel : channels_) channel->ring();
}

void Process::add(AsynchronousEvents& events) {
    const std::lock_guard guard{events_mutex_};
    events_.push_back(&events);
}

void Process::remove(AsynchronousEvents& events) noexcept {
    const std::lock_guard guard{events_mutex_};
    std::erase(events_, &events);
}

void Process::add(CompletionChannel& channel) {
    const std::lock_guard guard{events_mutex_};
    channels_.push_back(&channel);
}

void Process::remove(CompletionChannel& channel) noexcept {
    const std::lock_guard guard{events_mutex_};
    std::erase(channels_, &channel);
}

}  // namespace millrace::soft
