#include "objects/polling.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <vector>

#include "completion/completion_channel.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {
namespace {

void fill_receive(ibv_wc& wc, const CompletionEntry& entry, const QueuePair& qp,
                  std::uint64_t wr_id) noexcept {
    const std::uint32_t flags = entry.slot_and_flags;
    wc.wr_id = wr_id;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = (flags & completion_write) != 0 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.vendor_err = 0;
    wc.byte_len = entry.byte_len;
    wc.imm_data = entry.immediate;
    wc.qp_num = qp.qp_num;
    wc.src_qp = qp.destination.load(std::memory_order_relaxed);
    wc.wc_flags = (flags & completion_immediate) != 0 ? unsigned{IBV_WC_WITH_IMM} : 0U;
    if ((flags & completion_invalidated) != 0) [[unlikely]]
        wc.wc_flags = IBV_WC_WITH_INV;
    wc.pkey_index = 0;
    wc.slid = 1;
    wc.sl = 0;
    wc.dlid_path_bits = 0;
}

/// What only datagrams have.
void add_arrival(ibv_wc& wc, const ArrivalFacts& facts) noexcept {
    wc.src_qp = facts.source;
    wc.sl = static_cast<std::uint8_t>(facts.flags >> completion_service_level_shift & 0xf);
    if ((facts.flags & completion_grh) != 0) wc.wc_flags |= unsigned{IBV_WC_GRH};
    if ((facts.flags & completion_protection) != 0) wc.status = IBV_WC_LOC_PROT_ERR;
}

/// Has the ring at `at` been written since it was free? Also when it has been lapped.
[[nodiscard]] bool written(const CompletionSource& source, std::uint32_t at) noexcept {
    const std::uint32_t difference =
        source.entry(at).sequence.load(std::memory_order_acquire) - sequence_of(at);
    return difference == 0 || ((difference & source.mask) == 0 && difference < 0x80000000U);
}

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
        posted = qp.slots.tail() - qp.send_head.load(std::memory_order_relaxed);
        written = qp.block.send->completions.load(std::memory_order_relaxed) - at;
    } else {
        posted = qp.receives.tail().load(std::memory_order_relaxed) - at;
        written = qp.block.consumed->position.load(std::memory_order_relaxed) - at;
    }
    return std::min({posted, written, source.mask + 1});
}

}  // namespace

bool PolledQueue::take_one(PollHeld held, CompletionSource& source, ibv_wc& wc) noexcept {
    QueuePair& qp = *source.qp;
    const std::uint32_t position = source.position.load(std::memory_order_relaxed);
    if (source.flushing.load(std::memory_order_acquire)) [[unlikely]] {
        if (position == source.limit.load(std::memory_order_relaxed))
            return qp.flush(held, source, wc);
    }
    if (!source.holds(position)) return false;
    base::heard_from_peers();
    const CompletionEntry& entry = source.entry(position);
    if (source.send) {
        const std::uint32_t head = qp.send_head.load(std::memory_order_relaxed);
        const std::uint32_t ahead = (load_once(entry.slot_and_flags) - head) & qp.slots.mask();
        if (ahead >= qp.slots.tail() - head) [[unlikely]] {
            qp.corrupt.store(true, std::memory_order_relaxed);  // nothing was posted there
            return false;
        }
        const SentSlot& slot = qp.slots.at(head + ahead);
        wc.wr_id = slot.wr_id;
        wc.status = IBV_WC_SUCCESS;
        wc.opcode = slot.opcode;
        wc.vendor_err = 0;
        wc.byte_len = entry.byte_len;
        wc.imm_data = 0;
        wc.qp_num = qp.qp_num;
        wc.src_qp = qp.destination.load(std::memory_order_relaxed);
        wc.wc_flags = 0;
        wc.pkey_index = 0;
        wc.slid = 0;
        wc.sl = 0;
        wc.dlid_path_bits = 0;
        qp.send_head.store(head + ahead + 1, std::memory_order_release);
    } else if (qp.pool != nullptr) [[unlikely]] {
        std::uint64_t wr_id = 0;
        if (!qp.pool->take_back(load_once(entry.slot_and_flags) & completion_slot_mask, wr_id))
            [[unlikely]] {
            qp.corrupt.store(true, std::memory_order_relaxed);  // nothing was posted there
            return false;
        }
        fill_receive(wc, entry, qp, wr_id);
        if (qp.datagram != nullptr) {
            const ArrivalFacts& facts = qp.datagram->facts(position);
            add_arrival(wc, facts);
            source.polled_by(held).arrival_stamp = facts.stamp;
            if (wc.status != IBV_WC_SUCCESS) {
                const auto sends = qp.sends.hold();
                qp.begin_error(sends, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, std::nullopt);
            }
        }
    } else {
        if (position == qp.receives.tail().load(std::memory_order_relaxed)) [[unlikely]] {
            qp.corrupt.store(true, std::memory_order_relaxed);  // nothing was posted there
            return false;
        }
        fill_receive(wc, entry, qp, qp.receives.id(position));
    }
    source.position.store(position + 1, std::memory_order_release);
    if (!source.send && qp.srq != nullptr && qp.datagram == nullptr) [[unlikely]]
        qp.free_completion_before(position + 1);
    moved(held, source);
    source.polled.store(source.polled.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
    return true;
}

int PolledQueue::take(PollHeld held, int count, ibv_wc* wc) noexcept {
    CompletionTurn& my = turn(held);
    my.turns.take_news();
    if (attention.load(std::memory_order_relaxed)) [[unlikely]]
        my.turns.take_flushing();
    int taken = 0;
    const std::vector<CompletionSource*>& sources = my.turns.current();
    const std::size_t total = sources.size();
    std::size_t index = my.next_source < total ? my.next_source : 0;
    for (std::size_t seen = 0; seen < total; ++seen) {
        CompletionSource& source = *sources[index];
        if (++index == total) index = 0;
        if (source.collects_from != nullptr) [[unlikely]] {
            static_cast<void>(source.collects_from->collect(false));
            moved(held, source);
        }
        const std::uint32_t position = source.position.load(std::memory_order_relaxed);
        if (!source.holds(position) && !source.flushing.load(std::memory_order_relaxed)) continue;
        while (taken < count && take_one(held, source, wc[taken])) ++taken;
        if (taken == count) break;
    }
    if (taken > 0) my.next_source = index;
    return taken;
}

int PolledQueue::take_limited(PollHeld held, int count, ibv_wc* wc) noexcept {
    const CompletionTurn& my = turn(held);
    // On a shaped link completions are written when somebody looks: all that are due have waited.
    if (my.shaped && !my.overrun) {
        for (const CompletionSource* source : my.turns.all()) source->qp->catch_up();
    }
    int& remaining = poller_.remaining;
    if (my.overrun) {
        // What had found room is still there; the rest is lost.
        if (remaining == 0) return -1;
        const int taken = take(held, std::min(count, remaining), wc);
        remaining = taken == 0 ? 0 : remaining - taken;
        return taken == 0 ? -1 : taken;
    }
    const int taken = take(held, count, wc);
    std::uint64_t waiting = static_cast<std::uint64_t>(taken);
    // Who got less than asked for has got everything.
    if (taken == count) {
        for (const CompletionSource* source : my.turns.current()) waiting += waiting_in(*source);
    }
    if (waiting <= static_cast<std::uint64_t>(cqe)) [[likely]]
        return taken;
    fail_by_overrun(held, waiting);
    remaining = std::max(0, cqe - taken);
    return taken;
}

void PolledQueue::fail_by_overrun(PollHeld held, std::uint64_t waiting) noexcept {
    CompletionTurn& my = turn(held);
    my.overrun = my.limited = true;
    attention.store(true, std::memory_order_relaxed);
    base::log(base::LogLevel::error, "soft",
              "completion queue overrun: {} completions waited in a queue for {}; it and its "
              "queue pairs are in error. Make it larger (ibv_create_cq), or poll it before "
              "more work is posted",
              waiting, cqe);
    raise_async_event(*this, IBV_EVENT_CQ_ERR);
    for (const CompletionSource* source : my.turns.all()) {
        QueuePair& qp = *source->qp;
        const auto sends = qp.sends.hold();
        qp.begin_error(sends, IBV_WC_GENERAL_ERR, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
    }
}

void PolledQueue::service(PollHeld held) noexcept {
    for (CompletionSource* source : turn(held).turns.all()) {
        if (source->send || source->qp->send_cq != this) source->qp->service();
    }
}

bool PolledQueue::look_around(PollHeld held, std::uint64_t now) noexcept {
    CompletionTurns& turns = turn(held).turns;
    poller_.last_service = now;
    owner->process->queue_pairs().tend(now);
    bool served = turns.by_bits();  // `refresh` may take something in
    if (WirePort* const wire = owner->process->wire(); turn(held).wired && wire != nullptr) {
        const base::Uncancelled uncancelled;
        static_cast<void>(wire->drain(cable_now()));  // or another thread is at it
        wire->flush();
        served = true;
    }
    const std::uint64_t deaths = owner->process->deaths();
    turns.some([&](CompletionSource& source) {
        QueuePair& qp = *source.qp;
        if (!(source.send || qp.send_cq != this) || qp.is_quiet(deaths)) return;
        const base::Uncancelled uncancelled;
        if (qp.on_cable != nullptr) qp.on_cable->note_poll(now);
        qp.service();
        served = true;
    });
    turns.refresh();
    return served;
}

bool PolledQueue::event_due(PollHeld held) const noexcept {
    if ((turn(held).armed & armed_mode_mask) == armed_not) return false;
    return event_forced.load(std::memory_order_acquire) || count_due(held, 1) != 0;
}

std::uint32_t PolledQueue::count_due(PollHeld held, std::uint32_t most) const noexcept {
    const std::uint32_t mode = turn(held).armed & armed_mode_mask;
    std::uint32_t count = 0;
    for (const CompletionSource* source : turn(held).turns.all()) {
        for (std::uint32_t at = source->polled_by(held).arm_position, end = at + source->mask + 1;
             at != end && written(*source, at); ++at) {
            if (mode == armed_any ||
                (load_once(source->entry(at).slot_and_flags) & completion_solicited) != 0 ||
                !source->holds(at)) {
                if (++count == most) return count;
            }
        }
    }
    return count;
}

bool PolledQueue::has_to_flush(PollHeld held) const noexcept {
    const std::vector<CompletionSource*>& sources = turn(held).turns.all();
    return std::any_of(sources.begin(), sources.end(), [](const CompletionSource* source) {
        return source->flushing.load(std::memory_order_acquire) &&
               source->qp->has_to_flush(*source);
    });
}

bool PolledQueue::due_soon(PollHeld held) const noexcept {
    constexpr std::int64_t soon = 50'000;  // about what giving the processor away may cost
    const std::int64_t now = cable_now();
    // What has been due for longer waits for something else.
    const auto near = [now](const std::atomic<std::int64_t>& due) {
        const std::int64_t at = due.load(std::memory_order_relaxed);
        return at > now - soon && at < now + soon;
    };
    for (const CompletionSource* source : turn(held).turns.all()) {
        const CableMember* const cable = source->cable;
        if (cable != nullptr && (near(cable->next_due) || near(cable->peer_due))) return true;
    }
    return false;
}

bool PolledQueue::put_off(PollHeld held) noexcept {
    Moderation& moderation = poller_.moderation;
    if (!moderation.on() || soft_channel == nullptr) return false;
    const auto enough = [&] {
        return event_forced.load(std::memory_order_acquire) ||
               count_due(held, moderation.count) >= moderation.count;
    };
    const std::int64_t now = cable_now();
    if (moderation.put_off_at == 0) moderation.put_off_at = now;
    const std::int64_t left = moderation.put_off_at + moderation.period - now;
    if (left <= 0 || enough()) return false;
    // Whoever completes rings once per epoch: a new one, and then another look, as when arming.
    arm(held, turn(held).armed & armed_mode_mask);
    if (enough()) return false;
    soft_channel->wake_in(std::chrono::nanoseconds{left});
    return true;
}

bool PolledQueue::take_event(PollHeld held) noexcept {
    if (!event_due(held) || put_off(held)) return false;
    poller_.moderation.put_off_at = 0;
    event_forced.store(false, std::memory_order_relaxed);
    turn(held).armed &= ~std::uint32_t{armed_mode_mask};
    publish_armed(held);
    return true;
}

namespace {

/// Not while the library waits by a policy of its own.
[[nodiscard, gnu::noinline]] bool may_yield() noexcept { return !base::WaitsByPolicy::here(); }

/// Without the lock; only what it learns is noted with it.
[[gnu::noinline]] void offer_processor(PolledQueue& cq) noexcept {
    const std::uint64_t before = base::ticks();
    sched_yield();
    base::count_system_call();
    const std::uint64_t now = base::ticks();
    cq.poller(cq.turn.hold()).yielding.note(now, now - before);
}

/// `after(held, count)`: told what was taken, while nobody else can take anything.
template <class After>
[[gnu::always_inline]] inline int poll(PolledQueue& cq, int count, ibv_wc* wc,
                                       After&& after) noexcept {
    if (count <= 0) return count == 0 ? 0 : -1;
    cq.turn.lock().lock_often();
    const PollHeld held = cq.turn.held_by_hand();
    CompletionTurn& turn = cq.turn(held);
    PollerState& poller = cq.poller(held);
    // The first of those that have something, by turns; the page of news counts as one.
    const std::vector<Watch>& watches = turn.turns.watches();
    const std::size_t total = watches.size();
    std::size_t first = turn.next_source < total ? turn.next_source : 0;
    std::size_t left = total;
    for (; left != 0; --left) {
        if (watches[first].sequence->load(std::memory_order_acquire) == watches[first].expected) {
            break;
        }
        if (++first == total) first = 0;
    }
    const bool attention = cq.attention.load(std::memory_order_relaxed);
    int taken = 0;
    if (left != 0 || attention) {
        const std::vector<CompletionSource*>& sources = turn.turns.current();
        if (count == 1 && !attention && !turn.limited && first < sources.size() &&
            sources[first]->collects_from == nullptr && cq.take_one(held, *sources[first], *wc))
            [[likely]] {
            turn.next_source = first + 1;
            taken = 1;
        } else {
            taken = turn.limited ? cq.take_limited(held, count, wc) : cq.take(held, count, wc);
        }
        if (taken != 0) [[likely]] {
            after(held, taken);
            poller.empty_before = false;
            // A poller that always finds something looks at the clock, too, if seldom.
            if (++poller.full_polls % 64 == 0) {
                cq.owner->process->queue_pairs().publish_by_clock(base::ticks());
                turn.turns.refresh();
                cq.look_whether_armed_seldom(held);
            }
            cq.turn.lock().unlock();
            return taken;
        }
    }
    const std::uint64_t now = base::ticks();
    if (!poller.empty_before) {
        poller.empty_before = true;
        poller.yielding.begin(now, cq.yield_after);
    }
    if (now - poller.last_service >= turn.service_interval && cq.look_around(held, now))
        [[unlikely]] {
        taken = turn.limited ? cq.take_limited(held, count, wc) : cq.take(held, count, wc);
        after(held, taken);
        if (taken != 0) poller.empty_before = false;
    }
    // On few cores the processor that we hold may be the one that our peer needs.
    const bool yields = poller.yielding.due(now) && taken == 0 &&
                        !(turn.shaped && cq.due_soon(held)) && may_yield();
    cq.turn.lock().unlock();
    if (yields) offer_processor(cq);
    return taken;
}

/// Of the completion that `source` has just given; 0: nobody has said.
[[nodiscard]] std::uint64_t stamp_of_last(PollHeld held, const CompletionSource& source) noexcept {
    if (source.collects_from != nullptr) return source.polled_by(held).arrival_stamp;
    const BlockView& block = *source.block;
    const CompletionStamp* const stamps = source.send ? block.send_stamps : block.receive_stamps;
    if (stamps == nullptr) return 0;
    const std::uint32_t position = source.position.load(std::memory_order_relaxed) - 1;
    return read_stamp(stamps[position & source.mask], position).value_or(0);
}

}  // namespace

int poll_cq(ibv_cq* queue, int count, ibv_wc* wc) noexcept {
    return poll(*static_cast<PolledQueue*>(queue), count, wc, [](PollHeld, int) {});
}

int poll_with_stamp(PolledQueue& cq, ibv_wc& wc, std::uint64_t& stamp) noexcept {
    stamp = 0;
    const int taken = poll(cq, 1, &wc, [&](PollHeld held, int count) {
        if (count != 1 || wc.status != IBV_WC_SUCCESS) return;
        const CompletionTurn& turn = cq.turn(held);
        const std::vector<CompletionSource*>& sources = turn.turns.current();
        const std::size_t last = turn.next_source == 0 ? sources.size() : turn.next_source;
        if (last - 1 < sources.size()) stamp = stamp_of_last(held, *sources[last - 1]);
    });
    // The clock is the peer's, or what the peer says it is.
    const auto now = static_cast<std::uint64_t>(cable_now());
    if (stamp == 0 || stamp > now) stamp = now;
    return taken;
}

int modify_cq(ibv_cq* public_queue, ibv_modify_cq_attr* attributes) noexcept {
    const base::Uncancelled held;
    if (attributes->attr_mask != IBV_CQ_ATTR_MODERATE) return EINVAL;
    constexpr std::int64_t microsecond = 1000;
    auto& cq = *static_cast<PolledQueue*>(public_queue);
    const auto turn = cq.turn.hold();
    Moderation& moderation = cq.poller(turn).moderation;
    // An event that is being put off comes as it was to come, or sooner.
    moderation.count = attributes->moderate.cq_count;
    moderation.period = attributes->moderate.cq_period * microsecond;
    if (!moderation.on() && moderation.put_off_at != 0) cq.soft_channel->ring();
    return 0;
}

}  // namespace millrace::soft
