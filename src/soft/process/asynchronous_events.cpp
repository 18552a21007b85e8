#include "process/asynchronous_events.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "completion/ringing.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] const void* address_of(const ibv_async_event& event) noexcept {
    switch (element_of(event.event_type)) {
        case Element::qp: return event.element.qp;
        case Element::cq: return event.element.cq;
        case Element::srq: return event.element.srq;
        case Element::none: break;
    }
    return nullptr;
}

}  // namespace

Element element_of(ibv_event_type type) noexcept {
    switch (type) {
        case IBV_EVENT_CQ_ERR: return Element::cq;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED: return Element::qp;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED: return Element::srq;
        default: return Element::none;
    }
}

AsynchronousEvents::AsynchronousEvents() : epoll_{epoll_create1(EPOLL_CLOEXEC)} {
    if (epoll_) queued_ = Descriptor{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (queued_) bell_ = new_bell();
    const auto watch = [this](int descriptor) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = descriptor;
        return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
    };
    if (!bell_ || !watch(queued_.get()) || !watch(bell_.get())) {
        base::throw_errno(errno, "open the soft device", "its descriptor for asynchronous events");
    }
}

void AsynchronousEvents::ring() noexcept { ring_bell(bell_.get()); }

void AsynchronousEvents::raise(const ibv_async_event& event) noexcept {
    const std::lock_guard guard{mutex_};
    if (closed_) return;
    try {
        events_.push_back(event);
    } catch (const std::bad_alloc&) {
        return;
    }
    if (events_.size() == 1) show();
}

void AsynchronousEvents::show() noexcept {
    const base::Uncancelled held;
    base::count_system_call();
    [[maybe_unused]] const int written = eventfd_write(queued_.get(), 1);
}

void AsynchronousEvents::hide() noexcept {
    const base::Uncancelled held;
    eventfd_t count = 0;
    base::count_system_call();
    [[maybe_unused]] const int got = eventfd_read(queued_.get(), &count);
}

bool AsynchronousEvents::take(ibv_async_event& event) noexcept {
    const std::lock_guard guard{mutex_};
    if (events_.empty()) return false;
    const void* const element = address_of(events_.front());
    if (element != nullptr) {
        try {
            ++taken_[element];
        } catch (const std::bad_alloc&) {
            return false;  // it waits for better times
        }
    }
    event = events_.front();
    events_.pop_front();
    if (events_.empty()) hide();
    return true;
}

unsigned AsynchronousEvents::end(const void* element) noexcept {
    const std::lock_guard guard{mutex_};
    std::erase_if(events_,
                  [element](const ibv_async_event& event) { return address_of(event) == element; });
    if (events_.empty()) hide();
    const auto found = taken_.find(element);
    if (found == taken_.end()) return 0;
    const unsigned taken = found->second;
    taken_.erase(found);
    return taken;
}

void AsynchronousEvents::close() noexcept {
    const std::lock_guard guard{mutex_};
    closed_ = true;
    events_.clear();
    epoll_.close();
}

}  // namespace millrace::soft
