// Implementation of moderation.hpp, and of what completion queues do with it.
#include "moderation.hpp"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "cable_time.hpp"
#include "completion_channel.hpp"
#include "completion_queue.hpp"
#include "fences.hpp"
#include "millrace/base/uncancelled.hpp"

namespace millrace::soft {

int modify_cq(ibv_cq* public_queue, ibv_modify_cq_attr* attributes) noexcept {
    const base::Uncancelled held;
    if (attributes->attr_mask != IBV_CQ_ATTR_MODERATE) return EINVAL;
    constexpr std::int64_t microsecond = 1000;
    auto& cq = *static_cast<CompletionQueue*>(public_queue);
    const std::lock_guard guard{cq.lock};
    // An event that is being put off comes as it was to come, or sooner.
    cq.moderation.count = attributes->moderate.cq_count;
    cq.moderation.period = attributes->moderate.cq_period * microsecond;
    if (!cq.moderation.on() && cq.moderation.put_off_at != 0) cq.soft_channel->ring();
    return 0;
}

bool CompletionQueue::put_off() noexcept {
    if (!moderation.on() || soft_channel == nullptr) return false;
    const auto enough = [this] {
        return event_forced.load(std::memory_order_acquire) ||
               count_due(moderation.count) >= moderation.count;
    };
    const std::int64_t now = cable_now();
    if (moderation.put_off_at == 0) moderation.put_off_at = now;
    const std::int64_t left = moderation.put_off_at + moderation.period - now;
    if (left <= 0 || enough()) return false;
    // Whoever completes rings once per epoch: a new one, and then another look, as when arming.
    armed += armed_epoch;
    publish_armed();
    heavy_fence();
    if (enough()) return false;
    soft_channel->wake_in(std::chrono::nanoseconds{left});
    return true;
}

}  // namespace millrace::soft
