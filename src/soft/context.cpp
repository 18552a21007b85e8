#include "context.hpp"

#include <pthread.h>

#include <cstdint>

namespace millrace::soft {
namespace {

void raise(ibv_context& context, ibv_async_event& event, ibv_event_type type) noexcept {
    event.event_type = type;
    context_of(&context)->events->raise(event);
}

template <class Object>
void wait_for_acknowledgements(Object& object, const std::uint32_t& completed) noexcept {
    const unsigned taken = context_of(object.context)->events->end(&object);
    pthread_mutex_lock(&object.mutex);
    while (completed != taken) pthread_cond_wait(&object.cond, &object.mutex);
    pthread_mutex_unlock(&object.mutex);
}

}  // namespace

void raise_async_event(ibv_qp& qp, ibv_event_type type) noexcept {
    ibv_async_event event{};
    event.element.qp = &qp;
    raise(*qp.context, event, type);
}

void raise_async_event(ibv_cq& cq, ibv_event_type type) noexcept {
    ibv_async_event event{};
    event.element.cq = &cq;
    raise(*cq.context, event, type);
}

void raise_async_event(ibv_srq& srq, ibv_event_type type) noexcept {
    ibv_async_event event{};
    event.element.srq = &srq;
    raise(*srq.context, event, type);
}

void raise_async_event(ibv_context& context, ibv_event_type type, int port) noexcept {
    ibv_async_event event{};
    event.element.port_num = port;
    raise(context, event, type);
}

void end_async_events(ibv_qp& qp) noexcept { wait_for_acknowledgements(qp, qp.events_completed); }

void end_async_events(ibv_cq& cq) noexcept {
    wait_for_acknowledgements(cq, cq.async_events_completed);
}

void end_async_events(ibv_srq& srq) noexcept {
    wait_for_acknowledgements(srq, srq.events_completed);
}

}  // namespace millrace::soft
