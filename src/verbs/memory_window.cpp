#include "millrace/verbs/memory_window.hpp"

#include <cerrno>
#include <utility>

#include "millrace/base/log.hpp"
#include "millrace/verbs/device.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {

bool has_windows(const Context& context) {
    constexpr unsigned of_type_2 =
        IBV_DEVICE_MEM_WINDOW_TYPE_2A | unsigned{IBV_DEVICE_MEM_WINDOW_TYPE_2B};
    return (context.attributes().device_cap_flags & of_type_2) != 0;
}

MemoryWindow MemoryWindow::allocate(ProtectionDomain& domain) {
    ibv_pd* const pd = domain.raw();
    errno = 0;
    // The inline ibv_alloc_mw calls what a device without windows may lack.
    ibv_mw* const made =
        pd->context->ops.alloc_mw == nullptr ? nullptr : ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    if (made != nullptr) return MemoryWindow{made};
    const int error = errno;
    if (pd->context->ops.alloc_mw == nullptr || error == EOPNOTSUPP || error == ENOSYS ||
        error == EINVAL) {
        throw base::Error{base::ErrorCode::unsupported, "allocate a memory window",
                          pd->context->device->name, "the device has none of type 2",
                          "give each peer a protection domain of its own, with regions of its own"};
    }
    base::throw_errno(error, "allocate a memory window", pd->context->device->name,
                      "deallocate windows that are not needed");
}

MemoryWindow::MemoryWindow(MemoryWindow&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, remote_{std::exchange(other.remote_, {})} {}

MemoryWindow& MemoryWindow::operator=(MemoryWindow&& other) noexcept {
    MemoryWindow taken{std::move(other)};
    std::swap(raw_, taken.raw_);
    std::swap(remote_, taken.remote_);
    return *this;
}

MemoryWindow::~MemoryWindow() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = ibv_dealloc_mw(raw_); error != 0) {
        base::log(base::LogLevel::error, "verbs", "deallocate a memory window: {}",
                  base::describe_errno(error));
    }
}

BindWindow MemoryWindow::show(const MemoryRegion& region, std::size_t offset, std::size_t length,
                              Access remote, std::uint64_t id, SendFlags flags) noexcept {
    remote_ = {reinterpret_cast<std::uint64_t>(region.data()) + offset, ibv_inc_rkey(remote_.rkey)};
    return {.id = id,
            .window = raw_,
            .key = remote_.rkey,
            .region = region.raw(),
            .address = remote_.address,
            .length = length,
            .remote = remote,
            .flags = flags};
}

}  // namespace millrace::verbs
