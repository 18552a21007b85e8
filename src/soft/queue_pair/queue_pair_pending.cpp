// What a queue pair has posted and could not run at once, its own and its peer's: run when it is
// due, by whichever process looks first.
#include <cstdint>
#include <new>
#include <optional>

#include "millrace/base/detail/peer_causality.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/fences.hpp"
#include "transport/failure_lines.hpp"
#include "transport/pieces.hpp"

namespace millrace::soft {

Progress QueuePair::run_pending(std::optional<SendHeld> own, Executor& executor,
                                const BlockView& view, Hazard& hazard, Counters& counts) noexcept {
    SendSide* const my = own ? &sends(*own) : nullptr;
    const RunSide side = own ? run_owner : run_peer;
    PendingLine& line = *view.pending;
    Progress progress = Progress::done;
    // More than any queue holds: who goes on for longer is fed by a peer that has no end.
    std::uint32_t patience = 4 * max_queue_entries;
    const auto waiting_after = [&](std::uint32_t head) {
        if (side == run_peer) return line.tail.load(std::memory_order_seq_cst) - head;
        if (my->pending.believe(head)) return my->pending.shown() - head;
        corrupt.store(true, std::memory_order_relaxed);
        return 0U;
    };
    // The peer's block is only touched under a hazard with its state checked: it may be gone.
    const auto mine_to_touch = [&] { return side == run_owner || executor.sender_same(); };
    for (;;) {
        {
            const HazardScope scope{hazard, asymmetric(), names_none};
            if (side == run_peer && !executor.sender_ready()) return Progress::no_peer;
            const auto take = [&] {
                std::uint32_t free = run_free;
                return line.lock.compare_exchange_strong(free, side, std::memory_order_seq_cst);
            };
            if (!take()) {
                // The holder looks again after releasing it. That it sees what we have published is
                // sure only from here on: a compare-and-swap that fails need be no fence.
                full_fence();
                if (!take()) return Progress::held;
            }
        }
        for (;;) {
            if (--patience == 0) {
                progress = Progress::owners;
                break;
            }
            if (own && !my->deferred_local.empty()) {
                const std::uint32_t next = line.head.load(std::memory_order_acquire);
                if (my->deferred_local.front().position == next && next != my->pending.shown()) {
                    progress = run_local(*own, my->deferred_local.front());
                    if (progress != Progress::done) break;
                    my->deferred_local.front().window_done();
                    my->deferred_local.pop_front();
                    counts.add(Count::pending_run);
                    line.head.store(next + 1, std::memory_order_release);
                    continue;
                }
            }
            HazardScope scope{hazard, asymmetric(), names_none};  // the executor names them
            if (side == run_peer && !executor.sender_ready()) {
                progress = Progress::failed;
                break;
            }
            const std::uint32_t head = line.head.load(std::memory_order_acquire);
            const std::uint32_t waiting = waiting_after(head);
            if (waiting == 0 || waiting - 1 > view.send_mask) {
                progress = Progress::done;
                break;
            }
            base::heard_from_peers();
            progress =
                executor.run_pending(own ? my->pending.entry(head) : *view.pending_entry(head));
            if (progress == Progress::failed && side == run_peer) {
                const Reason& reason = executor.reason();
                view.fault->send_reason.store(reason.word(), std::memory_order_relaxed);
                view.fault->send_amount.store(reason.amount, std::memory_order_relaxed);
                view.fault->send.store(1U + static_cast<std::uint32_t>(executor.failure()),
                                       std::memory_order_release);
                full_fence();
                executor.ring_sender(true);
            }
            if (progress != Progress::done && executor.abandoned()) [[unlikely]] {
                scope.keep();
                return progress;  // with the pending ring's lock, which is of no use any more
            }
            if (progress != Progress::done) break;
            counts.add(Count::pending_run);
            line.head.store(head + 1, std::memory_order_release);
            if (side == run_peer && waiting == 1 && executor.sender_drains()) {
                full_fence();
                executor.ring_sender_async();
            }
        }
        const HazardScope scope{hazard, asymmetric(), names_none};
        if (!mine_to_touch()) return progress;
        base::telling_peers();
        line.lock.store(run_free, std::memory_order_seq_cst);
        full_fence();
        // After the lock: who is woken for it must not find it taken, and sleep again.
        if (side == run_peer && progress == Progress::owners) executor.ring_sender(true);
        const std::uint32_t waiting = waiting_after(line.head.load(std::memory_order_relaxed));
        if (waiting == 0 || waiting - 1 > view.send_mask || !executor.could_go_on(progress)) {
            return progress;
        }
    }
}

Executor* QueuePair::their_executor(TheirsHeld run) noexcept {
    PeerExecutor& executor = theirs(run);
    if (executor == nullptr) {
        executor.reset(new (std::nothrow) Executor);
        if (executor == nullptr) return nullptr;
    }
    if (!executor->connected() && connection_) {
        // Who changes it holds both.
        const End& peer = sends(sends.held_by_hand()).own.receiver();
        executor->connect(&owner->process->node(), connection_.peer().get(), peer, end,
                          asymmetric(), &run_counters);
    }
    return executor->connected() ? executor.get() : nullptr;
}

void QueuePair::run_own_pending(SendHeld held) noexcept {
    SendSide& my = sends(held);
    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
    if (!my.own.connected()) {
        my.stall.begin_without_peer();
        return;
    }
    Progress progress = run_pending(held, my.own, end.block, block.hazard->send, counters);
    if (progress == Progress::failed) {
        if (strict()) tell_oldest_fails(held, my.own.failure(), my.own.reason());
        begin_send_error(held, my.own.failure());
        return;
    }
    const std::uint32_t waiting = my.pending.count();
    if (my.pending.executable() == 0) {
        execute_at_once(held, cable == nullptr && waiting == 0 && state == IBV_QPS_RTS);
        my.stall.end();
        return;
    }
    // One more than the ring holds is possible: the peer has completed an entry, we have polled
    // that and posted again, and only then does the peer move the head on.
    if (waiting - 1 > slots.mask() + 1) {
        corrupt.store(true, std::memory_order_relaxed);
        return;
    }
    if (progress == Progress::no_peer) tell_of_way(held, false);
    const std::uint32_t head = my.pending.tail() - waiting;
    if (progress == Progress::not_due) {
        my.stall.end();
        return;
    }
    bool brief = false;
    if (progress == Progress::held) {
        brief = my.stall.is_held_briefly(head);
        if (brief && my.stall.at(head)) return;
        progress = Progress::no_peer;
    } else {
        my.stall.is_held_no_longer();
    }
    if (cable != nullptr && progress != Progress::done && !brief) cable->stalled(head);
    if (progress != Progress::done && my.stall.begin(progress, head) &&
        progress == Progress::no_receive) {
        counters.add(Count::receiver_not_ready);
    }
}

void QueuePair::run_peer_pending() noexcept {
    do {
        if (!theirs.lock().try_lock_or_tell()) return;
        run_peer_pending(theirs.held_by_hand());
    } while (theirs.lock().unlock());
}

void QueuePair::look_for_peer_pending() noexcept {
    if (!theirs.lock().try_lock()) return;
    run_peer_pending(theirs.held_by_hand());
    if (theirs.lock().unlock()) run_peer_pending();
}

void QueuePair::run_peer_pending(TheirsHeld run) noexcept {
    const PeerExecutor& made = theirs(run);
    if (!connection_ || (made != nullptr && made->abandoned())) return;
    if (cable != nullptr && !peer_is_due(run)) return;
    const PendingLine& peers = *connection_.view().pending;
    if (made == nullptr &&
        peers.head.load(std::memory_order_relaxed) == peers.tail.load(std::memory_order_relaxed)) {
        return;
    }
    Executor* const executor = their_executor(run);
    if (executor == nullptr) return;
    static_cast<void>(
        run_pending({}, *executor, connection_.view(), block.hazard->run, run_counters));
    if (cable != nullptr) static_cast<void>(peer_is_due(run));
}

bool QueuePair::take_landed() noexcept {
    if (!theirs.lock().try_lock()) return false;
    const TheirsHeld run = theirs.held_by_hand();
    const auto landed = [&] {
        return peer_pending.load(std::memory_order_relaxed) != nullptr &&
               (theirs(run) == nullptr || !theirs(run)->abandoned()) &&
               connection_.view().pending->step.load(std::memory_order_acquire) == step_landed;
    };
    if (Executor* const executor = landed() ? their_executor(run) : nullptr; executor != nullptr) {
        executor->set_hurry(true);
        static_cast<void>(
            run_pending({}, *executor, connection_.view(), block.hazard->run, run_counters));
        executor->set_hurry(false);
    }
    const bool done = !landed();
    static_cast<void>(theirs.lock().unlock());  // who came meanwhile is too late: it goes to ERROR
    return done;
}

bool QueuePair::peer_is_due(TheirsHeld) noexcept {
    const BlockView& peers = connection_.view();
    const std::uint32_t head = peers.pending->head.load(std::memory_order_acquire);
    const std::uint32_t tail = peers.pending->tail.load(std::memory_order_acquire);
    std::int64_t due = cable_never;
    if (head != tail) due = peers.pending_due(head);
    cable->peer_due.store(due, std::memory_order_relaxed);
    return due != cable_never && due <= cable_now();
}

void QueuePair::tell_oldest_fails(SendHeld held, ibv_wc_status status,
                                  const Reason& reason) const noexcept {
    if (!slots.used()) return;  // nothing was ever posted, whatever the peer has written here
    const std::uint32_t slot = slots.tail() - sends(held).pending.count();
    tell_failure(qp_num, destination.load(std::memory_order_relaxed), slots.at(slot), status,
                 reason);
}

void QueuePair::tell_if_in_flight(std::uint32_t key) noexcept {
    const auto held = sends.hold();
    const SendSide& my = *held;
    if (!slots.used() || (state != IBV_QPS_RTS && state != IBV_QPS_SQD)) return;
    const std::uint32_t waiting = my.pending.count();
    if (waiting - 1 > slots.mask()) return;
    const std::uint32_t tail = my.pending.tail();
    for (std::uint32_t position = tail - waiting; position != tail; ++position) {
        const PendingEntry& entry = my.pending.entry(position);
        if ((load_once(entry.flags) & IBV_SEND_INLINE) != 0) continue;
        for (std::uint32_t i = 0; i < load_once(entry.sges) && i < send_sges; ++i) {
            if (load_sge(&entry + 1, i).lkey != key) continue;
            tell_memory_gone(qp_num, slots.at(load_once(entry.slot)), key);
            return;
        }
    }
}

}  // namespace millrace::soft
