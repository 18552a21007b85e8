// Protection domains: what registers memory and creates queue pairs, and what it says when the
// device or the system's limits do not allow it.
#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "failure.hpp"
#include "kept.hpp"
#include "millrace/base/log.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/shared_receive_queue.hpp"
#include "parents_objects.hpp"
#include "registration_remedy.hpp"

namespace millrace::verbs {
namespace {

// The first limit of the device that the options exceed.
std::string creation_remedy(const ControlPath& path, ibv_context* context,
                            const QueuePairOptions& options) {
    ibv_device_attr limits{};
    if (path.query_device(context, &limits) != 0) return {};
    const auto beyond = [](std::uint32_t wish, int limit) {
        return limit >= 0 && wish > static_cast<std::uint32_t>(limit);
    };
    if (beyond(options.max_send_requests, limits.max_qp_wr) ||
        beyond(options.max_receive_requests, limits.max_qp_wr)) {
        return fmt::format("the device allows {} work requests per queue", limits.max_qp_wr);
    }
    if (beyond(options.max_send_slices, limits.max_sge) ||
        beyond(options.max_receive_slices, limits.max_sge)) {
        return fmt::format("the device allows {} slices per work request", limits.max_sge);
    }
    return fmt::format(
        "{} bytes inline may be too many for this device, or its {} queue pairs are in use",
        options.max_inline, limits.max_qp);
}

}  // namespace

ProtectionDomain::ProtectionDomain(ProtectionDomain&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)},
      path_{other.path_},
      slabs_{std::move(other.slabs_)} {}

ProtectionDomain& ProtectionDomain::operator=(ProtectionDomain&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    std::swap(slabs_, other.slabs_);
    return *this;
}

ProtectionDomain::~ProtectionDomain() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = path_->dealloc_pd(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs",
                  "free a protection domain: {}; regions or queue pairs of it still exist",
                  base::describe_errno(error));
        keep(raw_->context, [raw = raw_, path = path_] { return path->dealloc_pd(raw) == 0; });
    }
}

MemoryRegion ProtectionDomain::register_memory(std::span<std::byte> memory, Access access) {
    try_kept();
    errno = 0;
    ibv_mr* raw = path_->reg_mr(raw_, memory.data(), memory.size(),
                                reinterpret_cast<std::uint64_t>(memory.data()),
                                static_cast<unsigned>(access));
    if (raw == nullptr) {
        const int error = errno != 0 ? errno : EIO;
        base::throw_errno(
            error, "register memory",
            fmt::format("{} bytes at {} on {}", memory.size(),
                        static_cast<const void*>(memory.data()), raw_->context->device->name),
            registration_remedy(error));
    }
    return MemoryRegion{raw, *path_};
}

RegisteredBuffer ProtectionDomain::registered(Buffer buffer, Access access) {
    MemoryRegion region = register_memory(buffer.bytes(), access);
    return RegisteredBuffer{std::move(buffer), std::move(region)};
}

RegisteredBuffer ProtectionDomain::allocate(std::size_t size, Access access, bool huge_pages) {
    return registered(huge_pages ? Buffer{size, true} : Buffer::of_slab(*slabs_, size, false),
                      access);
}

RegisteredBuffer ProtectionDomain::allocate_packed(std::size_t size, Access access) {
    return registered(Buffer::of_slab(*slabs_, size, true), access);
}

QueuePair ProtectionDomain::create_queue_pair(const QueuePairOptions& options) {
    const std::string object = fmt::format(
        "{} sends of {} slices, {} receives of {} slices, {} bytes inline on {}",
        options.max_send_requests, options.max_send_slices, options.max_receive_requests,
        options.max_receive_slices, options.max_inline, raw_->context->device->name);
    if (options.send_queue == nullptr || options.receive_queue == nullptr) {
        throw base::Error(base::ErrorCode::invalid_argument, "create a queue pair", object,
                          "it has no completion queue", "set send_queue and receive_queue");
    }
    ibv_qp_init_attr attributes{};
    attributes.qp_type = options.type;
    attributes.send_cq = options.send_queue->raw();
    attributes.recv_cq = options.receive_queue->raw();
    attributes.cap.max_send_wr = options.max_send_requests;
    attributes.cap.max_recv_wr = options.max_receive_requests;
    attributes.cap.max_send_sge = options.max_send_slices;
    attributes.cap.max_recv_sge = options.max_receive_slices;
    attributes.cap.max_inline_data = options.max_inline;
    attributes.sq_sig_all = options.signal_all ? 1 : 0;
    if (options.shared_receives != nullptr) attributes.srq = options.shared_receives->raw();
    errno = 0;
    ibv_qp* raw = path_->create_qp(raw_, &attributes);
    if (raw == nullptr) {
        const int error = errno != 0 ? errno : EIO;
        base::throw_errno(error, "create a queue pair", object,
                          creation_remedy(*path_, raw_->context, options));
    }
    return QueuePair{raw, *path_, attributes.cap};
}

}  // namespace millrace::verbs
