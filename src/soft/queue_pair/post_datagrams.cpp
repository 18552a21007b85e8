// ibv_post_send of a UD queue pair, in whatever state. Called by post.cpp.
#include <cerrno>
#include <cstdint>

#include "completion/completion_queue.hpp"
#include "datagram/datagram_send.hpp"
#include "millrace/base/clock.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "transport/pieces.hpp"
#include "transport/request.hpp"

namespace millrace::soft {

int post_datagrams(QueuePair& qp, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    const ibv_qp_state state = qp.state;
    if (state != IBV_QPS_RTS && state != IBV_QPS_ERR && state != IBV_QPS_SQE) {
        *bad = wr;
        return EINVAL;
    }
    qp.owner->process->look_for_deaths(base::ticks());
    bool flushed = false;
    int error = 0;
    for (; wr != nullptr; wr = wr->next) {
        const bool in_line = (wr->send_flags & IBV_SEND_INLINE) != 0;
        const unsigned opcode = raw_opcode(*wr);
        const bool known = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
        const bool fits =
            wr->num_sge >= 0 && static_cast<std::uint32_t>(wr->num_sge) <= qp.send_sges;
        if (!known || !fits || wr->wr.ud.ah == nullptr ||
            (in_line && bytes_of(wr->sg_list, wr->num_sge) > qp.inline_bytes)) [[unlikely]] {
            error = EINVAL;
            break;
        }
        const std::uint32_t slot = qp.send_tail.load(std::memory_order_relaxed);
        if (slot - qp.send_head.load(std::memory_order_acquire) >= qp.send_capacity) [[unlikely]] {
            error = ENOMEM;
            break;
        }
        const std::uint32_t index = slot & qp.send_mask;
        qp.sent[index] = SentSlot{wr->wr_id, IBV_WC_SEND};
        qp.send_tail.store(slot + 1, std::memory_order_release);
        if (qp.state != IBV_QPS_RTS) [[unlikely]] {
            flushed = true;
            continue;
        }
        const std::uint32_t flags = wr->send_flags | qp.always;
        const ibv_wc_status status = qp.datagram_sender->run(*wr, flags, index);
        if (status == IBV_WC_SUCCESS) [[likely]]
            continue;
        if (qp.flights != nullptr) {
            qp.flights->add_failure(index, status);
        } else {
            ++qp.pending_tail;  // posted, and the first that does not complete
            qp.begin_send_error(status);
        }
    }
    if (qp.flights != nullptr) qp.move_flights();
    if (error != 0) *bad = wr;
    if (flushed && qp.ending.flushing()) static_cast<CompletionQueue*>(qp.send_cq)->flushed();
    return error;
}

}  // namespace millrace::soft
