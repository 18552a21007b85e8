// The life of a queue pair: creation, connection, errors and their flushing, pending work, end.
#include "queue_pair.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <new>

#include "completion_channel.hpp"
#include "control_calls.hpp"
#include "domains.hpp"
#include "failure_lines.hpp"
#include "fences.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/peer_causality.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/soft/device.hpp"
#include "multicast.hpp"
#include "rnr_timer.hpp"
#include "shared_receive_queue.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

/// The block of a peer that is not there: in RESET for ever.
[[nodiscard]] BlockView nobody() noexcept {
    alignas(cache_line) static std::byte memory[Geometry{}.block_size()]{};
    return BlockView{memory, Geometry{}};
}

[[nodiscard]] std::uint32_t ring_size(std::uint32_t requested) noexcept {
    return std::bit_ceil(requested == 0 ? 1U : requested);
}

}  // namespace

void QueuePair::set_state(ibv_qp_state next) noexcept {
    std::atomic_ref{state}.store(next, std::memory_order_relaxed);
    const std::uint64_t word = make_state_word(memory.generation, memory.index, connection, next);
    state_word.store(word, std::memory_order_release);
    block.control->state_word.store(word, std::memory_order_release);
}

std::uint32_t QueuePair::pending_count() const noexcept {
    return pending_tail - block.pending->head.load(std::memory_order_acquire);
}

std::uint32_t QueuePair::executable_count() const noexcept {
    return pending_shown - block.pending->head.load(std::memory_order_acquire);
}

void QueuePair::show_pending() noexcept {
    pending_shown = pending_tail;
    block.pending->tail.store(pending_tail, std::memory_order_release);
}

// --- the connection -----------------------------------------------------------------------------

// Whoever waits for an event of this queue pair hears of its peer's death.
void QueuePair::watch_peer() const noexcept {
    const auto watch = [&](int epoll) {
        if (peer->watch_from(epoll)) return;
        base::log(base::LogLevel::warn, "soft",
                  "watch the life of process {} for queue pair {:#x}: {}; who waits for an event "
                  "without a limit may not be told of its death: raise fs.epoll.max_user_watches",
                  peer->pid(), qp_num, base::describe_errno(errno));
    };
    watch(owner->events->descriptor());
    const auto watch_for = [&](const ibv_comp_channel* channel) {
        if (channel == nullptr) return;
        if (static_cast<const CompletionChannel*>(channel)->hears_of_peers) watch(channel->fd);
    };
    watch_for(send_cq->channel);
    if (recv_cq->channel != send_cq->channel) watch_for(recv_cq->channel);
}

void QueuePair::connect() noexcept {
    mode_refused = false;
    told_of_way_there = told_of_way_here = false;
    const std::uint32_t destination = attributes.dest_qp_num;
    End mine;
    mine.mine = true;
    mine.block = as_posted;
    mine.path = &path;
    mine.state_word = &state_word;
    mine.receive_head = &receive_source.position;
    mine.receive_tail = &receive_tail;
    mine.qpn = qp_num;
    mine.generation = memory.generation;
    mine.pd = static_cast<ProtectionDomain*>(pd)->number;
    mine.receive_pd = receive_domain();
    mine.access = access;
    mine.type = qp_type;
    const auto bell_of = [](ibv_cq* cq) {
        const auto* channel = static_cast<CompletionQueue*>(cq)->soft_channel;
        return channel == nullptr ? -1 : channel->bell;
    };
    mine.bell_send = bell_of(send_cq);
    mine.bell_receive = bell_of(recv_cq);
    mine.bell_async = owner->events->bell();
    mine.news_send = &send_source.place;
    mine.news_receive = &receive_source.place;
    if (link != nullptr) mine.strict = link->strict();
    if (pool != nullptr) {
        mine.pool = pool->view();
        mine.own_pool = pool;
    }
    End other;
    other.type = qp_type;
    other.strict = mine.strict;
    Node* const node = &owner->process->node();
    if (!reliable()) {
        // Until the peer is there, and should it never be, what is sent to it is lost.
        other.block = nobody();
        own.connect(node, nullptr, mine, other, false, &counters);
    }
    try {
        Process& process = *owner->process;
        auto found = process.node().peer(node_of_qpn(destination));
        if (found == nullptr) return;
        auto mapped = found->map_block(index_of_qpn(destination), 0);
        if (!mapped) return;
        const auto view = BlockView::of_peer(mapped->memory, mapped->size);
        if (!view) {
            found->unmap_block(*mapped);
            return;
        }
        if (link == nullptr ? !is_fast(*view->mode) : !link->agrees_with(*view->mode)) {
            base::log(base::LogLevel::error, "soft",
                      "connect queue pair {:#x} to {:#x} of process {}: their devices are in "
                      "different modes, here '{}', there '{}'; set MILLRACE_SOFT_MODE to the same "
                      "for both",
                      qp_num, destination, found->pid(), describe_agreement(owner->mode),
                      describe(*view->mode));
            mode_refused = true;
            found->unmap_block(*mapped);
            return;
        }
        peer = std::move(found);
        peer_block = *mapped;
        peer_view = *view;
        watch_peer();
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "cannot reach queue pair {:#x}: {}", destination,
                  error.what());
        return;
    }
    asymmetric = owner->process->node().membarrier() && peer->asymmetric_fences();
    if (pool != nullptr && !asymmetric) pool->need_full_fences();
    block.control->destination.store(make_destination(peer_block->generation, destination),
                                     std::memory_order_release);
    other.block = peer_view;
    other.qpn = destination;
    other.generation = peer_block->generation;
    other.pool = map_peer_pool();
    own.connect(node, peer.get(), mine, other, asymmetric, &counters);
    theirs.connect(node, peer.get(), other, mine, asymmetric, &run_counters);
    if (CopyService::likely_needed(*peer)) owner->process->copies().serve(*this, false);
    peer_pending.store(peer_view.pending, std::memory_order_release);
}

PoolView QueuePair::map_peer_pool() noexcept {
    const std::uint32_t generation = load_once(peer_view.receive->pool_generation);
    if (generation == 0) return {};
    try {
        auto mapped = peer->map_block(load_once(peer_view.receive->pool_index), generation);
        if (!mapped) return {};
        const auto view = PoolView::of_peer(mapped->memory, mapped->size);
        if (view) {
            peer_pool = *mapped;
            return *view;
        }
        peer->unmap_block(*mapped);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft",
                  "cannot reach the shared receive queue of queue pair {:#x}: {}",
                  attributes.dest_qp_num, error.what());
    }
    return {};
}

void QueuePair::tell_of_way(bool both) noexcept {
    const std::uint32_t other = attributes.dest_qp_num;
    const auto tell = [](bool& told, const Reason& way, std::uint32_t from, std::uint32_t to) {
        if (told || way.kind == ReasonKind::none) return;
        told = true;
        tell_way(way, from, to);
    };
    tell(told_of_way_there, own.way(), qp_num, other);
    if (both) tell(told_of_way_here, theirs.way(), other, qp_num);
}

void QueuePair::disconnect() noexcept {
    peer_pending.store(nullptr, std::memory_order_release);
    own.disconnect();
    theirs.disconnect();
    owner->process->copies().forget(*this);
    if (peer_block) peer->unmap_block(*peer_block);
    if (peer_pool) peer->unmap_block(*peer_pool);
    peer_block.reset();
    peer_pool.reset();
    peer_view = BlockView{};
    peer.reset();
    ++disconnections;
}

bool QueuePair::forget_gone_receivers() noexcept {
    if (datagram_sender == nullptr) return true;
    if (!send_lock.try_lock()) return false;
    datagram_sender->forget_gone();
    send_lock.unlock();
    return true;
}

bool QueuePair::forget_regions() noexcept {
    if (!send_lock.try_lock()) return false;
    own.forget_regions();
    send_lock.unlock();
    if (!run_lock.try_lock()) return false;
    theirs.forget_regions();
    if (run_lock.unlock()) run_peer_pending();
    return true;
}

// --- executors and errors -----------------------------------------------------------------------

void QueuePair::see_hazards(SeenHazards& hazards) const noexcept {
    std::uint64_t* const seen = hazards.words;
    seen[0] = block.hazard->send.word.load(std::memory_order_acquire);
    seen[1] = block.hazard->run.word.load(std::memory_order_acquire);
    seen[2] = seen[3] = 0;
    hazards.copying = owner->process->copies().working();
    if (datagram != nullptr) hazards.complete = datagram->see(hazards.senders);
    if (!peer_block) return;
    seen[2] = peer_view.hazard->send.word.load(std::memory_order_acquire);
    seen[3] = peer_view.hazard->run.word.load(std::memory_order_acquire);
}

bool QueuePair::executors_out(const SeenHazards& hazards, const FencedKey* region) const noexcept {
    const std::uint64_t* const seen = hazards.words;
    const unsigned others = peer != nullptr && peer->is_self() ? named_by_both : 0U;
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
    if (!peer_block || !peer->alive()) return true;
    return out(peer_view.hazard->send, seen[2], named_by_receiver) &&
           out(peer_view.hazard->run, seen[3], named_by_sender);
}

bool QueuePair::wait_for_executors(const FencedKey* region) const noexcept {
    SeenHazards seen;
    see_hazards(seen);
    base::NapParker parker;
    const auto out = [&] {
        owner->process->look_for_deaths(base::ticks());
        return executors_out(seen, region);
    };
    return base::wait_until(out, base::Deadline::after(1s), base::WaitPolicy{}, parker) ==
           base::Status::ok;
}

void QueuePair::begin_error(ibv_wc_status send, ibv_wc_status receive,
                            std::optional<ibv_event_type> event) noexcept {
    if (((erring || settled) && !send_only) || state == IBV_QPS_RESET) return;
    if (flights != nullptr && !send_only) flights->ground(link_now());
    if (strict()) static_cast<void>(take_landed());
    set_state(IBV_QPS_ERR);
    receive_status.store(receive, std::memory_order_relaxed);
    if (!send_only) {  // else the sends are being flushed already
        failed_tail = send_tail.load(std::memory_order_relaxed);
        send_status = send;
    }
    send_only = false;
    await_executors();
    if (event) raise_async_event(*this, *event);
    settle();
}

void QueuePair::give_up(std::uint64_t registrations) noexcept {
    broken_at = registrations;
    broken.store(true, std::memory_order_release);
    if (!send_lock.try_lock()) {
        given_up.store(true, std::memory_order_relaxed);
        static_cast<CompletionQueue*>(send_cq)->attention.store(true, std::memory_order_release);
        return;
    }
    begin_error(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
    send_lock.unlock();
}

void QueuePair::begin_send_error(ibv_wc_status status) noexcept {
    if (reliable() || own.abandoned()) {
        return begin_error(status, IBV_WC_WR_FLUSH_ERR, std::nullopt);
    }
    if (erring || settled || state == IBV_QPS_RESET) return;
    if (flights != nullptr) flights->ground(link_now());
    set_state(IBV_QPS_SQE);
    failed_tail = send_tail.load(std::memory_order_relaxed);
    send_status = status;
    send_only = true;
    await_executors();
    settle();
}

void QueuePair::await_executors() noexcept {
    execute_at_once(false);
    forget_local();
    settled = false;
    erring = true;
    erring_since = base::Clock::now();
    heavy_fence();
    counters.add(Count::heavy_fence);
    see_hazards(seen_hazards);
    if (send_only) seen_hazards.senders.clear();  // who sends to it does not matter
    draining = false;
}

bool QueuePair::end_send_error() noexcept {
    if (!settled || !send_only) return false;
    const std::uint32_t tail = send_tail.load(std::memory_order_relaxed);
    if (send_head.load(std::memory_order_acquire) != tail) {
        return false;
    }
    settled = send_only = false;
    send_source.flushing.store(false, std::memory_order_relaxed);
    block.pending->step.store(0, std::memory_order_relaxed);
    block.pending->head.store(pending_tail, std::memory_order_release);
    pending_seen = pending_shown = pending_tail;
    block.fault->send.store(0, std::memory_order_relaxed);
    stall = Progress::done;
    set_state(IBV_QPS_RTS);
    execute_at_once(own.connected() && link == nullptr);
    if (link != nullptr) link->restart();
    if (flights != nullptr) flights->restart();
    return true;
}

void QueuePair::await_landing() noexcept {
    base::NapParker parker;
    const auto landed = [&] {
        const std::lock_guard guard{send_lock};
        if (on_link->completed_has_landed()) return true;
        if (flights == nullptr && (state != IBV_QPS_RTS || (peer != nullptr && !peer->alive()))) {
            return true;
        }
        static_cast<void>(serve());
        return false;
    };
    // The longest latency and jitter, and some seconds on the port.
    static_cast<void>(
        base::wait_until(landed, base::Deadline::after(30s), base::WaitPolicy{}, parker));
}

bool QueuePair::settle() noexcept {
    if (settled) return true;
    if (!erring) return false;
    if (!executors_out(seen_hazards)) {
        if (base::Clock::now() - erring_since < 1s) return false;
        if (!broken.load(std::memory_order_relaxed)) {
            broken_at = owner->process->registrations();
            broken.store(true, std::memory_order_release);
        }
    }
    erring = false;
    settled = true;
    if (link != nullptr) link->release_executed();
    // What was completed stays completed; what comes after it is flushed.
    std::uint32_t waiting = link != nullptr      ? link->uncompleted()
                            : flights != nullptr ? flights->grounded()
                                                 : pending_count();
    const std::uint32_t posted = failed_tail - send_head.load(std::memory_order_acquire);
    if (waiting > posted) waiting = posted;
    first_unexecuted = failed_tail - waiting;
    if (datagram != nullptr) pool->collect(false);
    for (CompletionSource* source : {&send_source, &receive_source}) {
        if (source->flushing.load(std::memory_order_relaxed)) continue;
        if (send_only && !source->send) continue;
        std::uint32_t end = source->position.load(std::memory_order_acquire);
        for (std::uint32_t seen = 0; seen <= source->mask && source->holds(end); ++seen) ++end;
        source->limit.store(end, std::memory_order_relaxed);
        source->flushing.store(true, std::memory_order_release);
    }
    if (srq != nullptr && !send_only) settle_shared();
    for (ibv_cq* cq : {send_cq, recv_cq}) {
        static_cast<CompletionQueue*>(cq)->attention.store(true, std::memory_order_release);
    }
    static_cast<CompletionQueue*>(send_cq)->flushed();
    if (recv_cq != send_cq) static_cast<CompletionQueue*>(recv_cq)->flushed();
    return true;
}

void QueuePair::settle_shared() noexcept {
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
            fault_slot = block.fault->receive_slot.load(std::memory_order_relaxed);
            if (fault_slot != 0) pool->mark_done(fault_slot - 1);
        }
    }
    if (!broken.load(std::memory_order_relaxed)) pool->offer_again(memory.index, false);
    raise_async_event(*this, IBV_EVENT_QP_LAST_WQE_REACHED);
}

bool QueuePair::flush_pooled(ibv_wc& wc) noexcept {
    if (own_pool != nullptr) return own_pool->take_oldest(wc.wr_id);
    const std::uint32_t slot = std::exchange(fault_slot, 0);
    return slot != 0 && pool->take_back(slot - 1, wc.wr_id);
}

bool QueuePair::flush(CompletionSource& source, ibv_wc& wc) noexcept {
    wc = ibv_wc{};
    wc.qp_num = qp_num;
    if (source.send) {
        const std::lock_guard guard{send_lock};
        std::uint32_t slot = send_head.load(std::memory_order_relaxed);
        if (static_cast<std::int32_t>(first_unexecuted - slot) > 0) {
            slot = first_unexecuted;  // what was executed unsignaled has no completion to wait for
            send_head.store(slot, std::memory_order_release);
        }
        const std::uint32_t tail = send_tail.load(std::memory_order_relaxed);
        if (static_cast<std::int32_t>(tail - slot) <= 0) return false;
        const SentSlot& posted = sent[slot & send_mask];
        wc.wr_id = posted.wr_id;
        wc.opcode = posted.opcode;
        wc.status = send_status;
        send_status = IBV_WC_WR_FLUSH_ERR;
        send_head.store(slot + 1, std::memory_order_release);
    } else if (pool != nullptr) {
        if (!flush_pooled(wc)) return false;
        wc.opcode = IBV_WC_RECV;
        wc.status = receive_status.exchange(IBV_WC_WR_FLUSH_ERR, std::memory_order_relaxed);
    } else {
        const std::uint32_t position = source.position.load(std::memory_order_relaxed);
        if (position == receive_tail.load(std::memory_order_acquire)) return false;
        wc.wr_id = receive_ids[position & receive_mask];
        wc.opcode = IBV_WC_RECV;
        wc.status = receive_status.exchange(IBV_WC_WR_FLUSH_ERR, std::memory_order_relaxed);
        source.limit.store(position + 1, std::memory_order_relaxed);
        source.position.store(position + 1, std::memory_order_release);
    }
    source.errors.store(source.errors.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
    return true;
}

// --- pending work -------------------------------------------------------------------------------

bool QueuePair::believe_head(std::uint32_t head) noexcept {
    if (head - pending_seen > pending_tail - pending_seen) {
        corrupt.store(true, std::memory_order_relaxed);  // back, or beyond what was posted
        return false;
    }
    pending_seen = head;
    return true;
}

Progress QueuePair::run_pending(Executor& executor, const BlockView& view, RunSide side,
                                Hazard& hazard, Counters& counts) noexcept {
    PendingLine& pending = *view.pending;
    Progress progress = Progress::done;
    // More than any queue holds: who goes on for longer is fed by a peer that has no end.
    std::uint32_t patience = 4 * max_queue_entries;
    const auto waiting_after = [&](std::uint32_t head) {
        if (side == run_owner) return believe_head(head) ? pending_shown - head : 0U;
        return pending.tail.load(std::memory_order_seq_cst) - head;
    };
    // The peer's block is only touched under a hazard with its state checked: it may be gone.
    const auto mine_to_touch = [&] { return side == run_owner || executor.sender_same(); };
    for (;;) {
        {
            const HazardScope scope{hazard, asymmetric, names_none};
            if (side == run_peer && !executor.sender_ready()) return Progress::no_peer;
            const auto take = [&] {
                std::uint32_t free = run_free;
                return pending.lock.compare_exchange_strong(free, side, std::memory_order_seq_cst);
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
                const std::uint32_t next = pending.head.load(std::memory_order_acquire);
                if (deferred_local.front().position == next && next != pending_shown) {
                    progress = run_local(deferred_local.front());
                    if (progress != Progress::done) break;
                    deferred_local.front().window_done();
                    deferred_local.pop_front();
                    counts.add(Count::pending_run);
                    pending.head.store(next + 1, std::memory_order_release);
                    continue;
                }
            }
            HazardScope scope{hazard, asymmetric, names_none};  // the executor names them
            if (side == run_peer && !executor.sender_ready()) {
                progress = Progress::failed;
                break;
            }
            const std::uint32_t head = pending.head.load(std::memory_order_acquire);
            const std::uint32_t waiting = waiting_after(head);
            if (waiting == 0 || waiting - 1 > view.send_mask) {
                progress = Progress::done;
                break;
            }
            base::heard_from_peers();
            progress = executor.run_pending(*view.pending_entry(head));
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
            pending.head.store(head + 1, std::memory_order_release);
            if (side == run_peer && waiting == 1 && executor.sender_drains()) {
                full_fence();
                executor.ring_sender_async();
            }
        }
        const HazardScope scope{hazard, asymmetric, names_none};
        if (!mine_to_touch()) return progress;
        base::telling_peers();
        pending.lock.store(run_free, std::memory_order_seq_cst);
        full_fence();
        // After the lock: who is woken for it must not find it taken, and sleep again.
        if (side == run_peer && progress == Progress::owners) executor.ring_sender(true);
        const std::uint32_t waiting = waiting_after(pending.head.load(std::memory_order_relaxed));
        if (waiting == 0 || waiting - 1 > view.send_mask || !executor.could_go_on(progress)) {
            return progress;
        }
    }
}

void QueuePair::run_own_pending() noexcept {
    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
    if (!own.connected()) {
        if (stall != Progress::no_peer) {
            stall = Progress::no_peer;
            stalled_since = base::Clock::now();
        }
        return;
    }
    Progress progress = run_pending(own, as_posted, run_owner, block.hazard->send, counters);
    if (progress == Progress::failed) {
        if (strict()) tell_failure(*this, own.failure(), own.reason());
        begin_send_error(own.failure());
        return;
    }
    const std::uint32_t waiting = pending_count();
    if (executable_count() == 0) {
        execute_at_once(link == nullptr && waiting == 0 && state == IBV_QPS_RTS);
        stall = Progress::done;
        return;
    }
    // One more than the ring holds is possible: the peer has completed an entry, we have polled
    // that and posted again, and only then does the peer move the head on.
    if (waiting - 1 > send_mask + 1) {
        corrupt.store(true, std::memory_order_relaxed);
        return;
    }
    if (progress == Progress::no_peer) tell_of_way(false);
    const std::uint32_t head = pending_tail - waiting;
    if (progress == Progress::not_due) {
        stall = Progress::done;
        return;
    }
    // Both sides look when something is due, so they meet often, and one of them does it. Who holds
    // it for long may be stopped: then it is as if it were not there.
    bool brief = false;
    if (progress == Progress::held) {
        const auto now = base::Clock::now();
        if (held_head != head || held_since == base::Clock::time_point{}) {
            held_head = head;
            held_since = now;
        }
        brief = now - held_since < 1ms;
        if (brief && stall != Progress::done && stalled_head == head) return;
        progress = Progress::no_peer;
    } else {
        held_since = {};
    }
    if (link != nullptr && progress != Progress::done && !brief) link->stalled(head);
    if (progress != Progress::done && (stall != progress || stalled_head != head)) {
        if (progress == Progress::no_receive) counters.add(Count::receiver_not_ready);
        stall = progress;
        stalled_head = head;
        stalled_since = base::Clock::now();
        alarm_set = false;
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
    if (!theirs.connected() || theirs.abandoned()) return;
    if (link != nullptr && !peer_is_due()) return;
    const Progress progress =
        run_pending(theirs, peer_view, run_peer, block.hazard->run, run_counters);
    static_cast<void>(progress);
    if (link != nullptr) static_cast<void>(peer_is_due());
}

bool QueuePair::take_landed() noexcept {
    if (!run_lock.try_lock()) return false;
    const auto landed = [&] {
        return theirs.connected() && !theirs.abandoned() &&
               peer_view.pending->step.load(std::memory_order_acquire) == step_landed;
    };
    if (landed()) {
        theirs.set_hurry(true);
        static_cast<void>(
            run_pending(theirs, peer_view, run_peer, block.hazard->run, run_counters));
        theirs.set_hurry(false);
    }
    const bool done = !landed();
    static_cast<void>(run_lock.unlock());  // who came meanwhile is too late: it goes to ERROR
    return done;
}

bool QueuePair::peer_is_due() noexcept {
    const std::uint32_t head = peer_view.pending->head.load(std::memory_order_acquire);
    const std::uint32_t tail = peer_view.pending->tail.load(std::memory_order_acquire);
    std::int64_t due = link_never;
    if (head != tail) due = peer_view.pending_due(head);
    link->peer_due.store(due, std::memory_order_relaxed);
    return due != link_never && due <= link_now();
}

void QueuePair::check_timers() noexcept {
    if (stall == Progress::done || (state != IBV_QPS_RTS && state != IBV_QPS_SQD)) return;
    std::chrono::nanoseconds limit{};
    ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
    if (stall == Progress::no_receive) {
        if (attributes.rnr_retry == 7) return;
        const std::uint32_t code =
            peer_view.control->min_rnr_timer.load(std::memory_order_relaxed) & 31;
        limit = attributes.rnr_retry * rnr_time(code);
        status = IBV_WC_RNR_RETRY_EXC_ERR;
    } else {
        if (attributes.timeout == 0) return;
        limit = (attributes.retry_cnt + 1) *
                std::chrono::nanoseconds{std::int64_t{4096} << (attributes.timeout & 31)};
    }
    const auto elapsed = base::Clock::now() - stalled_since;
    if (elapsed < limit) {
        auto* channel = static_cast<CompletionQueue*>(send_cq)->soft_channel;
        if (channel == nullptr) return;
        const std::uint32_t alarms = channel->alarms.load(std::memory_order_relaxed);
        if (alarm_set && alarm == alarms) return;
        alarm_set = true;
        alarm = alarms;
        channel->wake_in(limit - elapsed);
        return;
    }
    // The peer may be running it at this moment: then it is not too late yet.
    std::uint32_t free = run_free;
    if (!block.pending->lock.compare_exchange_strong(free, run_owner, std::memory_order_seq_cst)) {
        return;
    }
    const bool waits = pending_tail - block.pending->head.load(std::memory_order_acquire) != 0;
    if (waits) {
        if (strict()) {
            Reason reason{ReasonKind::no_receive};
            if (status != IBV_WC_RNR_RETRY_EXC_ERR) {
                reason = own.way();
                if (reason.kind == ReasonKind::none) reason.kind = ReasonKind::no_answer;
            }
            tell_failure(*this, status, reason);
        }
        begin_error(status, IBV_WC_WR_FLUSH_ERR, std::nullopt);
    }
    block.pending->lock.store(run_free, std::memory_order_seq_cst);
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
    hear_wishes(false);
    if (link != nullptr) look_for_peer_pending();  // on a shaped link it comes when it is due
    if (pool != nullptr) [[unlikely]]
        look_after_pool();
    if (!send_lock.try_lock()) return;
    const bool look_for_peer = serve();
    send_lock.unlock();
    if (!look_for_peer) return;
    // It was not there when we went to RTR. Rare: look again every now and then.
    bool run_again = false;
    {
        const std::unique_lock process{owner->process->queue_pairs_mutex(), std::try_to_lock};
        if (!process) return;
        const std::lock_guard send_guard{send_lock};
        const ErrandPause run_pause{run_lock, run_again};
        const auto now = base::Clock::now();
        if (peer == nullptr && now >= next_connect && state >= IBV_QPS_RTR &&
            state <= IBV_QPS_SQD) {
            next_connect = now + 1ms;
            connect();
            if (mode_refused) begin_error(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, std::nullopt);
            run_again = peer != nullptr;
        }
    }
    if (!run_again) return;
    heavy_fence();  // as modify_qp does: the peer's requests may wait for nothing but this
    run_peer_pending();
}

void QueuePair::catch_up() noexcept {
    if (on_link == nullptr) return;
    look_for_peer_pending();
    const std::lock_guard guard{send_lock};
    static_cast<void>(serve());
}

void QueuePair::look_after() noexcept {
    hear_wishes(true);
    if (pool != nullptr) pool->check_limit();
    const bool fault = block.fault->receive.load(std::memory_order_acquire) != 0;
    // The lock is its poster's: others take it only if there is a reason.
    if (!fault && !draining && (peer == nullptr || peer->alive())) return;
    const std::lock_guard guard{send_lock};
    static_cast<void>(serve());
}

void QueuePair::grant_wishes(bool process_held) noexcept {
    const std::uint32_t wishes = block.fault->wishes.exchange(0, std::memory_order_acquire);
    if ((wishes & wish_established) != 0 && !established_told.exchange(true)) {
        raise_async_event(*this, IBV_EVENT_COMM_EST);
    }
    if ((wishes & wish_copies) == 0) return;
    std::unique_lock process{owner->process->queue_pairs_mutex(), std::defer_lock};
    if (!process_held && !process.try_lock()) {
        block.fault->wishes.fetch_or(wish_copies, std::memory_order_relaxed);  // next time
        return;
    }
    if (datagram != nullptr) {
        Node& node = owner->process->node();
        datagram->senders().for_each_wish([&](std::uint32_t number) {
            try {
                auto sender = node.peer(number);
                if (sender == nullptr || sender->is_self()) return;
                owner->process->copies().serve_sender(*this, std::move(sender));
            } catch (const std::exception& error) {
                base::log(base::LogLevel::warn, "soft", "cannot serve copies to node {}: {}",
                          number, error.what());
            }
        });
        return;
    }
    if (peer != nullptr && !peer->is_self()) owner->process->copies().serve(*this, true);
}

void QueuePair::tell_faults(ibv_wc_status send, ibv_wc_status receive) const noexcept {
    const FaultLine& fault = *block.fault;
    if (fault.send.load(std::memory_order_relaxed) != 0) {
        tell_failure(*this, send,
                     Reason::of(fault.send_reason.load(std::memory_order_relaxed),
                                fault.send_amount.load(std::memory_order_relaxed)));
    }
    if (fault.receive.load(std::memory_order_relaxed) != 0) tell_refusal(*this, receive);
}

void QueuePair::finish_draining() noexcept {
    if (!draining || executable_count() != 0 || !executors_out(seen_hazards)) return;
    if (link != nullptr && !link->released_all_before(pending_shown)) return;
    if (flights != nullptr && !flights->released_all()) return;
    draining = false;
    if (drained_event) raise_async_event(*this, IBV_EVENT_SQ_DRAINED);
}

bool QueuePair::serve() noexcept {
    deaths_served.store(owner->process->deaths(), std::memory_order_relaxed);
    if (flights != nullptr) flights->move(link_now());
    if (erring) {
        settle();
    } else if ((!settled || send_only) && state != IBV_QPS_RESET) {
        const std::uint32_t receive_fault = block.fault->receive.load(std::memory_order_acquire);
        const std::uint32_t send_fault = block.fault->send.load(std::memory_order_acquire);
        if (corrupt.load(std::memory_order_relaxed)) {
            begin_error(IBV_WC_FATAL_ERR, IBV_WC_FATAL_ERR, IBV_EVENT_QP_FATAL);
        } else if (given_up.exchange(false, std::memory_order_relaxed)) {
            begin_error(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
        } else if ((receive_fault | send_fault) != 0) {
            const auto status = [](std::uint32_t fault) {
                // 1 would be "success", and nothing is a fault that succeeded.
                return fault < 2 || fault - 1 > IBV_WC_GENERAL_ERR
                           ? IBV_WC_WR_FLUSH_ERR
                           : static_cast<ibv_wc_status>(fault - 1);
            };
            std::optional<ibv_event_type> event;
            if (receive_fault != 0) {
                const ibv_wc_status found = status(receive_fault);
                event = found == IBV_WC_WR_FLUSH_ERR || found == IBV_WC_LOC_ACCESS_ERR
                            ? IBV_EVENT_QP_ACCESS_ERR
                            : IBV_EVENT_QP_REQ_ERR;
            }
            if (strict() && !settled) tell_faults(status(send_fault), status(receive_fault));
            if (receive_fault == 0) {
                begin_send_error(status(send_fault));
            } else {
                begin_error(status(send_fault), status(receive_fault), event);
            }
        } else if (reliable() && peer != nullptr && !peer->alive() && own.receiver_stands()) {
            // It died as it stood. A peer that destroyed its queue pair before it ended is no
            // death: as on a wire, nobody is told, and only what is sent to it fails in time.
            begin_error(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
        } else {
            if ((state == IBV_QPS_RTS || state == IBV_QPS_SQD) && executable_count() != 0 &&
                (link == nullptr || link->waits_for(link_now()))) {
                run_own_pending();
                check_timers();
            }
            if (link != nullptr && (state == IBV_QPS_RTS || state == IBV_QPS_SQD) &&
                link->next_due.load(std::memory_order_relaxed) != link_never) {
                link->release(link_now());
                link->expect();
            }
            if (draining) finish_draining();
            return peer == nullptr && state >= IBV_QPS_RTR && datagram == nullptr;
        }
    }
    return false;
}

// --- creation and end
// -----------------------------------------------------------------------------

ibv_qp* make_queue_pair(ibv_pd* pd, ibv_qp_init_attr* attributes) noexcept {
    const auto refuse = [](int error) -> ibv_qp* {
        errno = error;
        return nullptr;
    };
    const ibv_qp_cap& cap = attributes->cap;
    if (!usable(pd) || attributes->send_cq == nullptr || attributes->recv_cq == nullptr)
        return refuse(EINVAL);
    if (attributes->send_cq->context != pd->context ||
        attributes->recv_cq->context != pd->context) {
        return refuse(EINVAL);  // objects of two contexts have nothing to do with each other
    }
    const bool datagram = attributes->qp_type == IBV_QPT_UD;
    const bool supported =
        attributes->qp_type == IBV_QPT_RC || attributes->qp_type == IBV_QPT_UC || datagram;
    auto* const srq = static_cast<SharedReceiveQueue*>(attributes->srq);
    if (!supported || (srq != nullptr && attributes->qp_type == IBV_QPT_UC)) {
        return refuse(EOPNOTSUPP);
    }
    if (srq != nullptr && !opened_together(srq->context, pd->context)) return refuse(EINVAL);
    if (cap.max_send_wr > max_queue_entries || cap.max_recv_wr > max_queue_entries ||
        cap.max_send_sge > max_sges || cap.max_recv_sge > max_sges ||
        cap.max_inline_data > max_inline_bytes) {
        return refuse(EINVAL);
    }
    Context* const owner = context_of(pd->context);
    Geometry geometry;
    const std::uint32_t send_slots = ring_size(cap.max_send_wr);
    geometry.send_entries = send_slots;
    if (owner->link != nullptr) {
        // Slots may come back before their requests have left the pending ring.
        const bool strict = owner->link->mode.kind == ModeKind::strict && !datagram;
        const std::uint32_t times = strict ? 2 : attributes->qp_type == IBV_QPT_RC ? 1 : 4;
        geometry.send_entries = std::min(times * send_slots, max_queue_entries);
    }
    geometry.receive_entries = ring_size(cap.max_recv_wr);
    geometry.send_sges = cap.max_send_sge == 0 ? 1 : cap.max_send_sge;
    geometry.receive_sges = cap.max_recv_sge == 0 ? 1 : cap.max_recv_sge;
    geometry.inline_bytes = cap.max_inline_data;
    geometry.stamped = static_cast<CompletionQueue*>(attributes->send_cq)->stamps ||
                       static_cast<CompletionQueue*>(attributes->recv_cq)->stamps;
    if (datagram || srq != nullptr) {
        // The receives lie in the pool, and a datagram's completion as well.
        geometry.receive_entries = datagram ? 1 : srq->pool->entries();
        geometry.receive_sges = 1;
    }
    std::optional<Block> memory;
    std::unique_ptr<QueuePair> qp;
    try {
        qp = std::make_unique<QueuePair>();
        // Not touched before they are used: they may be large.
        qp->sent = std::make_unique_for_overwrite<SentSlot[]>(geometry.send_entries);
        qp->own_pending = std::make_unique_for_overwrite<std::byte[]>(geometry.send_entries *
                                                                      geometry.pending_stride());
        if (datagram && srq == nullptr) {
            qp->own_pool =
                ReceivePool::make(owner->process->node(), cap.max_recv_wr, cap.max_recv_sge);
            if (qp->own_pool == nullptr) return nullptr;  // errno says why
            qp->pool = qp->own_pool.get();
        } else if (srq != nullptr) {
            qp->pool = srq->pool.get();
        } else {
            qp->receive_ids =
                std::make_unique_for_overwrite<std::uint64_t[]>(geometry.receive_entries);
            qp->own_receives = std::make_unique_for_overwrite<std::byte[]>(
                geometry.receive_entries * geometry.receive_stride());
        }
        memory = owner->process->node().allocate_block(geometry.block_size() +
                                                       (datagram ? SenderTable::size : 0));
        if (!memory) {
            if (qp->own_pool != nullptr) qp->own_pool->give_back();
            return nullptr;  // errno says why
        }
        qp->context = pd->context;
        qp->qp_context = attributes->qp_context;
        qp->pd = pd;
        qp->send_cq = attributes->send_cq;
        qp->recv_cq = attributes->recv_cq;
        qp->srq = attributes->srq;
        qp->handle = memory->index;
        qp->qp_num = make_qpn(owner->process->node().number(), memory->index);
        qp->state = IBV_QPS_RESET;
        qp->qp_type = attributes->qp_type;
        qp->opcodes = allowed_opcodes(*qp);
        qp->events_completed = 0;
        qp->owner = owner;
        qp->memory = *memory;
        qp->geometry = geometry;
        qp->block = BlockView{memory->memory, geometry};
        qp->as_posted = qp->block;
        qp->as_posted.receive_queue = qp->own_receives.get();
        qp->as_posted.pending_ring = qp->own_pending.get();
        qp->always = attributes->sq_sig_all != 0 ? unsigned{IBV_SEND_SIGNALED} : 0U;
        qp->send_mask = geometry.send_entries - 1;
        qp->send_capacity = cap.max_send_wr == 0 ? 0 : send_slots;
        qp->send_sges = geometry.send_sges;
        qp->inline_bytes = geometry.inline_bytes;
        qp->receive_mask = geometry.receive_entries - 1;
        qp->receive_capacity = cap.max_recv_wr == 0 ? 0 : geometry.receive_entries;
        qp->receive_sges = geometry.receive_sges;
        qp->send_source.ring = qp->block.send_ring;
        qp->send_source.mask = qp->send_mask;
        qp->send_source.send = true;
        qp->send_source.qp = qp.get();
        if (owner->link != nullptr && !datagram) {
            qp->link = std::make_unique<LinkQueue>(*qp, owner->link, geometry.send_entries,
                                                   send_slots, qp->reliable());
            qp->on_link = qp->link.get();
        }
        qp->receive_source.ring = qp->block.receive_ring;
        qp->receive_source.mask = qp->receive_mask;
        qp->receive_source.qp = qp.get();
        if (srq != nullptr) {
            qp->receive_capacity = 0;
            qp->receive_sges = 0;
        }
        if (datagram) {
            qp->asymmetric = owner->process->node().membarrier();
            qp->datagram = std::make_unique<Datagram>(
                owner->process->node(), memory->memory + geometry.block_size(), *qp->pool);
            qp->datagram_sender = std::make_unique<DatagramSender>(*qp);
            if (owner->link != nullptr) {
                qp->flights = std::make_unique<DatagramFlights>(
                    *qp, *qp->datagram_sender, owner->link, geometry.send_entries, send_slots);
                qp->on_link = qp->flights.get();
            }
            qp->receive_source.ring = qp->datagram->ring();
            qp->receive_source.mask = qp->datagram->mask();
            qp->receive_source.collects_from = qp->pool;
            if (srq == nullptr) {
                qp->receive_capacity = qp->pool->entries();
                qp->receive_sges = qp->pool->sges();
            }
        }
        ReceiveLine& receive = *qp->block.receive;
        receive.type = static_cast<std::uint32_t>(attributes->qp_type);
        receive.stamped = geometry.stamped ? 1 : 0;
        receive.pd = qp->receive_domain();
        receive.pool_index = qp->pool != nullptr ? qp->pool->block().index : 0;
        receive.pool_generation = qp->pool != nullptr ? qp->pool->block().generation : 0;

        ControlLine& control = *qp->block.control;
        control.send_entries = geometry.send_entries;
        control.receive_entries = geometry.receive_entries;
        control.send_sges = static_cast<std::uint8_t>(geometry.send_sges);
        control.receive_sges = static_cast<std::uint8_t>(geometry.receive_sges);
        control.inline_bytes = geometry.inline_bytes;
        control.type = static_cast<std::uint16_t>(attributes->qp_type);
        control.pd.store(static_cast<ProtectionDomain*>(pd)->number, std::memory_order_relaxed);
        const auto bell_of = [](ibv_cq* cq) {
            const auto* channel = static_cast<CompletionQueue*>(cq)->soft_channel;
            return channel == nullptr ? -1 : channel->bell;
        };
        control.bell_send.store(bell_of(qp->send_cq), std::memory_order_relaxed);
        control.bell_receive.store(bell_of(qp->recv_cq), std::memory_order_relaxed);
        control.bell_async.store(owner->events->bell(), std::memory_order_relaxed);
        publish_mode(*qp->block.mode, owner->mode);
        qp->block.send->completions.store(first_position, std::memory_order_relaxed);
        qp->block.pending->head.store(first_position, std::memory_order_relaxed);
        qp->block.pending->tail.store(first_position, std::memory_order_relaxed);
        qp->block.consumed->position.store(first_position, std::memory_order_relaxed);
        qp->block.receive->tail.store(qp->first_receive_tail(), std::memory_order_relaxed);
        qp->set_state(IBV_QPS_RESET);

        if (qp->pool != nullptr) qp->pool->attach(*qp);
        static_cast<CompletionQueue*>(qp->send_cq)->attach(qp->send_source);
        static_cast<CompletionQueue*>(qp->recv_cq)->attach(qp->receive_source);
        if (qp->on_link != nullptr) qp->on_link->enlist();
        owner->process->add(*qp);
    } catch (const std::exception&) {
        if (qp != nullptr && memory) {
            if (qp->on_link != nullptr) qp->on_link->withdraw();
            static_cast<CompletionQueue*>(attributes->send_cq)->detach(qp->send_source);
            static_cast<CompletionQueue*>(attributes->recv_cq)->detach(qp->receive_source);
            if (qp->pool != nullptr) qp->pool->detach(*qp);
            owner->process->node().free_block(*memory, false);
        }
        if (qp != nullptr && qp->own_pool != nullptr) qp->own_pool->give_back();
        return refuse(ENOMEM);
    }
    attributes->cap.max_send_wr = qp->send_capacity;
    attributes->cap.max_recv_wr = qp->receive_capacity;
    attributes->cap.max_send_sge = qp->send_sges;
    attributes->cap.max_recv_sge = qp->receive_sges;
    attributes->cap.max_inline_data = qp->inline_bytes;
    qp->created = *attributes;
    qp->attributes.cap = attributes->cap;
    pthread_mutex_init(&qp->mutex, nullptr);
    pthread_cond_init(&qp->cond, nullptr);
    enter(pd);
    owner->users.fetch_add(1);
    return qp.release();
}

int end_queue_pair(ibv_qp* public_qp) noexcept {
    if (const auto& bound = *static_cast<QueuePair*>(public_qp);
        bound.datagram != nullptr &&
        in_any_group(bound.owner->process->node(), bound.memory.index)) {
        return EBUSY;
    }
    std::unique_ptr<QueuePair> qp{static_cast<QueuePair*>(public_qp)};
    Context* const owner = qp->owner;
    if (qp->on_link != nullptr) {
        qp->await_landing();
        qp->on_link->withdraw();
    }
    {
        const std::lock_guard guard{qp->send_lock};
        qp->execute_at_once(false);
        ++qp->connection;  // what peers know of it is no longer true
        qp->set_state(IBV_QPS_RESET);
    }
    heavy_fence();
    const bool out = qp->wait_for_executors();
    qp->forget_local();
    owner->process->windows().leave(*qp);
    static_cast<CompletionQueue*>(qp->send_cq)->detach(qp->send_source);
    static_cast<CompletionQueue*>(qp->recv_cq)->detach(qp->receive_source);
    leave(qp->pd);
    const auto process = owner->process;
    if (!out) {
        // A stopped executor never let go: its connection, block and number are never used again.
        // It goes on using its context.
        if (qp->pool != nullptr) {
            qp->pool->quarantine();
            qp->pool->detach(*qp);
        }
        qp->broken_at = process->registrations();
        qp->broken.store(true, std::memory_order_release);
        process->keep(std::move(qp));
        end_async_events(*public_qp);
        pthread_cond_destroy(&public_qp->cond);
        pthread_mutex_destroy(&public_qp->mutex);
        return 0;
    }
    process->remove(*qp);
    if (qp->pool != nullptr) {
        qp->pool->detach(*qp);
        if (qp->own_pool != nullptr) {
            qp->own_pool->give_back();
        } else {
            qp->pool->offer_again(qp->memory.index, true, qp->datagram.get());
        }
    }
    end_async_events(*public_qp);
    pthread_cond_destroy(&qp->cond);
    pthread_mutex_destroy(&qp->mutex);
    qp->disconnect();
    process->node().free_block(qp->memory, false);
    qp.reset();
    release(owner);
    return 0;
}

int query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode, std::uint32_t flags) noexcept {
    const auto& link = static_cast<QueuePair*>(qp)->link;
    const StrictSettings* const strict = link == nullptr ? nullptr : link->strict();
    if (flags != 0 || (strict != nullptr && !strict->in_order)) return 0;
#if defined(__x86_64__)
    return 1;
#else
    return 0;
#endif
}

}  // namespace millrace::soft
