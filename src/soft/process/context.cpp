#include "process/context.hpp"

#include <pthread.h>

#include <cstdint>

namespace millrace::soft {
namespace {

void raise(ibv_context& context, ibv_async_event event) noexcept {
    context_of(&context)->events->raise(event);
}

template <class Object>
void end(Object& object, const std::uint32_t& completed) noexcept {
    const unsigned taken = context_of(object.context)->events->end(&object);
    pthread_mutex_lock(&object.mutex);
    while (completed != taken) pthread_cond_wait(&object.cond, &object.mutex);
    pthread_mutex_unlock(&object.mutex);
    pthread_cond_destroy(&object.cond);
    pthread_mutex_destroy(&object.mutex);
}

}  // namespace

void raise_async_event(ibv_qp& qp, ibv_event_type type) noexcept {
    raise(*qp.context, {{.qp = &qp}, type});
}

void raise_async_event(ibv_cq& cq, ibv_event_type type) noexcept {
    raise(*cq.context, {{.cq = &cq}, type});
}

void raise_async_event(ibv_srq& srq, ibv_event_type type) noexcept {
    raise(*srq.context, {{.srq = &srq}, type});
}

void raise_async_event(ibv_context& context, ibv_event_type type, int port) noexcept {
    raise(context, {{.port_num = port}, type});
}

void end_async_events(ibv_qp& qp) noexcept { end(qp, qp.events_completed); }
void end_async_events(ibv_cq& cq) noexcept { end(cq, cq.async_events_completed); }
void end_async_events(ibv_srq& srq) noexcept { end(srq, srq.events_completed); }

}  // namespace millrace::soft
