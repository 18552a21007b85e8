// Arming a completion queue: a call of its owner, and what it publishes for whoever completes.
// docs/soft/waiting.md, models/arming.pml.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "completion/completion_channel.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "objects/polling.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "receives/receive_pool.hpp"
#include "system/fences.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {

void PolledQueue::arm(PollHeld held, std::uint32_t mode) noexcept {
    std::uint32_t& armed = turn(held).armed;
    ArmingCost& arming = poller_.arming;
    const bool fenced = (armed & armed_fenced) != 0;
    const bool often = arming.passed < ArmingCost::few;
    arming.looks = 0;
    armed = ((armed + armed_epoch) & ~std::uint32_t{armed_attention_mask}) | mode |
            (often ? std::uint32_t{armed_fenced} : 0U);
    publish_armed(held);
    if (fenced && often) {
        full_fence();  // against the one that whoever completes makes
        return;
    }
    // Who has looked at an armed word that does not ask for a fence has written its completion.
    heavy_fence();
    owner->process->counters().add(Count::heavy_fence);
}

void PolledQueue::arm_seldom(PollHeld held) noexcept {
    // Who still sees the bit makes a fence too many; the next arming makes it for everybody.
    poller_.arming.passed = ArmingCost::few;
    turn(held).armed &= ~std::uint32_t{armed_fenced};
    publish_armed(held);
}

int req_notify_cq(ibv_cq* queue, int solicited_only) noexcept {
    auto& cq = *static_cast<PolledQueue*>(queue);
    if (cq.soft_channel == nullptr) return 0;
    const base::Uncancelled held;
    const std::uint32_t mode = solicited_only != 0 ? armed_solicited : armed_any;
    // Who arms is about to sleep.
    cq.owner->process->queue_pairs().publish_before_sleep();
    const auto turn = cq.turn.hold();
    if (WirePort* const wire = cq.owner->process->wire(); turn->wired && wire != nullptr)
        wire->program_sleeps();
    PollerState& poller = cq.poller(turn);
    const std::uint32_t before = turn->armed & armed_mode_mask;
    if (before == armed_any || before == mode) return 0;
    // Whatever the program has not polled is news; in mode strict, what comes from now on.
    std::uint32_t passed = 0;
    for (CompletionSource* source : turn->turns.all()) {
        std::uint32_t at = source->position.load(std::memory_order_relaxed);
        if (cq.owner->mode.kind == ModeKind::strict) at = source->end_after(at);
        const std::uint32_t last = std::exchange(source->polled_by(turn).arm_position, at);
        passed += std::min(at - last, ArmingCost::few);
    }
    // Read, so that what flushed() has told of before is seen below.
    cq.event_forced.exchange(false, std::memory_order_acq_rel);
    poller.moderation.put_off_at = 0;
    // Of the first one nobody knows whether there will be more.
    poller.arming.passed =
        turn->armed < armed_epoch ? ArmingCost::few : std::min(passed, ArmingCost::few);
    cq.arm(turn, mode);
    // Timers and deaths have to fire also when nobody polls.
    cq.service(turn);
    // Nobody has rung for what came before the epoch, and the program need not look again.
    if (cq.attention.load(std::memory_order_relaxed) && cq.has_to_flush(turn))
        cq.event_forced.store(true, std::memory_order_relaxed);
    if (cq.event_due(turn)) cq.soft_channel->ring();
    return 0;
}

}  // namespace millrace::soft
