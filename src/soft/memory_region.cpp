// Memory regions of the soft device. docs/soft-device.md, "Fences".
#include <cerrno>
#include <new>

#include "context.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/device.hpp"

namespace millrace::soft {

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
               unsigned access) noexcept {
    Context* const owner = context_of(pd->context);
    Process& process = *owner->process;
    std::unique_ptr<MemoryRegion> region{new (std::nothrow) MemoryRegion{}};
    if (region == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    LocalRegion made;
    int error = 0;
    try {
        error = process.node().add_region(address, length, iova, access,
                                          static_cast<ProtectionDomain*>(pd)->number, made);
    } catch (const std::exception&) {
        error = ENOMEM;
    }
    if (error != 0) {
        errno = error;
        return nullptr;
    }
    region->context = pd->context;
    region->pd = pd;
    region->addr = address;
    region->length = length;
    region->handle = made.key >> 8;
    region->lkey = made.key;
    region->rkey = made.key;
    region->registration = process.next_registration();
    static_cast<ProtectionDomain*>(pd)->users.fetch_add(1);
    owner->users.fetch_add(1);
    return region.release();
}

int dereg_mr(ibv_mr* public_mr) noexcept {
    auto* region = static_cast<MemoryRegion*>(public_mr);
    Context* const owner = context_of(region->context);
    Process& process = *owner->process;
    const bool again = region->invalid;
    if (!again) process.node().invalidate_region(region->lkey);
    region->invalid = true;
    bool free = false;
    try {
        free = process.fence_region(region->registration);
    } catch (const std::bad_alloc&) {
        return ENOMEM;  // still invalid: to be asked again
    }
    if (!free) {
        base::log(again ? base::LogLevel::debug : base::LogLevel::warn, "soft",
                  "deregister {} bytes at {}: a stopped process may still be copying; the memory "
                  "must not be reused until ibv_dereg_mr succeeds",
                  region->length, region->addr);
        return EBUSY;
    }
    process.node().release_region(region->lkey, false);
    static_cast<ProtectionDomain*>(region->pd)->users.fetch_sub(1);
    release(owner);
    delete region;
    return 0;
}

}  // namespace millrace::soft
