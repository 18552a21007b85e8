// Shared receive queues: created by a protection domain, with a limit that can be armed.
#include "millrace/verbs/shared_receive_queue.hpp"

#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "failure.hpp"
#include "millrace/base/log.hpp"
#include "millrace/verbs/memory.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {

SharedReceiveQueue::SharedReceiveQueue(SharedReceiveQueue&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_}, capacity_{other.capacity_} {}

SharedReceiveQueue& SharedReceiveQueue::operator=(SharedReceiveQueue&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    std::swap(capacity_, other.capacity_);
    return *this;
}

SharedReceiveQueue::~SharedReceiveQueue() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = path_->destroy_srq(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs",
                  "destroy a shared receive queue: {}; queue pairs that use it still exist",
                  base::describe_errno(error));
    }
}

void SharedReceiveQueue::arm_limit(std::uint32_t limit) {
    ibv_srq_attr attributes{};
    attributes.srq_limit = limit;
    errno = 0;
    if (const int error = path_->modify_srq(raw_, &attributes, IBV_SRQ_LIMIT); error != 0) {
        base::throw_errno(error > 0 ? error : (errno != 0 ? errno : EIO),
                          "arm the limit of a shared receive queue",
                          fmt::format("limit {} of {} receives on {}", limit, capacity_,
                                      raw_->context->device->name),
                          "choose a limit that the queue has room for");
    }
}

std::uint32_t SharedReceiveQueue::armed_limit() const {
    ibv_srq_attr attributes{};
    errno = 0;
    if (const int error = path_->query_srq(raw_, &attributes); error != 0) {
        base::throw_errno(error > 0 ? error : (errno != 0 ? errno : EIO),
                          "query a shared receive queue",
                          fmt::format("{} receives on {}", capacity_, raw_->context->device->name));
    }
    return attributes.srq_limit;
}

SharedReceiveQueue ProtectionDomain::create_shared_receive_queue(
    const SharedReceiveOptions& options) {
    ibv_srq_init_attr attributes{};
    attributes.attr.max_wr = options.max_requests;
    attributes.attr.max_sge = options.max_slices;
    errno = 0;
    ibv_srq* const raw = path_->create_srq(raw_, &attributes);
    if (raw == nullptr) {
        const int error = errno != 0 ? errno : EIO;
        ibv_device_attr limits{};
        const bool known = path_->query_device(raw_->context, &limits) == 0;
        base::throw_errno(
            error, "create a shared receive queue",
            fmt::format("{} receives of {} slices on {}", options.max_requests, options.max_slices,
                        raw_->context->device->name),
            known ? fmt::format("the device allows {} queues of {} receives of {} slices",
                                limits.max_srq, limits.max_srq_wr, limits.max_srq_sge)
                  : std::string{});
    }
    return SharedReceiveQueue{raw, *path_, attributes.attr.max_wr};
}

}  // namespace millrace::verbs
