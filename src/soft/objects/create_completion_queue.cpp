// The beginning and the end of a completion queue. Entries of <millrace/soft/device.hpp>.
#include <pthread.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>

#include "completion/completion_channel.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "objects/polling.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

/// Queue pairs get as many slots as the next power of two: so that a completion queue that is large
/// enough for what a program asked for mostly is for what it got.
[[nodiscard]] int size_of(int entries) noexcept {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>(entries)));
}

constexpr int max_entries = 4 << 20;

}  // namespace

ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                  int vector) noexcept {
    const base::Uncancelled held;
    if (entries < 1 || entries > max_entries || vector < 0 || vector >= context->num_comp_vectors)
        return refused(EINVAL);
    auto place = context_of(context)->process->completion_queues().take();
    if (place == nullptr) return nullptr;  // errno says why
    auto* cq = new (std::nothrow) PolledQueue{context_of(context)->yields};
    if (cq == nullptr) return refused(ENOMEM);
    cq->context = context;
    cq->place = std::move(place);
    cq->channel = channel;
    cq->cq_context = cq_context;
    cq->cqe = size_of(entries);
    pthread_mutex_init(&cq->mutex, nullptr);
    pthread_cond_init(&cq->cond, nullptr);
    cq->owner = context_of(context);
    cq->turn.hold()->service_interval = base::ticks_in(std::chrono::microseconds{10});
    cq->yield_after = base::ticks_in(std::chrono::microseconds{20});
    if (channel != nullptr) {
        cq->soft_channel = static_cast<CompletionChannel*>(channel);
        const auto queues = cq->soft_channel->queues.hold();
        try {
            queues->all.push_back(cq);
        } catch (const std::bad_alloc&) {
            delete cq;
            return refused(ENOMEM);
        }
        ++channel->refcnt;
    }
    cq->owner->users.fetch_add(1);
    return cq;
}

int resize_cq(ibv_cq* public_queue, int entries) noexcept {
    if (entries < 1 || entries > max_entries) return EINVAL;
    auto* cq = static_cast<PolledQueue*>(public_queue);
    const auto turn = cq->turn.hold();
    // A size is a limit here, not a ring; but what is there has to fit.
    std::uint64_t unpolled = 0;
    for (const CompletionSource* source : turn->turns.all()) {
        const std::uint32_t at = source->position.load(std::memory_order_relaxed);
        unpolled += source->end_after(at) - at;
    }
    if (unpolled > static_cast<std::uint64_t>(entries)) return EINVAL;
    cq->cqe = size_of(entries);
    cq->look_whether_limited(turn);
    return 0;
}

int destroy_cq(ibv_cq* public_queue) noexcept {
    const base::Uncancelled held;
    auto* cq = static_cast<PolledQueue*>(public_queue);
    if (!cq->turn.hold()->turns.all().empty()) return EBUSY;
    if (cq->soft_channel != nullptr) {
        const auto queues = cq->soft_channel->queues.hold();
        std::erase(queues->all, cq);
        queues->next = 0;
        --cq->soft_channel->refcnt;
    }
    // As libibverbs: until every event that was handed out has been acknowledged.
    pthread_mutex_lock(&cq->mutex);
    while (cq->comp_events_completed != cq->events_delivered.load(std::memory_order_relaxed)) {
        pthread_cond_wait(&cq->cond, &cq->mutex);
    }
    pthread_mutex_unlock(&cq->mutex);
    end_async_events(*public_queue);
    Context* const owner = cq->owner;
    delete cq;  // gives memory back to the owner's process
    release(owner);
    return 0;
}

}  // namespace millrace::soft
