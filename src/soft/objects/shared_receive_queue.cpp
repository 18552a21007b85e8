// Implementation of shared_receive_queue.hpp and of its entries in <millrace/soft/device.hpp>.
#include "objects/shared_receive_queue.hpp"

#include <cerrno>

#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "process/context.hpp"
#include "process/domains.hpp"
#include "process/process.hpp"
#include "system/refused.hpp"

namespace millrace::soft {

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) noexcept {
    const base::Uncancelled held;
    const ibv_srq_attr& asked = attributes->attr;
    if (!usable(pd) || asked.max_wr == 0 || asked.max_wr > max_queue_entries ||
        asked.max_sge > max_sges) {
        return refused(EINVAL);
    }
    Context* const owner = context_of(pd->context);
    auto place = owner->process->shared_receive_queues().take();
    if (place == nullptr) return nullptr;  // errno says why
    std::unique_ptr<SharedReceiveQueue> srq;
    try {
        srq = std::make_unique<SharedReceiveQueue>();
        srq->place = std::move(place);
        srq->pool = ReceivePool::make(owner->process->node(), asked.max_wr, asked.max_sge,
                                      ReceivePool::Growth::resizable);
        if (srq->pool == nullptr) return nullptr;  // errno says why
        auto* const raised_by = srq.get();
        srq->pool->reached = [raised_by] {
            raise_async_event(*raised_by, IBV_EVENT_SRQ_LIMIT_REACHED);
        };
    } catch (const std::exception&) {
        if (srq != nullptr && srq->pool != nullptr) srq->pool->give_back();
        return refused(ENOMEM);
    }
    srq->context = pd->context;
    srq->srq_context = attributes->srq_context;
    srq->pd = pd;
    srq->handle = srq->pool->block().index;
    pthread_mutex_init(&srq->mutex, nullptr);
    pthread_cond_init(&srq->cond, nullptr);
    enter(pd);
    owner->users.fetch_add(1);
    attributes->attr.max_wr = srq->pool->entries();
    attributes->attr.max_sge = srq->pool->sges();
    return srq.release();
}

int modify_srq(ibv_srq* public_srq, ibv_srq_attr* attributes, int mask) noexcept {
    const base::Uncancelled held;
    auto& srq = *static_cast<SharedReceiveQueue*>(public_srq);
    if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
    const bool resizes = (mask & IBV_SRQ_MAX_WR) != 0;
    const bool limits = (mask & IBV_SRQ_LIMIT) != 0;
    if (resizes && (attributes->max_wr == 0 || attributes->max_wr > max_queue_entries)) {
        return EINVAL;
    }
    if (limits) {
        const std::uint32_t most = resizes ? attributes->max_wr : srq.pool->entries();
        if (attributes->srq_limit > most) return EINVAL;
    }
    if (resizes) {
        const int error = srq.pool->resize(attributes->max_wr, limits);
        if (error != 0) return error;
    }
    if (limits) srq.pool->set_limit(attributes->srq_limit);
    return 0;
}

int query_srq(ibv_srq* public_srq, ibv_srq_attr* attributes) noexcept {
    auto& srq = *static_cast<SharedReceiveQueue*>(public_srq);
    srq.pool->check_limit();
    *attributes = ibv_srq_attr{};
    attributes->max_wr = srq.pool->entries();
    attributes->max_sge = srq.pool->sges();
    attributes->srq_limit = srq.pool->limit();
    return 0;
}

int destroy_srq(ibv_srq* public_srq) noexcept {
    const base::Uncancelled held;
    auto* const srq = static_cast<SharedReceiveQueue*>(public_srq);
    if (srq->pool->used()) return EBUSY;
    end_async_events(*public_srq);
    srq->pool->give_back();
    leave(srq->pd);
    Context* const owner = context_of(srq->context);
    delete srq;
    release(owner);
    return 0;
}

int post_srq_recv(ibv_srq* public_srq, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    auto& srq = *static_cast<SharedReceiveQueue*>(public_srq);
    const int error = srq.pool->post(wr, bad);
    srq.pool->serve_waiting();
    return error;
}

}  // namespace millrace::soft
