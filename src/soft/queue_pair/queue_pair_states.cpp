// The queue pair's state machine: which transition needs and allows which attributes (InfiniBand
// specification, "QP State Transition Properties"), and what each of them does.
#include <cerrno>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "datagram/address_handle.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/soft/device.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/fences.hpp"
#include "transport/failure_lines.hpp"
#include "transport/path.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

struct Transition {
    ibv_qp_state from;
    ibv_qp_state to;
    int required;
    int optional;
};

constexpr Transition rc_transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_TIMEOUT |
         IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
};

constexpr Transition uc_transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS},
};

constexpr Transition ud_transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_QKEY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_QKEY},
};

/// Null: there is none.
[[nodiscard]] const Transition* transition(ibv_qp_type type, ibv_qp_state from,
                                           ibv_qp_state to) noexcept {
    static constexpr Transition anywhere{};  // to RESET and ERROR one comes with nothing
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return &anywhere;
    std::span<const Transition> all = rc_transitions;
    if (type == IBV_QPT_UC) all = uc_transitions;
    if (type == IBV_QPT_UD) all = ud_transitions;
    for (const Transition& one : all) {
        if (one.from == from && one.to == to) return &one;
    }
    return nullptr;
}

[[nodiscard]] bool legal(const Transition* step, int mask) noexcept {
    mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
    return step != nullptr && (mask & step->required) == step->required &&
           (mask & ~(step->required | step->optional)) == 0;
}

[[nodiscard]] bool values_make_sense(const ibv_qp_attr& attributes, int mask) noexcept {
    const auto is_in = [mask](int flag, std::uint32_t value, std::uint32_t least,
                              std::uint32_t most) {
        return (mask & flag) == 0 || (value >= least && value <= most);
    };
    return is_in(IBV_QP_PORT, attributes.port_num, 1, 1) &&
           is_in(IBV_QP_PKEY_INDEX, attributes.pkey_index, 0, 0) &&
           is_in(IBV_QP_PATH_MTU, attributes.path_mtu, IBV_MTU_256, IBV_MTU_4096) &&
           is_in(IBV_QP_RNR_RETRY, attributes.rnr_retry, 0, 7) &&
           is_in(IBV_QP_RETRY_CNT, attributes.retry_cnt, 0, 7) &&
           is_in(IBV_QP_TIMEOUT, attributes.timeout, 0, 31) &&
           is_in(IBV_QP_MIN_RNR_TIMER, attributes.min_rnr_timer, 0, 31) &&
           is_in(IBV_QP_MAX_QP_RD_ATOMIC, attributes.max_rd_atomic, 0, max_reads) &&
           is_in(IBV_QP_MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic, 0, max_reads) &&
           is_in(IBV_QP_DEST_QPN, attributes.dest_qp_num, 0, 0xffffff);
}

void remember(ibv_qp_attr& kept, const ibv_qp_attr& given, int mask) noexcept {
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0) kept.qp_access_flags = given.qp_access_flags;
    if ((mask & IBV_QP_PKEY_INDEX) != 0) kept.pkey_index = given.pkey_index;
    if ((mask & IBV_QP_QKEY) != 0) kept.qkey = given.qkey;
    if ((mask & IBV_QP_PORT) != 0) kept.port_num = given.port_num;
    if ((mask & IBV_QP_AV) != 0) kept.ah_attr = given.ah_attr;
    if ((mask & IBV_QP_PATH_MTU) != 0) kept.path_mtu = given.path_mtu;
    if ((mask & IBV_QP_TIMEOUT) != 0) kept.timeout = given.timeout;
    if ((mask & IBV_QP_RETRY_CNT) != 0) kept.retry_cnt = given.retry_cnt;
    if ((mask & IBV_QP_RNR_RETRY) != 0) kept.rnr_retry = given.rnr_retry;
    if ((mask & IBV_QP_RQ_PSN) != 0) kept.rq_psn = given.rq_psn & 0xffffff;
    if ((mask & IBV_QP_SQ_PSN) != 0) kept.sq_psn = given.sq_psn & 0xffffff;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) kept.max_rd_atomic = given.max_rd_atomic;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
        kept.max_dest_rd_atomic = given.max_dest_rd_atomic;
    }
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) kept.min_rnr_timer = given.min_rnr_timer;
    if ((mask & IBV_QP_DEST_QPN) != 0) kept.dest_qp_num = given.dest_qp_num;
    if ((mask & IBV_QP_ALT_PATH) != 0) {
        kept.alt_ah_attr = given.alt_ah_attr;
        kept.alt_pkey_index = given.alt_pkey_index;
        kept.alt_port_num = given.alt_port_num;
        kept.alt_timeout = given.alt_timeout;
    }
    if ((mask & IBV_QP_PATH_MIG_STATE) != 0) kept.path_mig_state = given.path_mig_state;
}

/// Publishes what the peer has to respect.
void publish(SendHeld held, QueuePair& qp) noexcept {
    const SendSide& sends = qp.sends(held);
    const ibv_qp_attr& attributes = sends.attributes;
    auto access = static_cast<std::uint32_t>(attributes.qp_access_flags);
    if (attributes.max_dest_rd_atomic == 0) {  // no resources to answer with
        access &= ~std::uint32_t{IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    }
    qp.sends(held).opcodes = allowed_opcodes(held, qp);
    qp.destination.store(attributes.dest_qp_num, std::memory_order_relaxed);
    for (auto* const word : {&qp.access, &qp.block.control->access}) {
        word->store(access, std::memory_order_relaxed);
    }
    qp.block.control->min_rnr_timer.store(attributes.min_rnr_timer, std::memory_order_relaxed);
    qp.block.receive->qkey.store(attributes.qkey, std::memory_order_relaxed);
    for (PathLine* const line : {&qp.path, qp.block.path}) {
        describe_path(*line, attributes, sends.leads_to_port);
    }
}

int to_error(QueuePair& qp) noexcept {
    // Who is busy with it lets go soon; who does not is dead or stopped.
    for (int tries = 0; qp.strict() && tries < 1000 && !qp.take_landed(); ++tries) base::pause();
    {
        const auto held = qp.sends.hold();
        qp.begin_error(held, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, std::nullopt);
    }
    base::NapParker parker;
    const auto settled = [&] { return qp.settle(qp.sends.hold()); };
    // `settle` itself gives up after a second.
    static_cast<void>(
        base::wait_until(settled, base::Deadline::after(2s), base::WaitPolicy{}, parker));
    return 0;
}

/// Of a source of `cq`.
void clear_source(PollHeld held, CompletionQueue& cq, CompletionSource& source) noexcept {
    QueuePair& qp = *source.qp;
    for (std::uint32_t i = 0; i <= source.mask; ++i) {
        // Looked at before: pages that were never used stay unused.
        std::atomic<std::uint32_t>& sequence = source.ring[i].sequence;
        if (sequence.load(std::memory_order_relaxed) != 0) {
            sequence.store(0, std::memory_order_relaxed);
        }
    }
    source.position.store(first_position, std::memory_order_relaxed);
    source.limit.store(first_position, std::memory_order_relaxed);
    source.flushing.store(false, std::memory_order_relaxed);
    source.polled_by(held).arm_position = first_position;
    if (!source.send && qp.own_pool != nullptr) {
        qp.own_pool->clear(*qp.datagram);
    } else if (!source.send && qp.pool != nullptr) {
        // What it has taken from a shared receive queue and nobody has polled is offered again.
        qp.fault_slot.store(0, std::memory_order_relaxed);
        qp.pool->offer_again(qp.memory.index, true, qp.datagram.get());
    }
    cq.moved(held, source);
    cq.look_for_flushing(held);
}

/// With all locks: nobody may see one half of it, or set something in between.
void clear(QueuePairsHeld listed, PollHeld polls, SendHeld held, TheirsHeld run,
           QueuePair& qp) noexcept {
    SendSide& sends = qp.sends(held);
    clear_source(polls, *static_cast<CompletionQueue*>(qp.send_cq), qp.send_source);
    clear_source(polls, *static_cast<CompletionQueue*>(qp.recv_cq), qp.receive_source);
    qp.slots.restart(held);
    qp.send_head.store(first_position, std::memory_order_relaxed);
    sends.pending.restart();
    qp.rewind_block();
    qp.block.pending->lock.store(run_free, std::memory_order_relaxed);
    qp.block.pending->step.store(0, std::memory_order_relaxed);
    qp.block.fault->receive.store(0, std::memory_order_relaxed);
    qp.block.fault->send.store(0, std::memory_order_relaxed);
    qp.block.fault->receive_slot.store(0, std::memory_order_relaxed);
    qp.block.fault->wishes.store(0, std::memory_order_relaxed);
    qp.established_told.store(false, std::memory_order_relaxed);
    qp.set_draining(held, false);
    qp.block.control->destination.store(0, std::memory_order_relaxed);
    qp.forget_local(held);
    sends.ending.phase = Ending::Phase::none;
    qp.corrupt.store(false, std::memory_order_relaxed);
    qp.given_up.store(false, std::memory_order_relaxed);
    sends.stall.end();
    sends.ending.first_unexecuted = first_position;
    if (qp.cable != nullptr) qp.cable->restart();
    qp.disconnect(listed, held, run);
}

int to_reset(QueuePair& qp) noexcept {
    if (qp.state_now() == IBV_QPS_RESET) return 0;
    {
        const auto held = qp.sends.hold();
        qp.execute_at_once(held, false);
        ++held->resets;  // what peers know of it is no longer true
        if (held->transport != nullptr) {
            held->transport->abort();
            held->transport->restart();
        }
        qp.set_state(held, IBV_QPS_ERR);
    }
    if (qp.datagram == nullptr) qp.leave_wire();
    heavy_fence();
    if (!qp.wait_for_executors()) return EBUSY;  // a stopped executor may still write here
    qp.owner->process->windows().leave(qp.block.windows);
    const auto listed = qp.owner->process->listed().hold();
    auto* first = static_cast<CompletionQueue*>(qp.send_cq);
    auto* second = static_cast<CompletionQueue*>(qp.recv_cq);
    if (std::less<>{}(second, first)) std::swap(first, second);
    const auto polls = first->turn.hold();
    std::unique_lock second_guard{second->turn.lock(), std::defer_lock};
    if (second != first) second_guard.lock();
    const auto held = qp.sends.hold();
    bool run_again = false;  // for nobody: it is connected no longer
    const ErrandPause run_pause{qp.theirs.lock(), run_again};
    ReceiveQueue::Pause receives{qp.receives};
    receives.clear();
    clear(listed, polls, held, qp.theirs.held_by_hand(), qp);
    qp.broken.store(0, std::memory_order_relaxed);
    qp.set_state(held, IBV_QPS_RESET);
    return 0;
}

/// SQE to RTS. EBUSY: sends that were flushed still have completions to be polled.
int leave_send_error(QueuePair& qp, const ibv_qp_attr& attributes, int mask) noexcept {
    auto* const cq = static_cast<CompletionQueue*>(qp.send_cq);
    const auto turn = cq->turn.hold();
    const auto held = qp.sends.hold();
    if (qp.state != IBV_QPS_SQE) return EINVAL;  // an error came in between
    if (!qp.end_send_error(turn, held)) return EBUSY;
    cq->look_for_flushing(turn);
    remember(held->attributes, attributes, mask);
    publish(held, qp);
    return 0;
}

}  // namespace

int modify_queue_pair(ibv_qp* public_qp, ibv_qp_attr* attributes, int mask) noexcept {
    auto& qp = *static_cast<QueuePair*>(public_qp);
    const std::lock_guard modify{qp.modify_mutex};
    const ibv_qp_state from = qp.state_now();
    if ((mask & IBV_QP_CUR_STATE) != 0 && attributes->cur_qp_state != from) return EINVAL;
    const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : from;
    if (const Transition* const step = transition(qp.qp_type, from, to); !legal(step, mask)) {
        if (!qp.strict()) return EINVAL;
        if (step != nullptr) {
            tell_transition(qp, to, mask, step->required, step->optional);
        } else {
            tell_no_transition(qp, to);
        }
        return EINVAL;
    }
    if (!values_make_sense(*attributes, mask)) return EINVAL;
    if ((mask & IBV_QP_AV) != 0 && !has_source(qp.context, attributes->ah_attr)) return EINVAL;
    if (to == IBV_QPS_RESET) return to_reset(qp);
    if (to == IBV_QPS_ERR) return from == IBV_QPS_RESET ? EINVAL : to_error(qp);
    if (from == IBV_QPS_SQE) return leave_send_error(qp, *attributes, mask);
    const bool leads = (mask & IBV_QP_AV) != 0 && leads_to_port(qp.context, attributes->ah_attr);
    bool run_again = to == IBV_QPS_RTR;
    std::unique_ptr<Transport> wire;
    if (to == IBV_QPS_RTR && from == IBV_QPS_INIT && qp.datagram == nullptr) {
        try {
            wire = qp.make_wire(*attributes);
        } catch (const std::exception& error) {
            base::log(base::LogLevel::error, "soft", "{}", error.what());
            return EINVAL;
        }
    }
    {
        const auto listed = qp.owner->process->listed().hold();
        const auto held = qp.sends.hold();
        SendSide& sends = *held;
        const ErrandPause run_pause{qp.theirs.lock(), run_again};
        const TheirsHeld run = qp.theirs.held_by_hand();
        if (qp.state != from) return EINVAL;  // an error came in between
        remember(sends.attributes, *attributes, mask);
        if ((mask & IBV_QP_AV) != 0) sends.leads_to_port = leads;
        publish(held, qp);
        if ((mask & (IBV_QP_AV | IBV_QP_SQ_PSN)) != 0) {
            sends.own.look_at_way_again();
            if (qp.theirs(run) != nullptr) qp.theirs(run)->look_at_way_again();
        }
        if (wire != nullptr) qp.take_transport(held, std::move(wire));
        if (to == IBV_QPS_RTR && from == IBV_QPS_INIT && sends.transport == nullptr) {
            errno = 0;
            if (!qp.connect(listed, held, run)) return EINVAL;
            // A peer that is not there may come later; our own descriptors would only be missed
            // again and again, and nobody would say so.
            if (!qp.connection(held) && errno == EMFILE) return EMFILE;
        }
        qp.set_state(held, to);
        if (sends.transport != nullptr) sends.transport->learn(sends.attributes, to);
        const bool held_back = to == IBV_QPS_RTS && sends.pending.shown() != sends.pending.tail();
        if (held_back) {
            sends.pending.show();
            heavy_fence();  // published, then looked: the peer's post_recv does it the other way
        }
        qp.execute_at_once(held, to == IBV_QPS_RTS && qp.cable == nullptr &&
                                     sends.own.connected() && sends.pending.count() == 0);
        if (qp.datagram == nullptr) qp.tell_of_way(held, true);
        if (to == IBV_QPS_RTS && !qp.executes_at_once() && sends.transport == nullptr)
            qp.run_own_pending(held);
        if (held_back && qp.cable != nullptr) qp.cable->expect();
        if (to != IBV_QPS_SQD) qp.set_draining(held, false);
        if (to == IBV_QPS_SQD && from == IBV_QPS_RTS) {
            sends.drained_event =
                (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attributes->en_sqd_async_notify != 0;
            qp.set_draining(held, true);
            heavy_fence();
            qp.see_hazards(sends.seen_hazards);
            qp.finish_draining(held);
        }
    }
    if (run_again) {
        // Published, then looked: a peer whose sends wait for us does it the other way round.
        heavy_fence();
        qp.run_peer_pending();
    }
    return 0;
}

int query_qp(ibv_qp* public_qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) noexcept {
    const base::Uncancelled held;
    auto& qp = *static_cast<QueuePair*>(public_qp);
    qp.service();
    const std::lock_guard modify{qp.modify_mutex};
    *attributes = qp.sends.hold()->attributes;
    attributes->qp_state = attributes->cur_qp_state = qp.state_now();
    attributes->sq_draining = qp.draining() ? 1 : 0;
    *init = qp.created;
    return 0;
}

}  // namespace millrace::soft
