// How the work of a queue pair ends that is in an error state: executors leave it, and what was
// posted is flushed.
#include <chrono>
#include <cstdint>
#include <utility>

#include "millrace/base/wait.hpp"
#include "millrace/soft/device.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/fences.hpp"

namespace millrace::soft {

using namespace std::chrono_literals;

void QueuePair::begin_error(SendHeld held, ibv_wc_status send, ibv_wc_status receive,
                            std::optional<ibv_event_type> event) noexcept {
    SendSide& my = sends(held);
    if ((my.ending.begun() && !my.ending.of_sends()) || state == IBV_QPS_RESET) return;
    if (my.transport != nullptr && !my.ending.begun()) my.transport->abort();
    if (strict()) static_cast<void>(take_landed());
    set_state(held, IBV_QPS_ERR);
    receive_status.store(receive, std::memory_order_relaxed);
    if (!my.ending.begun()) {  // else the sends are being flushed already
        my.ending.failed_tail = slots.tail();
        my.ending.send_status = send;
    }
    await_executors(held, Ending::Phase::leave);
    if (event) raise_async_event(*this, *event);
    settle(held);
}

void QueuePair::give_up(std::uint64_t registrations) noexcept {
    broken.store(registrations + 1, std::memory_order_release);
    const auto held = sends.try_hold();
    if (!held) {
        given_up.store(true, std::memory_order_relaxed);
        static_cast<CompletionQueue*>(send_cq)->attention.store(true, std::memory_order_release);
        return;
    }
    begin_error(held, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
}

void QueuePair::begin_send_error(SendHeld held, ibv_wc_status status) noexcept {
    SendSide& my = sends(held);
    if (reliable() || my.own.abandoned()) {
        return begin_error(held, status, IBV_WC_WR_FLUSH_ERR, std::nullopt);
    }
    if (my.ending.begun() || state == IBV_QPS_RESET) return;
    if (my.transport != nullptr) my.transport->abort();
    set_state(held, IBV_QPS_SQE);
    my.ending.failed_tail = slots.tail();
    my.ending.send_status = status;
    await_executors(held, Ending::Phase::sends_leave);
    settle(held);
}

void QueuePair::await_executors(SendHeld held, Ending::Phase how) noexcept {
    SendSide& my = sends(held);
    execute_at_once(held, false);
    forget_local(held);
    my.stall.end();
    my.ending.begin(how);
    heavy_fence();
    counters.add(Count::heavy_fence);
    see_hazards(my.seen_hazards);
    if (my.ending.of_sends()) my.seen_hazards.senders.clear();  // who sends to it does not matter
    draining_ = false;
}

bool QueuePair::end_send_error(PollHeld, SendHeld held) noexcept {
    SendSide& my = sends(held);
    if (my.ending.phase != Ending::Phase::sends_flush) return false;
    const std::uint32_t tail = slots.tail();
    if (send_head.load(std::memory_order_acquire) != tail) {
        return false;
    }
    my.ending.phase = Ending::Phase::none;
    send_source.flushing.store(false, std::memory_order_relaxed);
    my.pending.drop();
    block.fault->send.store(0, std::memory_order_relaxed);
    my.stall.end();
    set_state(held, IBV_QPS_RTS);
    execute_at_once(held, my.own.connected() && cable == nullptr);
    if (cable != nullptr) cable->restart();
    if (my.transport != nullptr) my.transport->restart();
    return true;
}

void QueuePair::await_landing() noexcept {
    base::NapParker parker;
    const auto landed = [&] {
        const auto held = sends.hold();
        if (on_cable->completed_has_landed()) return true;
        if (held->transport == nullptr && (state != IBV_QPS_RTS || connection_.lost())) {
            return true;
        }
        static_cast<void>(serve(held));
        return false;
    };
    // The longest latency and jitter, and some seconds on the port.
    static_cast<void>(
        base::wait_until(landed, base::Deadline::after(30s), base::WaitPolicy{}, parker));
}

bool QueuePair::settle(SendHeld held) noexcept {
    SendSide& my = sends(held);
    if (!my.ending.leaving()) return my.ending.flushing();
    if (!executors_out(my.seen_hazards)) {
        const auto waited = base::Clock::now() - my.ending.since;
        if (waited < longest_execution) {
            look_again_behind(held, waited);
            return false;
        }
        std::uint64_t whole = 0;
        broken.compare_exchange_strong(whole, owner->process->registrations() + 1);
    }
    my.ending.flush();
    if (cable != nullptr) cable->release_executed();
    // What was completed stays completed; what comes after it is flushed.
    std::uint32_t waiting = cable != nullptr       ? cable->uncompleted()
                            : my.transport != nullptr ? my.transport->aborted()
                                                      : my.pending.count();
    const std::uint32_t posted = my.ending.failed_tail - send_head.load(std::memory_order_acquire);
    if (waiting > posted) waiting = posted;
    my.ending.first_unexecuted = my.ending.failed_tail - waiting;
    if (datagram != nullptr) pool->collect(false);
    for (CompletionSource* source : {&send_source, &receive_source}) {
        if (source->flushing.load(std::memory_order_relaxed)) continue;
        if (my.ending.of_sends() && !source->send) continue;
        source->limit.store(source->end_after(source->position.load(std::memory_order_acquire)),
                            std::memory_order_relaxed);
        source->flushing.store(true, std::memory_order_release);
    }
    if (srq != nullptr && !my.ending.of_sends()) settle_shared(held);
    for (ibv_cq* cq : {send_cq, recv_cq}) {
        static_cast<CompletionQueue*>(cq)->attention.store(true, std::memory_order_release);
    }
    static_cast<CompletionQueue*>(send_cq)->flushed();
    if (recv_cq != send_cq) static_cast<CompletionQueue*>(recv_cq)->flushed();
    return true;
}

void QueuePair::settle_shared(SendHeld) noexcept {
    // What was taken from the shared receive queue and has a completion keeps it; the rest is
    // offered again, unless a stopped executor may still write there.
    if (datagram == nullptr) {
        std::uint32_t at = receive_source.position.load(std::memory_order_acquire);
        const std::uint32_t end = receive_source.limit.load(std::memory_order_relaxed);
        for (; at != end; ++at) {
            pool->mark_done(load_once(receive_source.entry(at).slot_and_flags) &
                            completion_slot_mask);
        }
        if (receive_status.load(std::memory_order_relaxed) != IBV_WC_WR_FLUSH_ERR) {
            const std::uint32_t slot = block.fault->receive_slot.load(std::memory_order_relaxed);
            if (slot != 0) pool->mark_done(slot - 1);
            fault_slot.store(slot, std::memory_order_release);
        }
    }
    if (broken.load(std::memory_order_relaxed) == 0) pool->offer_again(memory.index, false);
    raise_async_event(*this, IBV_EVENT_QP_LAST_WQE_REACHED);
}

bool QueuePair::flush_pooled(ibv_wc& wc) noexcept {
    if (own_pool != nullptr) return own_pool->take_oldest(wc.wr_id);
    const std::uint32_t slot = fault_slot.exchange(0, std::memory_order_acquire);
    return slot != 0 && pool->take_back(slot - 1, wc.wr_id);
}

bool QueuePair::flush(PollHeld, CompletionSource& source, ibv_wc& wc) noexcept {
    wc = ibv_wc{};
    wc.qp_num = qp_num;
    if (source.send) {
        const auto held = sends.hold();
        Ending& ending = held->ending;
        std::uint32_t slot = send_head.load(std::memory_order_relaxed);
        if (static_cast<std::int32_t>(ending.first_unexecuted - slot) > 0) {
            slot = ending.first_unexecuted;  // what was executed unsignaled has no completion to
                                             // wait for
            send_head.store(slot, std::memory_order_release);
        }
        const std::uint32_t tail = slots.tail();
        if (static_cast<std::int32_t>(tail - slot) <= 0) return false;
        const SentSlot& posted = slots.at(slot);
        wc.wr_id = posted.wr_id;
        wc.opcode = posted.opcode;
        wc.status = std::exchange(ending.send_status, IBV_WC_WR_FLUSH_ERR);
        if (wc.status == IBV_WC_RETRY_EXC_ERR && !is_carried())
            wc.vendor_err = connection_.lost() ? vendor_peer_ended : vendor_no_answer;
        send_head.store(slot + 1, std::memory_order_release);
    } else if (pool != nullptr) {
        if (!flush_pooled(wc)) return false;
    } else {
        const std::uint32_t position = source.position.load(std::memory_order_relaxed);
        if (position == receives.tail().load(std::memory_order_acquire)) return false;
        wc.wr_id = receives.id(position);
        source.limit.store(position + 1, std::memory_order_relaxed);
        source.position.store(position + 1, std::memory_order_release);
    }
    if (!source.send) {
        wc.opcode = IBV_WC_RECV;
        wc.status = receive_status.exchange(IBV_WC_WR_FLUSH_ERR, std::memory_order_relaxed);
    }
    source.errors.store(source.errors.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
    return true;
}

}  // namespace millrace::soft
