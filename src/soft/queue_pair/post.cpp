// Posting: ibv_post_send and ibv_post_recv of the soft device. The poster executes at the doorbell
// while nothing waits; what cannot run yet goes to the pending ring. docs/soft/execution.md.
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "process/context.hpp"
#include "process/memory_window.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/cable_time.hpp"
#include "system/fences.hpp"
#include "transport/pieces.hpp"
#include "transport/request.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {
namespace {

/// By ibv_wr_opcode.
constexpr ibv_wc_opcode completion_opcodes[] = {
    IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND,      IBV_WC_SEND,    IBV_WC_RDMA_READ,
    IBV_WC_COMP_SWAP,  IBV_WC_FETCH_ADD,  IBV_WC_LOCAL_INV, IBV_WC_BIND_MW, IBV_WC_SEND};
static_assert(IBV_WR_RDMA_WRITE == 0 && IBV_WR_RDMA_WRITE_WITH_IMM == 1 && IBV_WR_SEND == 2 &&
              IBV_WR_SEND_WITH_IMM == 3 && IBV_WR_RDMA_READ == 4 &&
              IBV_WR_ATOMIC_CMP_AND_SWP == 5 && IBV_WR_ATOMIC_FETCH_AND_ADD == 6 &&
              IBV_WR_LOCAL_INV == 7 && IBV_WR_BIND_MW == 8 && IBV_WR_SEND_WITH_INV == 9);

[[nodiscard]] bool well_formed(SendHeld held, const QueuePair& qp, const ibv_send_wr& wr) noexcept {
    const unsigned opcode = raw_opcode(wr);
    if (opcode > 31 || (qp.sends(held).opcodes >> opcode & 1) == 0) return false;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.send_sges) return false;
    if (wr.opcode == IBV_WR_BIND_MW && !may_be_posted(wr)) return false;
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        if (wr.opcode != IBV_WR_RDMA_WRITE && !sends_to_receive(wr.opcode)) return false;
        if (bytes_of(wr.sg_list, wr.num_sge) > qp.inline_bytes) return false;
    }
    return true;
}

[[nodiscard]] Request request_of(const ibv_send_wr& wr, std::uint32_t flags,
                                 std::uint32_t slot) noexcept {
    Request request;
    request.opcode = wr.opcode;
    request.flags = flags;
    request.immediate = wr.imm_data;
    request.remote_key = wr.wr.rdma.rkey;
    request.remote_address = wr.wr.rdma.remote_addr;
    request.sges = wr.sg_list;
    request.sge_count = wr.num_sge;
    request.slot = slot;
    if (is_atomic(wr.opcode)) [[unlikely]] {
        request.remote_key = wr.wr.atomic.rkey;
        request.compare_or_add = wr.wr.atomic.compare_add;
        request.swap = wr.wr.atomic.swap;
    }
    return request;
}

void append_pending(SendHeld held, QueuePair& qp, const ibv_send_wr& wr, std::uint32_t flags,
                    std::uint32_t slot) noexcept {
    PendingSends& pending = qp.sends(held).pending;
    const std::size_t used = pending.fill(pending.tail(), wr, flags, slot);
    if (qp.cable != nullptr) {
        const int pieces = is_local(wr.opcode) ? 0 : wr.num_sge;
        qp.cable->schedule(pending.entry(pending.tail()), pending.tail(),
                           bytes_of(wr.sg_list, pieces));
    }
    pending.append(used);
    if (qp.state != IBV_QPS_SQD) pending.show();
    qp.counters.add(Count::deferred);
}

/// Out of line: its calls would cost the most frequent request registers.
[[gnu::noinline]] Progress run_one(SendHeld held, QueuePair& qp, const ibv_send_wr& wr,
                                   std::uint32_t flags, std::uint32_t slot) noexcept {
    if (is_local(wr.opcode)) [[unlikely]] {
        return qp.run_local(held, local_operation_of(wr, flags, slot));
    }
    HazardScope scope{qp.block.hazard->send, qp.asymmetric()};
    Executor& own = qp.sends(held).own;
    const Progress progress = own.run(request_of(wr, flags, slot));
    if (progress != Progress::done && own.abandoned()) [[unlikely]]
        scope.keep();
    return progress;
}

/// Everything but "RTS, nothing pending, no fault".
[[gnu::noinline]] int post_slowly(SendHeld held, QueuePair& qp, ibv_send_wr* wr,
                                  ibv_send_wr** bad) noexcept {
    SendSide& sends = qp.sends(held);
    const ibv_qp_state state = qp.state;
    Transport* const transport = sends.transport.get();
    if (state != IBV_QPS_RTS && (state != IBV_QPS_SQD || qp.datagram != nullptr) &&
        state != IBV_QPS_SQE && state != IBV_QPS_ERR) {
        *bad = wr;
        return EINVAL;
    }
    if (qp.datagram != nullptr) qp.owner->process->look_for_deaths(base::ticks());
    int error = 0;
    bool deferred = false;
    bool flushed = false;
    for (; wr != nullptr; wr = wr->next) {
        const std::uint32_t slot = qp.slots.tail();
        if (!well_formed(held, qp, *wr) || (transport != nullptr && !transport->takes(*wr))) {
            error = EINVAL;
            break;
        }
        if (!qp.slots.find_free(held, slot, qp.send_head)) {
            error = ENOMEM;
            break;
        }
        qp.slots.at(held, slot) = SentSlot{wr->wr_id, completion_opcodes[wr->opcode]};
        if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE) {
            flushed = true;
        } else if (transport != nullptr) {
            const std::uint32_t flags = wr->send_flags | qp.always;
            if (is_local(wr->opcode) &&
                !qp.defer_local(held, local_operation_of(*wr, flags, slot & qp.slots.mask()))) {
                error = ENOMEM;
                break;
            }
            // Before it is carried: the completion may be polled by another thread at once.
            qp.slots.advance(held, slot + 1);
            const ibv_wc_status status = transport->post(*wr, flags, slot & qp.slots.mask());
            if (status != IBV_WC_SUCCESS) [[unlikely]]
                qp.begin_send_error(held, status);
        } else {
            const std::uint32_t flags = wr->send_flags | qp.always;
            // On a shaped link, completions are the link's to write.
            const std::uint32_t own_flags =
                qp.cable == nullptr ? flags : flags & ~std::uint32_t{IBV_SEND_SIGNALED};
            if (!sends.pending.make() ||
                (is_local(wr->opcode) &&
                 !qp.defer_local(held,
                                 local_operation_of(*wr, own_flags, slot & qp.slots.mask())))) {
                error = ENOMEM;
                break;
            }
            append_pending(held, qp, *wr, flags, slot & qp.slots.mask());
            deferred = true;
        }
        qp.slots.advance(held, slot + 1);
    }
    if (error != 0) *bad = wr;
    if (transport != nullptr) qp.move_transport(held);
    if (deferred) {
        qp.execute_at_once(held, false);
        // Published, then looked: the peer's post_recv does it the other way round. What is still
        // in flight is looked at again when it is due.
        if (qp.cable != nullptr) {
            qp.cable->expect();
        } else {
            heavy_fence();
            qp.counters.add(Count::heavy_fence);
            qp.run_own_pending(held);
        }
    }
    if (flushed && sends.ending.flushing()) static_cast<CompletionQueue*>(qp.send_cq)->flushed();
    return error;
}

}  // namespace

std::uint32_t allowed_opcodes(SendHeld held, const QueuePair& qp) noexcept {
    if (qp.qp_type == IBV_QPT_UD) return 1U << IBV_WR_SEND | 1U << IBV_WR_SEND_WITH_IMM;
    std::uint32_t allowed = 1U << IBV_WR_RDMA_WRITE | 1U << IBV_WR_RDMA_WRITE_WITH_IMM |
                            1U << IBV_WR_SEND | 1U << IBV_WR_SEND_WITH_IMM |
                            1U << IBV_WR_SEND_WITH_INV | 1U << IBV_WR_BIND_MW |
                            1U << IBV_WR_LOCAL_INV;
    if (qp.reliable() && qp.sends(held).attributes.max_rd_atomic > 0) {
        allowed |= 1U << IBV_WR_RDMA_READ | 1U << IBV_WR_ATOMIC_CMP_AND_SWP |
                   1U << IBV_WR_ATOMIC_FETCH_AND_ADD;
    }
    return allowed;
}

/// Of a UD queue pair; one with a shared receive queue has no receives of its own.
[[gnu::noinline]] static int post_pooled_recv(QueuePair& qp, ibv_recv_wr* wr,
                                              ibv_recv_wr** bad) noexcept {
    qp.run_counters.add(Count::post_receive);
    if (qp.own_pool == nullptr || qp.state_now() == IBV_QPS_RESET) {
        *bad = wr;
        return EINVAL;
    }
    const int error = qp.own_pool->post(wr, bad);
    if (qp.receive_source.flushing.load(std::memory_order_relaxed)) {
        static_cast<CompletionQueue*>(qp.recv_cq)->flushed();
    }
    return error;
}

namespace {

/// Of those that the executor has a short way for?
[[nodiscard]] bool executes_at_once(const ibv_send_wr& wr) noexcept {
    const unsigned opcode = raw_opcode(wr);
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

/// Nothing but one WRITE of one piece?
[[nodiscard]] bool is_lone_write(const ibv_send_wr& wr) noexcept {
    // Both fields by one comparison.
    using Two = std::array<std::int32_t, 2>;
    static_assert(offsetof(ibv_send_wr, opcode) == offsetof(ibv_send_wr, num_sge) + 4);
    std::uint64_t kind;
    std::memcpy(&kind, &wr.num_sge, sizeof kind);
    return kind == std::bit_cast<std::uint64_t>(Two{1, IBV_WR_RDMA_WRITE}) && wr.next == nullptr;
}

// Of a lone WRITE, with the lock entered. What would be kept over more than a few lines costs a
// register that has to be saved: it is read again instead.

void end_lone_write(SendHeld held, QueuePair& qp) noexcept {
    Hazard& hazard = qp.sends(held).lines_at_once->hazard.send;
    hazard.end(hazard.word.load(std::memory_order_relaxed));
}

/// Begins its hazard and finds its way and its slot. False: nothing has happened.
[[nodiscard, gnu::always_inline]] inline bool begin_lone_write(SendHeld held, QueuePair& qp,
                                                               const ibv_send_wr& wr,
                                                               Executor::Way& way) noexcept {
    SendSide& sends = qp.sends(held);
    ExecutionLines* const lines = sends.lines_at_once;
    if (lines == nullptr || lines->fault.receive.load(std::memory_order_relaxed) != 0) [[unlikely]]
        return false;
    static_cast<void>(lines->hazard.send.begin(true, name_pair(wr.sg_list->lkey, wr.wr.rdma.rkey)));
    if (sends.own.find_way(wr, way)) [[likely]] {
        if (way.apart()) [[likely]] {
            const std::uint32_t slot = qp.slots.tail();
            if (qp.slots.is_free(held, slot, qp.send_head)) [[likely]] {
                SentSlot& sent = qp.slots.at(held, slot);
                sent.wr_id = wr.wr_id;
                sent.opcode = IBV_WC_RDMA_WRITE;
                // Before it runs: the completion may be polled by another thread at once.
                qp.slots.advance(held, slot + 1);
                return true;
            }
        }
    }
    end_lone_write(held, qp);
    return false;
}

/// Its end where its copy or its completion takes a call.
[[gnu::noinline]] int finish_lone_write(SendHeld held, QueuePair& qp, const ibv_send_wr& wr,
                                        std::byte* to, const std::byte* from) noexcept {
    Executor& own = qp.sends(held).own;
    const std::uint32_t length = wr.sg_list->length;
    own.copy_way({to, from, length}, wr.wr.rdma.rkey);
    own.look_ahead(to, length);
    if (((wr.send_flags | qp.always) & IBV_SEND_SIGNALED) != 0) {
        const std::uint32_t slot = qp.slots.tail() - 1;
        own.complete_send(slot & qp.slots.mask(), length);
    }
    end_lone_write(held, qp);
    qp.counters.add_lone_write();
    qp.sends.lock().leave_often();
    return 0;
}

[[gnu::noinline]] void look_after_post(QueuePair& qp) noexcept {
    if (!qp.is_carried()) return qp.service();  // faults, and timers that are over at once
    qp.owner->process->wire()->take_answers(cable_now());
}

[[gnu::noinline]] int post_any(QueuePair& qp, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    qp.sends.lock().lock_often();
    const SendHeld held = qp.sends.held_by_hand();
    SendSide& sends = qp.sends(held);
    qp.counters.add(Count::post_send);
    int error = 0;
    bool serve = false;
    if (!qp.executes_at_once() || qp.block.fault->receive.load(std::memory_order_relaxed) != 0)
        [[unlikely]] {
        error = post_slowly(held, qp, wr, bad);
        serve = sends.transport == nullptr || qp.is_carried();
        wr = nullptr;
    }
    for (; wr != nullptr; wr = wr->next) {
        const std::uint32_t flags = wr->send_flags | qp.always;
        const bool one_piece =
            wr->num_sge == 1 && executes_at_once(*wr) &&
            ((flags & IBV_SEND_INLINE) == 0 || wr->sg_list[0].length <= qp.inline_bytes);
        if (!one_piece && !well_formed(held, qp, *wr)) [[unlikely]] {
            *bad = wr;
            error = EINVAL;
            break;
        }
        const std::uint32_t slot = qp.slots.tail();
        if (!qp.slots.find_free(held, slot, qp.send_head)) [[unlikely]] {
            *bad = wr;
            error = ENOMEM;
            break;
        }
        const std::uint32_t index = slot & qp.slots.mask();
        qp.slots.at(held, slot) = SentSlot{wr->wr_id, completion_opcodes[wr->opcode]};
        // Before it runs: the completion may be polled by another thread at once.
        qp.slots.advance(held, slot + 1);
        if (one_piece && raw_opcode(*wr) == IBV_WR_RDMA_WRITE) [[likely]] {
            const HazardScope scope{qp.block.hazard->send, qp.asymmetric(),
                                    name_pair(wr->sg_list[0].lkey, wr->wr.rdma.rkey)};
            if (sends.own.write_at_once(*wr, flags, index)) [[likely]]
                continue;
        } else if (one_piece) {
            const HazardScope scope{qp.block.hazard->send, qp.asymmetric(), names_none};
            if (sends.own.send_at_once(*wr, flags, index)) [[likely]]
                continue;
        }
        const Progress progress = run_one(held, qp, *wr, flags, index);
        if (progress == Progress::done) [[likely]]
            continue;
        qp.slots.advance(held, slot);
        serve = true;
        if (progress == Progress::failed) {
            // It is posted, and the first that does not complete: pending, but for nobody to run.
            qp.slots.advance(held, slot + 1);
            sends.pending.append_failed();
            qp.begin_send_error(held, sends.own.failure());
            wr = wr->next;
            if (wr == nullptr) break;
        }
        error = post_slowly(held, qp, wr, bad);
        break;
    }
    qp.sends.lock().unlock();
    if (serve) [[unlikely]]
        look_after_post(qp);
    return error;
}

}  // namespace

/// The most frequent call is done here, without a call and without saving a register; whatever is
/// more than that, or is not yet known, by `post_any`.
int post_send(ibv_qp* public_qp, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    auto& qp = *static_cast<QueuePair*>(public_qp);
    base::telling_peers();
    if (wr != nullptr && is_lone_write(*wr) && qp.sends.lock().enter_often()) {
        const SendHeld held = qp.sends.held_by_hand();
        Executor::Way way;
        if (begin_lone_write(held, qp, *wr, way)) [[likely]] {
            if (((wr->send_flags | qp.always) & IBV_SEND_SIGNALED) != 0) {
                return finish_lone_write(held, qp, *wr, way.to, way.from);
            }
            if (way.length == 8 && is_copied_in_words(way.to, 8)) {
                copy_words_in_order(way.to, way.from, 8);  // flags and counters
            } else if (is_copied_in_words(way.to, way.length)) {
                copy_words_in_order(way.to, way.from, way.length);
            } else {
                return finish_lone_write(held, qp, *wr, way.to, way.from);
            }
            qp.sends(held).own.look_ahead(way.to, way.length);
            end_lone_write(held, qp);
            qp.counters.add_lone_write();
            qp.sends.lock().leave_often();
            return 0;
        }
        qp.sends.lock().leave_often();
    }
    return post_any(qp, wr, bad);
}

int post_recv(ibv_qp* public_qp, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    auto& qp = *static_cast<QueuePair*>(public_qp);
    if (qp.pool != nullptr) [[unlikely]]
        return post_pooled_recv(qp, wr, bad);
    int error = 0;
    bool flushing = false;
    {
        ReceiveQueue::Posting posting{qp.receives};
        const std::uint32_t head = qp.receive_source.position.load(std::memory_order_acquire);
        if (qp.state_now() == IBV_QPS_RESET) [[unlikely]] {
            *bad = wr;
            error = EINVAL;
            wr = nullptr;
        }
        for (; wr != nullptr; wr = wr->next) {
            if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > qp.receives.sges)
                [[unlikely]] {
                error = EINVAL;
            } else if (!posting.has_room(head)) [[unlikely]] {
                error = ENOMEM;
            }
            if (error != 0) [[unlikely]] {
                *bad = wr;
                break;
            }
            posting.put(*wr, qp.end.block, qp.block);
        }
        qp.run_counters.add(Count::post_receive);
        flushing = qp.receive_source.flushing.load(std::memory_order_relaxed);
        if (!posting.publish(qp.block)) return error;
    }
    if (flushing) [[unlikely]]
        static_cast<CompletionQueue*>(qp.recv_cq)->flushed();
    // Published, then looked: the peer's deferral does it the other way round.
    light_fence(qp.asymmetric());
    qp.run_peer_pending_if_any();
    return error;
}

}  // namespace millrace::soft
