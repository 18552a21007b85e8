// A queue pair looked after: its executors, timers and faults, whenever somebody polls or waits.
#include "queue_pair/queue_pair.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "completion/completion_channel.hpp"
#include "copy_service/copy_service.hpp"
#include "fabric/node.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/wait.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "system/fences.hpp"
#include "transport/failure_lines.hpp"
#include "transport/rnr_timer.hpp"

namespace millrace::soft {

using namespace std::chrono_literals;

void QueuePair::set_state(SendHeld held, ibv_qp_state next) noexcept {
    std::atomic_ref{state}.store(next, std::memory_order_relaxed);
    const std::uint64_t word =
        make_state_word(memory.generation, memory.index, sends(held).resets, next);
    state_word.store(word, std::memory_order_release);
    block.control->state_word.store(word, std::memory_order_release);
}

void QueuePair::rewind_block() noexcept {
    block.send->completions.store(first_position, std::memory_order_relaxed);
    block.pending->head.store(first_position, std::memory_order_relaxed);
    block.pending->tail.store(first_position, std::memory_order_relaxed);
    block.consumed->position.store(first_position, std::memory_order_relaxed);
    block.receive->tail.store(first_receive_tail(), std::memory_order_relaxed);
}

void QueuePair::see_hazards(SeenHazards& hazards) const noexcept {
    std::uint64_t* const seen = hazards.words;
    seen[0] = block.hazard->send.word.load(std::memory_order_acquire);
    seen[1] = block.hazard->run.word.load(std::memory_order_acquire);
    seen[2] = seen[3] = 0;
    hazards.copying = owner->process->copies().working();
    if (datagram != nullptr) hazards.complete = datagram->see(hazards.senders);
    if (!connection_) return;
    const HazardLine& peers = *connection_.view().hazard;
    seen[2] = peers.send.word.load(std::memory_order_acquire);
    seen[3] = peers.run.word.load(std::memory_order_acquire);
}

bool QueuePair::executors_out(const SeenHazards& hazards, const FencedKey* region) const noexcept {
    const std::uint64_t* const seen = hazards.words;
    const unsigned others = connection_.to_self() ? named_by_both : 0U;
    const auto out = [&](const Hazard& hazard, std::uint64_t before, NamedBy mine) {
        return (before & 1) == 0 || hazard.word.load(std::memory_order_acquire) != before ||
               (region != nullptr && !region->may_be_in(hazard, mine | others));
    };
    if (!out(block.hazard->send, seen[0], named_by_sender) ||
        !out(block.hazard->run, seen[1], named_by_receiver)) {
        return false;
    }
    if (!hazards.complete || !owner->process->copies().out(hazards.copying, region)) return false;
    for (const SeenSender& one : hazards.senders) {
        if (!datagram->sender_out(one.node, one.word, region)) return false;
    }
    if (!connection_ || connection_.lost()) return true;
    const HazardLine& peers = *connection_.view().hazard;
    return out(peers.send, seen[2], named_by_receiver) && out(peers.run, seen[3], named_by_sender);
}

bool QueuePair::wait_for_executors(const FencedKey* region) const noexcept {
    SeenHazards seen;
    see_hazards(seen);
    base::NapParker parker;
    const auto out = [&] {
        owner->process->look_for_deaths(base::ticks());
        return executors_out(seen, region);
    };
    const auto patience = connection_ ? connection_.peer()->patience() : longest_execution;
    const bool left =
        base::wait_until(out, base::Deadline::after(patience), {}, parker) == base::Status::ok;
    if (!left && connection_) connection_.peer()->note_standstill();
    return left;
}

void QueuePair::check_timers(SendHeld held) noexcept {
    SendSide& my = sends(held);
    const ibv_qp_attr& attributes = my.attributes;
    if (my.stall.why() == Progress::done || (state != IBV_QPS_RTS && state != IBV_QPS_SQD)) return;
    std::chrono::nanoseconds limit{};
    ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
    if (my.stall.why() == Progress::no_receive) {
        if (attributes.rnr_retry == 7) return;
        const std::uint32_t code =
            connection_.view().control->min_rnr_timer.load(std::memory_order_relaxed) & 31;
        limit = attributes.rnr_retry * rnr_time(code);
        status = IBV_WC_RNR_RETRY_EXC_ERR;
    } else {
        if (attributes.timeout == 0) return;
        limit = (attributes.retry_cnt + 1) *
                std::chrono::nanoseconds{std::int64_t{4096} << (attributes.timeout & 31)};
    }
    const auto elapsed = my.stall.age();
    if (elapsed < limit) return look_again_in(held, limit - elapsed);
    // The peer may be running it at this moment: then it is not too late yet. One that was stopped
    // with the lock would keep it for ever.
    std::uint32_t free = run_free;
    const bool locked =
        block.pending->lock.compare_exchange_strong(free, run_owner, std::memory_order_seq_cst);
    if (!locked && elapsed - limit < longest_execution)
        return look_again_behind(held, elapsed - limit);
    if (my.pending.count() != 0) {
        if (strict()) {
            Reason reason{ReasonKind::no_receive};
            if (status != IBV_WC_RNR_RETRY_EXC_ERR) {
                reason = my.own.way();
                if (reason.kind == ReasonKind::none) reason.kind = ReasonKind::no_answer;
            }
            tell_oldest_fails(held, status, reason);
        }
        begin_error(held, status, IBV_WC_WR_FLUSH_ERR, std::nullopt);
    }
    if (locked) block.pending->lock.store(run_free, std::memory_order_seq_cst);
}

void QueuePair::look_again_in(SendHeld held, std::chrono::nanoseconds delay) noexcept {
    auto* const channel = static_cast<CompletionQueue*>(send_cq)->soft_channel;
    if (channel == nullptr) return;
    if (sends(held).stall.needs_alarm(channel->alarms.load(std::memory_order_relaxed))) {
        channel->wake_in(delay);
    }
}

void QueuePair::look_again_behind(SendHeld held, std::chrono::nanoseconds waited) noexcept {
    look_again_in(held, std::clamp<std::chrono::nanoseconds>(
                            longest_execution - waited, 1us,
                            std::max<std::chrono::nanoseconds>(waited, 1ms)));
}

void QueuePair::look_after_pool() noexcept {
    pool->check_limit();
    if (datagram == nullptr) return;
    // A claimed receive that does not arrive: nobody may ring when its time is over.
    if (!pool->collect(true)) return;
    auto* const channel = static_cast<CompletionQueue*>(recv_cq)->soft_channel;
    if (channel != nullptr) channel->wake_in(2ms);
}

void QueuePair::service() noexcept {
    if (hear_wishes()) [[unlikely]] {
        if (const auto listed = owner->process->listed().try_hold(); listed) {
            grant_copies(listed);
        } else {
            block.fault->wishes.fetch_or(wish_copies, std::memory_order_relaxed);  // next time
        }
    }
    if (cable != nullptr) look_for_peer_pending();  // on a shaped link it comes when it is due
    if (pool != nullptr) [[unlikely]]
        look_after_pool();
    if (const auto held = sends.try_hold(); !held || !serve(held)) return;
    // It was not there when we went to RTR. Rare: look again every now and then.
    bool run_again = false;
    {
        const auto listed = owner->process->listed().try_hold();
        if (!listed) return;
        const auto held = sends.hold();
        const ErrandPause run_pause{theirs.lock(), run_again};
        const auto now = base::Clock::now();
        if (!connection_ && now >= held->next_connect && state >= IBV_QPS_RTR &&
            state <= IBV_QPS_SQD) {
            held->next_connect = now + 1ms;
            if (!connect(listed, held, theirs.held_by_hand()))
                begin_error(held, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, std::nullopt);
            run_again = static_cast<bool>(connection_);
        }
    }
    if (!run_again) return;
    heavy_fence();  // as modify_qp does: the peer's requests may wait for nothing but this
    run_peer_pending();
}

void QueuePair::catch_up() noexcept {
    if (on_cable == nullptr) return;
    look_for_peer_pending();
    static_cast<void>(serve(sends.hold()));
}

void QueuePair::look_after(QueuePairsHeld listed) noexcept {
    if (hear_wishes()) grant_copies(listed);
    if (pool != nullptr) pool->check_limit();
    const bool fault = block.fault->receive.load(std::memory_order_acquire) != 0;
    // The lock is its poster's: others take it only if there is a reason.
    if (!fault && !draining() && !connection_.lost()) return;
    static_cast<void>(serve(sends.hold()));
}

bool QueuePair::take_wishes() noexcept {
    const std::uint32_t wishes = block.fault->wishes.exchange(0, std::memory_order_acquire);
    if ((wishes & wish_established) != 0) tell_established();
    return (wishes & wish_copies) != 0;
}

void QueuePair::tell_established() noexcept {
    if (!established_told.exchange(true)) raise_async_event(*this, IBV_EVENT_COMM_EST);
}

void QueuePair::grant_copies(QueuePairsHeld listed) noexcept {
    if (datagram != nullptr) {
        Node& node = owner->process->node();
        datagram->senders().for_each_wish([&](std::uint32_t number) {
            try {
                auto sender = node.peer(number);
                if (sender == nullptr || sender->is_self()) return;
                owner->process->copies().serve_sender(listed, copy_granter(), std::move(sender));
            } catch (const std::exception& error) {
                base::log(base::LogLevel::warn, "soft", "cannot serve copies to node {}: {}",
                          number, error.what());
            }
        });
        return;
    }
    if (connection_ && !connection_.to_self())
        owner->process->copies().serve(listed, copy_granter(), *connection_.peer(), true);
}

void QueuePair::tell_faults(SendHeld held, ibv_wc_status send,
                            ibv_wc_status receive) const noexcept {
    const FaultLine& fault = *block.fault;
    if (fault.send.load(std::memory_order_relaxed) != 0) {
        tell_oldest_fails(held, send,
                          Reason::of(fault.send_reason.load(std::memory_order_relaxed),
                                     fault.send_amount.load(std::memory_order_relaxed)));
    }
    if (fault.receive.load(std::memory_order_relaxed) != 0) {
        tell_refusal(qp_num, destination.load(std::memory_order_relaxed), receive,
                     Reason::of(fault.receive_reason.load(std::memory_order_relaxed),
                                fault.receive_amount.load(std::memory_order_relaxed)));
    }
}

void QueuePair::move_transport(SendHeld held) noexcept {
    const ibv_wc_status failure = sends(held).transport->move();
    if (failure != IBV_WC_SUCCESS) begin_send_error(held, failure);
}

void QueuePair::finish_draining(SendHeld held) noexcept {
    const SendSide& my = sends(held);
    if (!draining_ || my.pending.executable() != 0 || !executors_out(my.seen_hazards)) return;
    if (cable != nullptr && !cable->released_all_before(my.pending.shown())) return;
    if (my.transport != nullptr && !my.transport->idle()) return;
    draining_ = false;
    if (my.drained_event) raise_async_event(*this, IBV_EVENT_SQ_DRAINED);
}

bool QueuePair::take_failures(SendHeld held) noexcept {
    const SendSide& my = sends(held);
    if (corrupt.load(std::memory_order_relaxed)) {
        begin_error(held, IBV_WC_FATAL_ERR, IBV_WC_FATAL_ERR, IBV_EVENT_QP_FATAL);
        return true;
    }
    if (given_up.exchange(false, std::memory_order_relaxed)) {
        begin_error(held, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
        return true;
    }
    const std::uint32_t receive_fault = block.fault->receive.load(std::memory_order_acquire);
    const std::uint32_t send_fault = block.fault->send.load(std::memory_order_acquire);
    if ((receive_fault | send_fault) != 0) {
        const auto status = [](std::uint32_t fault) {
            // 1 would be "success", and nothing is a fault that succeeded.
            return fault < 2 || fault - 1 > IBV_WC_GENERAL_ERR
                       ? IBV_WC_WR_FLUSH_ERR
                       : static_cast<ibv_wc_status>(fault - 1);
        };
        const ibv_wc_status send = status(send_fault);
        const ibv_wc_status receive = status(receive_fault);
        if (strict() && !my.ending.flushing()) tell_faults(held, send, receive);
        if (receive_fault == 0) {
            begin_send_error(held, send);
        } else {
            const bool access = receive == IBV_WC_WR_FLUSH_ERR || receive == IBV_WC_LOC_ACCESS_ERR;
            begin_error(held, send, receive,
                        access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
        }
        return true;
    }
    // It died as it stood. A peer that destroyed its queue pair before it ended is no death: as on
    // a wire, nobody is told, and only what is sent to it fails in time.
    if (!reliable() || !connection_.lost() || !my.own.receiver_stands()) return false;
    begin_error(held, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
    return true;
}

bool QueuePair::serve(SendHeld held) noexcept {
    const SendSide& my = sends(held);
    deaths_served.store(owner->process->deaths(), std::memory_order_relaxed);
    if (my.transport != nullptr) move_transport(held);
    if (my.ending.leaving()) {
        settle(held);
        return false;
    }
    if (my.ending.phase == Ending::Phase::flush || state == IBV_QPS_RESET || take_failures(held)) {
        return false;
    }
    const auto sends = [this] { return state == IBV_QPS_RTS || state == IBV_QPS_SQD; };
    if (sends() && my.pending.executable() != 0 &&
        (cable == nullptr || cable->waits_for(cable_now()))) {
        run_own_pending(held);
        check_timers(held);
    }
    if (cable != nullptr && sends() &&
        cable->next_due.load(std::memory_order_relaxed) != cable_never) {
        const ibv_wc_status doom = cable->release(cable_now());
        if (doom != IBV_WC_SUCCESS) begin_error(held, doom, IBV_WC_WR_FLUSH_ERR, std::nullopt);
        cable->expect();
    }
    if (draining_) finish_draining(held);
    return !connection_ && state >= IBV_QPS_RTR && my.transport == nullptr;
}

}  // namespace millrace::soft
