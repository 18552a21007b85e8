// Overrun of a completion queue: more completions are waiting than it was made for. Found by the
// poller, and only where it is possible at all: a queue that has room for every slot of its queue
// pairs is polled as if this file were not there. docs/soft-device.md, "Completion queues".
#include <algorithm>
#include <cstdint>

#include "millrace/base/log.hpp"
#include "polling.hpp"
#include "queue_pair.hpp"
#include "raised_events.hpp"

namespace millrace::soft {
namespace {

/// How many of the completions that wait may be believed: a peer cannot complete what was not
/// posted.
[[nodiscard]] std::uint64_t waiting_in(const CompletionSource& source) noexcept {
    const QueuePair& qp = *source.qp;
    const std::uint32_t at = source.position.load(std::memory_order_relaxed);
    std::uint32_t posted;
    std::uint32_t written;
    if (source.collects_from != nullptr) {
        written = qp.datagram->arrivals() - at;
        posted = source.mask + 1;
    } else if (qp.pool != nullptr && !source.send) {
        posted = source.mask + 1;
        written = qp.block.consumed->position.load(std::memory_order_relaxed) - at;
    } else if (source.send) {
        posted = qp.send_tail.load(std::memory_order_relaxed) -
                 qp.send_head.load(std::memory_order_relaxed);
        written = qp.block.send->completions.load(std::memory_order_relaxed) - at;
    } else {
        posted = qp.receive_tail.load(std::memory_order_relaxed) - at;
        written = qp.block.consumed->position.load(std::memory_order_relaxed) - at;
    }
    return std::min({posted, written, source.mask + 1});
}

}  // namespace

int PolledQueue::take_limited(int count, ibv_wc* wc) noexcept {
    // On a shaped link completions are written when somebody looks: all that are due have waited.
    if (shaped && !overrun) {
        for (const CompletionSource* source : turns.all()) source->qp->catch_up();
    }
    if (overrun) {
        // What had found room is still there; the rest is lost.
        if (remaining == 0) return -1;
        const int taken = take(std::min(count, remaining), wc);
        remaining = taken == 0 ? 0 : remaining - taken;
        return taken == 0 ? -1 : taken;
    }
    const int taken = take(count, wc);
    std::uint64_t waiting = static_cast<std::uint64_t>(taken);
    // Who got less than asked for has got everything.
    if (taken == count) {
        for (const CompletionSource* source : turns.current()) waiting += waiting_in(*source);
    }
    if (waiting <= static_cast<std::uint64_t>(cqe)) [[likely]]
        return taken;
    fail_by_overrun(waiting);
    remaining = std::max(0, cqe - taken);
    return taken;
}

void PolledQueue::fail_by_overrun(std::uint64_t waiting) noexcept {
    overrun = true;
    limited = true;
    attention.store(true, std::memory_order_relaxed);
    try {
        base::log(base::LogLevel::error, "soft",
                  "completion queue overrun: {} completions waited in a queue for {}; it and its "
                  "queue pairs are in error. Make it larger (ibv_create_cq), or poll it before "
                  "more work is posted",
                  waiting, cqe);
    } catch (const std::exception&) {  // a message less
    }
    raise_async_event(*this, IBV_EVENT_CQ_ERR);
    for (const CompletionSource* source : turns.all()) {
        QueuePair& qp = *source->qp;
        const std::lock_guard guard{qp.send_lock};
        qp.begin_error(IBV_WC_GENERAL_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
    }
}

}  // namespace millrace::soft
