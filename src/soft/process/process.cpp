#include "process/process.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>

#include "completion/completion_channel.hpp"
#include "fabric/node.hpp"
#include "millrace/base/clock.hpp"
#include "process/asynchronous_events.hpp"

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
    for (auto* events : std::get<0>(rung_)) events->ring();
    for (auto* channel : std::get<1>(rung_)) channel->ring();
}

}  // namespace millrace::soft
