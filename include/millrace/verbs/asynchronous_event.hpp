// What a device tells outside of completions: a shared receive queue that runs low, a queue pair
// that broke, a port that went down.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <optional>

#include "millrace/verbs/device.hpp"

namespace millrace::verbs {

/// One event, already acknowledged. The pointer says which object it is about, as that object's
/// `raw()`; null where it is none of that kind. Compare it only: the object may have been
/// destroyed.
struct AsynchronousEvent {
    ibv_event_type type;
    const ibv_qp* queue_pair = nullptr;
    const ibv_cq* completion_queue = nullptr;
    const ibv_srq* shared_receives = nullptr;
    int port = 0;  ///< of events of ports
};

/// The next event of `context`, waiting for it at most `limit` (0: not at all); nullopt: there was
/// none. Makes the context's descriptor (`raw()->async_fd`, for poll and epoll) non-blocking.
/// Several threads may wait: each event goes to one of them. Never throws.
[[nodiscard]] std::optional<AsynchronousEvent> wait_for_event(
    const Context& context, std::chrono::nanoseconds limit) noexcept;

}  // namespace millrace::verbs
