#include "process/control_calls.hpp"

#include <cerrno>
#include <cstdint>

#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "objects/tracing.hpp"
#include "process/context.hpp"

namespace millrace::soft {

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) noexcept {
    const base::Uncancelled held;
    ibv_qp* const made = make_queue_pair(pd, attributes);
    if (Tracing* const tracing = context_of(pd->context)->tracing.get(); tracing != nullptr) {
        const int error = made == nullptr ? errno : 0;
        tracing->queue_pair_made(made, attributes->qp_type, error);
        if (made == nullptr) errno = error;
    }
    return made;
}

int destroy_qp(ibv_qp* qp) noexcept {
    const base::Uncancelled held;
    Tracing* const tracing = context_of(qp->context)->tracing.get();
    if (tracing == nullptr) return end_queue_pair(qp);
    // Destroying the last object of a closed device takes the trace with it.
    tracing->queue_pair_ends(qp->qp_num);
    const int error = end_queue_pair(qp);
    if (error != 0) tracing->queue_pair_ends(qp->qp_num, error);
    return error;
}

int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) noexcept {
    const base::Uncancelled held;
    const int error = modify_queue_pair(qp, attributes, mask);
    if (Tracing* const tracing = context_of(qp->context)->tracing.get(); tracing != nullptr) {
        tracing->modified(qp, *attributes, mask, error);
    }
    return error;
}

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
               unsigned access) noexcept {
    const base::Uncancelled held;
    ibv_mr* const made = register_memory(pd, address, length, iova, access);
    if (Tracing* const tracing = context_of(pd->context)->tracing.get(); tracing != nullptr) {
        const int error = made == nullptr ? errno : 0;
        tracing->registered(made, address, length, access, error);
        if (made == nullptr) errno = error;
    }
    return made;
}

int dereg_mr(ibv_mr* mr) noexcept {
    const base::Uncancelled held;
    Tracing* const tracing = context_of(mr->context)->tracing.get();
    if (tracing == nullptr) return deregister_memory(mr);
    tracing->deregisters(*mr);
    const int error = deregister_memory(mr);
    if (error != 0) tracing->deregisters(*mr, error);
    return error;
}

}  // namespace millrace::soft
