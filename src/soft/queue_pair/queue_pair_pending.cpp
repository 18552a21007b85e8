// What a queue pair has posted and could not run at once, its own and its peer's: run when it is
// due, by whichever process looks first.
#include <cstdint>
#include <mutex>
#include <new>

#include "millrace/base/peer_causality.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/fences.hpp"
#include "transport/failure_lines.hpp"
#include "transport/pieces.hpp"

namespace millrace::soft {

Progress QueuePair::run_pending(Executor& executor, const BlockView& view, RunSide side,
                                Hazard& hazard, Counters& counts) noexcept {
    PendingLine& line = *view.pending;
    Progress progress = Progress::done;
    // More than any queue holds: who goes on for longer is fed by a peer that has no end.
    std::uint32_t patience = 4 * max_queue_entries;
    const auto waiting_after = [&](std::uint32_t head) {
        if (side == run_peer) return line.tail.load(std::memory_order_seq_cst) - head;
        if (pending.believe(head)) return pending.shown() - head;
        corrupt.store(true, std::memory_order_relaxed);
        return 0U;
    };
    // The peer's block is only touched under a hazard with its state checked: it may be gone.
    const auto mine_to_touch = [&] { return side == run_owner || executor.sender_same(); };
    for (;;) {
        {
            const HazardScope scope{hazard, asymmetric, names_none};
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
            if (side == run_owner && !deferred_local.empty()) {
                const std::uint32_t next = line.head.load(std::memory_order_acquire);
                if (deferred_local.front().position == next && next != pending.shown()) {
                    progress = run_local(deferred_local.front());
                    if (progress != Progress::done) break;
                    deferred_local.front().window_done();
                    deferred_local.pop_front();
                    counts.add(Count::pending_run);
                    line.head.store(next + 1, std::memory_order_release);
                    continue;
                }
            }
            HazardScope scope{hazard, asymmetric, names_none};  // the executor names them
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
            progress = executor.run_pending(side == run_owner ? pending.entry(head)
                                                              : *view.pending_entry(head));
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
        const HazardScope scope{hazard, asymmetric, names_none};
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

bool QueuePair::make_slots() noexcept {
    sent.reset(new (std::nothrow) SentSlot[geometry.send_entries]);
    if (sent == nullptr) return false;
    send_slots = send_capacity;
    return true;
}

Executor* QueuePair::their_executor() noexcept {
    if (theirs == nullptr) {
        theirs.reset(new (std::nothrow) Executor);
        if (theirs == nullptr) return nullptr;
    }
    if (!theirs->connected() && connection) {
        theirs->connect(&owner->process->node(), connection.peer().get(), own.receiver(), end,
                        asymmetric, &run_counters);
    }
    return theirs->connected() ? theirs.get() : nullptr;
}

void QueuePair::run_own_pending() noexcept {
    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
    if (!own.connected()) {
        stall.begin_without_peer();
        return;
    }
    Progress progress = run_pending(own, end.block, run_owner, block.hazard->send, counters);
    if (progress == Progress::failed) {
        if (strict()) tell_oldest_fails(own.failure(), own.reason());
        begin_send_error(own.failure());
        return;
    }
    const std::uint32_t waiting = pending.count();
    if (pending.executable() == 0) {
        execute_at_once(cable == nullptr && waiting == 0 && state == IBV_QPS_RTS);
        stall.end();
        return;
    }
    // One more than the ring holds is possible: the peer has completed an entry, we have polled
    // that and posted again, and only then does the peer move the head on.
    if (waiting - 1 > send_mask + 1) {
        corrupt.store(true, std::memory_order_relaxed);
        return;
    }
    if (progress == Progress::no_peer) tell_of_way(false);
    const std::uint32_t head = pending.tail() - waiting;
    if (progress == Progress::not_due) {
        stall.end();
        return;
    }
    bool brief = false;
    if (progress == Progress::held) {
        brief = stall.is_held_briefly(head);
        if (brief && stall.at(head)) return;
        progress = Progress::no_peer;
    } else {
        stall.is_held_no_longer();
    }
    if (cable != nullptr && progress != Progress::done && !brief) cable->stalled(head);
    if (progress != Progress::done && stall.begin(progress, head) &&
        progress == Progress::no_receive) {
        counters.add(Count::receiver_not_ready);
    }
}

void QueuePair::run_peer_pending() noexcept {
    do {
        if (!run_lock.try_lock_or_tell()) return;
        run_peer_pending_with_lock();
    } while (run_lock.unlock());
}

void QueuePair::look_for_peer_pending() noexcept {
    if (!run_lock.try_lock()) return;
    run_peer_pending_with_lock();
    if (run_lock.unlock()) run_peer_pending();
}

void QueuePair::run_peer_pending_with_lock() noexcept {
    if (!connection || (theirs != nullptr && theirs->abandoned())) return;
    if (cable != nullptr && !peer_is_due()) return;
    const PendingLine& peers = *connection.view().pending;
    if (theirs == nullptr &&
        peers.head.load(std::memory_order_relaxed) == peers.tail.load(std::memory_order_relaxed)) {
        return;
    }
    Executor* const executor = their_executor();
    if (executor == nullptr) return;
    const Progress progress =
        run_pending(*executor, connection.view(), run_peer, block.hazard->run, run_counters);
    static_cast<void>(progress);
    if (cable != nullptr) static_cast<void>(peer_is_due());
}

bool QueuePair::take_landed() noexcept {
    if (!run_lock.try_lock()) return false;
    const auto landed = [&] {
        return peer_pending.load(std::memory_order_relaxed) != nullptr &&
               (theirs == nullptr || !theirs->abandoned()) &&
               connection.view().pending->step.load(std::memory_order_acquire) == step_landed;
    };
    if (Executor* const executor = landed() ? their_executor() : nullptr; executor != nullptr) {
        executor->set_hurry(true);
        static_cast<void>(
            run_pending(*executor, connection.view(), run_peer, block.hazard->run, run_counters));
        executor->set_hurry(false);
    }
    const bool done = !landed();
    static_cast<void>(run_lock.unlock());  // who came meanwhile is too late: it goes to ERROR
    return done;
}

bool QueuePair::peer_is_due() noexcept {
    const BlockView& peers = connection.view();
    const std::uint32_t head = peers.pending->head.load(std::memory_order_acquire);
    const std::uint32_t tail = peers.pending->tail.load(std::memory_order_acquire);
    std::int64_t due = cable_never;
    if (head != tail) due = peers.pending_due(head);
    cable->peer_due.store(due, std::memory_order_relaxed);
    return due != cable_never && due <= cable_now();
}

void QueuePair::tell_oldest_fails(ibv_wc_status status, const Reason& reason) const noexcept {
    if (sent == nullptr) return;  // nothing was ever posted, whatever the peer has written here
    const std::uint32_t slot = send_tail.load(std::memory_order_relaxed) - pending.count();
    tell_failure(qp_num, attributes.dest_qp_num, sent[slot & send_mask], status, reason);
}

void QueuePair::tell_if_in_flight(std::uint32_t key) noexcept {
    const std::lock_guard guard{send_lock};
    if (sent == nullptr || (state != IBV_QPS_RTS && state != IBV_QPS_SQD)) return;
    const std::uint32_t waiting = pending.count();
    if (waiting - 1 > send_mask) return;
    const std::uint32_t tail = pending.tail();
    for (std::uint32_t position = tail - waiting; position != tail; ++position) {
        const PendingEntry& entry = pending.entry(position);
        if ((load_once(entry.flags) & IBV_SEND_INLINE) != 0) continue;
        for (std::uint32_t i = 0; i < load_once(entry.sges) && i < send_sges; ++i) {
            if (load_sge(&entry + 1, i).lkey != key) continue;
            const SentSlot& posted = sent[load_once(entry.slot) & send_mask];
            tell_memory_gone(qp_num, posted, key);
            return;
        }
    }
}

}  // namespace millrace::soft
