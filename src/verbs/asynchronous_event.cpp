// Waiting for asynchronous events, always with an end.
#include "millrace/verbs/asynchronous_event.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace millrace::verbs {
namespace {

AsynchronousEvent described(const ibv_async_event& event) noexcept {
    AsynchronousEvent result{.type = event.event_type};
    switch (event.event_type) {
        case IBV_EVENT_CQ_ERR: result.completion_queue = event.element.cq; break;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED: result.shared_receives = event.element.srq; break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_COMM_EST: result.queue_pair = event.element.qp; break;
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_LID_CHANGE:
        case IBV_EVENT_PKEY_CHANGE:
        case IBV_EVENT_SM_CHANGE:
        case IBV_EVENT_CLIENT_REREGISTER:
        case IBV_EVENT_GID_CHANGE: result.port = event.element.port_num; break;
        default: break;  // of the device, or of what is not made here
    }
    return result;
}

}  // namespace

std::optional<AsynchronousEvent> wait_for_event(const Context& context,
                                                std::chrono::nanoseconds limit) noexcept {
    using namespace std::chrono;
    const int descriptor = context.raw()->async_fd;
    // A descriptor may be readable without an event, or another thread may have been faster.
    if (const int flags = fcntl(descriptor, F_GETFL);
        flags < 0 ||
        ((flags & O_NONBLOCK) == 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0)) {
        return std::nullopt;
    }
    const auto until =
        steady_clock::now() + std::clamp<nanoseconds>(limit, nanoseconds{0}, hours{1});
    for (;;) {
        const nanoseconds left = std::max<nanoseconds>(until - steady_clock::now(), nanoseconds{0});
        const timespec time{.tv_sec = duration_cast<seconds>(left).count(),
                            .tv_nsec = (left % seconds{1}).count()};
        pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
        const int ready = ppoll(&entry, 1, &time, nullptr);
        if (ready < 0 && errno != EINTR) return std::nullopt;
        ibv_async_event event{};
        if (ready > 0 && context.control_path().get_async_event(context.raw(), &event) == 0) {
            const AsynchronousEvent result = described(event);
            context.control_path().ack_async_event(&event);
            return result;
        }
        if (left == nanoseconds{0}) return std::nullopt;
    }
}

}  // namespace millrace::verbs
