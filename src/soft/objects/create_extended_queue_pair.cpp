// The extended queue pair: what ibv_wr_* calls, and ibv_create_qp_ex.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>

#include "millrace/soft/device.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "queue_pair/queue_pair.hpp"
#include "queue_pair/work_requests.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] QueuePair& queue_pair_of(ibv_qp_ex* qp) noexcept {
    return static_cast<QueuePair&>(qp->qp_base);
}
[[nodiscard]] WorkRequests& requests_of(ibv_qp_ex* qp) noexcept {
    return *queue_pair_of(qp).work_requests;
}

void wr_start(ibv_qp_ex* qp) noexcept { requests_of(qp).start(); }
int wr_complete(ibv_qp_ex* extended) noexcept {
    QueuePair& qp = queue_pair_of(extended);
    const std::uint32_t capacity = qp.slots.capacity();
    const std::uint32_t used = qp.slots.tail() - qp.send_head.load(std::memory_order_acquire);
    return qp.work_requests->complete(qp, capacity - std::min(used, capacity));
}
void wr_abort(ibv_qp_ex* qp) noexcept { requests_of(qp).abort(); }

/// What was not asked for at creation, or cannot be.
template <class... Arguments>
void refuse(ibv_qp_ex* qp, Arguments...) noexcept {
    requests_of(qp).fail(EOPNOTSUPP);
}

template <ibv_wr_opcode opcode, class... Immediate>
void wr_rdma(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
             Immediate... immediate) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).add(*qp, opcode)) {
        ((request->imm_data = immediate), ...);
        request->wr.rdma.remote_addr = address;
        request->wr.rdma.rkey = key;
    }
}
template <ibv_wr_opcode opcode, class... Immediate>
void wr_send(ibv_qp_ex* qp, Immediate... immediate) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).add(*qp, opcode)) {
        ((request->imm_data = immediate), ...);
    }
}
template <ibv_wr_opcode opcode>
void wr_invalidating(ibv_qp_ex* qp, std::uint32_t key) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).add(*qp, opcode)) {
        request->invalidate_rkey = key;
    }
}
void wr_atomic_cmp_swp(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                       std::uint64_t compare, std::uint64_t swap) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).add(*qp, IBV_WR_ATOMIC_CMP_AND_SWP)) {
        request->wr.atomic.remote_addr = address;
        request->wr.atomic.rkey = key;
        request->wr.atomic.compare_add = compare;
        request->wr.atomic.swap = swap;
    }
}
void wr_atomic_fetch_add(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                         std::uint64_t add) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).add(*qp, IBV_WR_ATOMIC_FETCH_AND_ADD)) {
        request->wr.atomic.remote_addr = address;
        request->wr.atomic.rkey = key;
        request->wr.atomic.compare_add = add;
    }
}
void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* window, std::uint32_t key,
                const ibv_mw_bind_info* information) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).add(*qp, IBV_WR_BIND_MW)) {
        request->bind_mw.mw = window;
        request->bind_mw.rkey = key;
        request->bind_mw.bind_info = *information;
    }
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* address, std::uint32_t number,
                    std::uint32_t key) noexcept {
    if (ibv_send_wr* const request = requests_of(qp).last()) {
        request->wr.ud.ah = address;
        request->wr.ud.remote_qpn = number;
        request->wr.ud.remote_qkey = key;
    }
}
void wr_set_sge(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                std::uint32_t length) noexcept {
    const ibv_sge piece{address, length, key};
    requests_of(qp).set_pieces(&piece, 1);
}
void wr_set_sge_list(ibv_qp_ex* qp, std::size_t count, const ibv_sge* pieces) noexcept {
    requests_of(qp).set_pieces(pieces, count);
}
void wr_set_inline_data(ibv_qp_ex* qp, void* address, std::size_t length) noexcept {
    const ibv_data_buf piece{address, length};
    requests_of(qp).set_inline(&piece, 1);
}
void wr_set_inline_data_list(ibv_qp_ex* qp, std::size_t count,
                             const ibv_data_buf* pieces) noexcept {
    requests_of(qp).set_inline(pieces, count);
}

constexpr std::uint64_t sending = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr std::uint64_t writing_operations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
constexpr std::uint64_t on_windows =
    IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;

/// IBV_QP_EX_WITH_…: what queue pairs of that type execute.
[[nodiscard]] std::uint64_t supported_operations(ibv_qp_type type) noexcept {
    switch (type) {
        case IBV_QPT_RC:
            return sending | writing_operations | IBV_QP_EX_WITH_RDMA_READ |
                   IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                   on_windows;
        case IBV_QPT_UC: return sending | writing_operations | on_windows;
        case IBV_QPT_UD: return sending;
        default: return 0;
    }
}

/// What rdma-core 44 does not have yet.
template <class Extended>
void fill_newer(Extended& qp) noexcept {
    if constexpr (requires { qp.wr_flush; }) qp.wr_flush = refuse;
}

/// Every pointer is set: calling what was not asked for fails the batch, not the program.
void fill(ibv_qp_ex& qp, ibv_qp_type type, std::uint64_t operations) noexcept {
    qp.comp_mask = 0;
    qp.wr_id = 0;
    qp.wr_flags = 0;
    const auto set = [operations](auto& member, std::uint64_t flag,
                                  std::remove_reference_t<decltype(member)> function) {
        member = refuse;
        if ((operations & flag) != 0) member = function;
    };
    set(qp.wr_atomic_cmp_swp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp);
    set(qp.wr_atomic_fetch_add, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add);
    set(qp.wr_bind_mw, IBV_QP_EX_WITH_BIND_MW, wr_bind_mw);
    set(qp.wr_local_inv, IBV_QP_EX_WITH_LOCAL_INV, wr_invalidating<IBV_WR_LOCAL_INV>);
    set(qp.wr_rdma_read, IBV_QP_EX_WITH_RDMA_READ, wr_rdma<IBV_WR_RDMA_READ>);
    set(qp.wr_rdma_write, IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma<IBV_WR_RDMA_WRITE>);
    set(qp.wr_rdma_write_imm, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        wr_rdma<IBV_WR_RDMA_WRITE_WITH_IMM, __be32>);
    set(qp.wr_send, IBV_QP_EX_WITH_SEND, wr_send<IBV_WR_SEND>);
    set(qp.wr_send_imm, IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send<IBV_WR_SEND_WITH_IMM, __be32>);
    set(qp.wr_send_inv, IBV_QP_EX_WITH_SEND_WITH_INV, wr_invalidating<IBV_WR_SEND_WITH_INV>);
    qp.wr_send_tso = refuse;
    qp.wr_atomic_write = refuse;
    fill_newer(qp);
    qp.wr_set_xrc_srqn = refuse;
    qp.wr_set_ud_addr = refuse;
    if (type == IBV_QPT_UD) qp.wr_set_ud_addr = wr_set_ud_addr;
    qp.wr_set_inline_data = wr_set_inline_data;
    qp.wr_set_inline_data_list = wr_set_inline_data_list;
    qp.wr_set_sge = wr_set_sge;
    qp.wr_set_sge_list = wr_set_sge_list;
    qp.wr_start = wr_start;
    qp.wr_complete = wr_complete;
    qp.wr_abort = wr_abort;
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes) noexcept {
    constexpr std::uint32_t known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const std::uint32_t mask = attributes->comp_mask;
    if ((mask & ~known) != 0) return refused(EOPNOTSUPP);
    if ((mask & IBV_QP_INIT_ATTR_PD) == 0 || attributes->pd == nullptr ||
        attributes->pd->context != context) {
        return refused(EINVAL);
    }
    if ((mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attributes->create_flags != 0) {
        return refused(EOPNOTSUPP);
    }
    const bool extended = (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    if (extended &&
        (attributes->send_ops_flags & ~supported_operations(attributes->qp_type)) != 0) {
        return refused(EOPNOTSUPP);
    }
    // The extended attributes begin as the plain ones do.
    ibv_qp_init_attr plain{};
    plain.qp_context = attributes->qp_context;
    plain.send_cq = attributes->send_cq;
    plain.recv_cq = attributes->recv_cq;
    plain.srq = attributes->srq;
    plain.cap = attributes->cap;
    plain.qp_type = attributes->qp_type;
    plain.sq_sig_all = attributes->sq_sig_all;
    ibv_qp* const made = create_qp(attributes->pd, &plain);
    if (made == nullptr) return nullptr;
    attributes->cap = plain.cap;
    if (!extended) return made;
    auto& qp = static_cast<QueuePair&>(*made);
    qp.work_requests.reset(new (std::nothrow) WorkRequests{
        qp.send_sges, qp.inline_bytes,
        static_cast<ProtectionDomain*>(attributes->pd)->single_threaded()});
    if (qp.work_requests == nullptr) {
        destroy_qp(made);
        return refused(ENOMEM);
    }
    fill(*qp.extended(), qp.qp_type, attributes->send_ops_flags);
    return made;
}

ibv_qp_ex* qp_to_qp_ex(ibv_qp* qp) noexcept {
    auto& ours = static_cast<QueuePair&>(*qp);
    if (ours.work_requests != nullptr) return ours.extended();
    return refused(EOPNOTSUPP);
}

}  // namespace millrace::soft
