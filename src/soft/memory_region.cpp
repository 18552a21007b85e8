// Memory regions of the soft device. docs/soft-device.md, "Fences".
#include <cerrno>
#include <cstdint>
#include <new>

#include "context.hpp"
#include "control_calls.hpp"
#include "device_memory.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/device.hpp"
#include "remapped_memory.hpp"

namespace millrace::soft {

namespace {

/// Brings a registration into the form that the program sees.
void describe(MemoryRegion& region, const LocalRegion& made, std::uint64_t registration) noexcept {
    region.handle = made.key >> 8;
    region.lkey = made.key;
    region.rkey = made.key;
    region.iova = made.iova;
    region.access = made.access;
    region.registration = registration;
}

/// Peers that may not copy it themselves are to be served from now on.
void tell_copies(Process& process, std::uint32_t key) noexcept {
    const RegionEntry* const entry = process.node().local_region(key);
    if (entry != nullptr && static_cast<RegionKind>(entry->kind) == RegionKind::private_memory) {
        process.copies().need_thread();
    }
}

/// Makes a region of what `add` registers; nullptr with errno.
template <class Add>
[[nodiscard]] MemoryRegion* make_region(ibv_pd* pd, const Add& add) noexcept {
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
        error = add(process.node(), static_cast<ProtectionDomain*>(pd)->number, made);
    } catch (const std::exception&) {
        error = ENOMEM;
    }
    if (error != 0) {
        errno = error;
        return nullptr;
    }
    region->context = pd->context;
    region->pd = pd;
    describe(*region, made, process.next_registration());
    tell_copies(process, made.key);
    static_cast<ProtectionDomain*>(pd)->users.fetch_add(1);
    owner->users.fetch_add(1);
    return region.release();
}

/// Where it is asked for and can be done.
[[nodiscard]] std::shared_ptr<RemappedMemory> remap(void* address, std::size_t length) noexcept {
    if (!RemappedMemory::wanted()) return nullptr;
    try {
        return RemappedMemory::of(address, length);
    } catch (const std::exception&) {
        return nullptr;
    }
}

[[nodiscard]] int refuse_rereg(int error) noexcept {
    errno = error;
    return IBV_REREG_MR_ERR_INPUT;  // the region stays as it was
}

}  // namespace

ibv_mr* register_memory(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                        unsigned access) noexcept {
    if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
    auto remapped = remap(address, length);
    MemoryRegion* const region =
        make_region(pd, [&](Node& node, std::uint32_t number, LocalRegion& made) {
            return node.add_region(address, length, iova, access, number, made);
        });
    if (region == nullptr) return nullptr;
    region->addr = address;
    region->length = length;
    region->remapped = std::move(remapped);
    return region;
}

ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept {
    MemoryRegion* const region =
        make_region(pd, [&](Node& node, std::uint32_t number, LocalRegion& made) {
            return node.add_nothing(number, made);
        });
    if (region == nullptr) return nullptr;
    region->addr = nullptr;
    region->length = ~std::size_t{0};
    region->plain = false;
    return region;
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* public_memory, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept {
    auto* memory = static_cast<DeviceMemory*>(public_memory);
    if (memory->context != pd->context || (access & IBV_ACCESS_ZERO_BASED) == 0 ||
        offset > memory->length || length > memory->length - offset) {
        errno = EINVAL;
        return nullptr;
    }
    ibv_mr* const made = reg_mr(pd, memory->memory + offset, length, 0, access);
    if (made == nullptr) return nullptr;
    auto* region = static_cast<MemoryRegion*>(made);
    region->addr = nullptr;  // it has none that a program may use
    region->plain = false;
    region->device_memory = memory;
    memory->users.fetch_add(1);
    return region;
}

int rereg_mr(ibv_mr* public_mr, int flags, ibv_pd* pd, void* address, std::size_t length,
             unsigned access) noexcept {
    auto* region = static_cast<MemoryRegion*>(public_mr);
    const bool new_place = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
    const bool new_pd = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
    const bool new_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
    if (flags == 0 || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 || region->invalid ||
        !region->plain || (new_place && (address == nullptr || length == 0)) ||
        (new_pd && (pd == nullptr || pd->context != region->context))) {
        return refuse_rereg(EINVAL);
    }
    if (!new_place) {
        address = region->addr;
        length = region->length;
    }
    if (!new_pd) pd = region->pd;
    if (!new_access) access = region->access;
    std::uint64_t iova = region->iova;
    if (new_place) iova = reinterpret_cast<std::uintptr_t>(address);
    if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
    Process& process = *context_of(region->context)->process;
    if (process.windows().any_on(*region)) return refuse_rereg(EBUSY);
    auto remapped = new_place ? remap(address, length) : region->remapped;
    // The new one first: where it cannot be made, the old one is as it was.
    LocalRegion made;
    try {
        const int error = process.node().add_region(
            address, length, iova, access, static_cast<ProtectionDomain*>(pd)->number, made);
        if (error != 0) return refuse_rereg(error);
    } catch (const std::exception&) {
        return refuse_rereg(ENOMEM);
    }
    process.node().invalidate_region(region->lkey);
    bool free = false;
    try {
        free = process.fence_region(region->registration);
    } catch (const std::exception&) {  // as if one were still in it
    }
    if (!free) {
        // As a device's failure in the middle: neither the old one nor the new one is valid, and
        // dereg_mr is what can be done with it.
        process.node().invalidate_region(made.key);
        process.node().release_region(made.key, false);
        region->invalid = true;
        base::log_line(base::LogLevel::warn, "soft",
                       "re-register memory: a stopped process may still be copying from or to it; "
                       "the memory must not be reused until ibv_dereg_mr succeeds");
        errno = EBUSY;
        return IBV_REREG_MR_ERR_CMD;
    }
    process.node().release_region(region->lkey, false);
    static_cast<ProtectionDomain*>(region->pd)->users.fetch_sub(1);
    static_cast<ProtectionDomain*>(pd)->users.fetch_add(1);
    region->pd = pd;
    region->addr = address;
    region->length = length;
    region->remapped = std::move(remapped);
    describe(*region, made, process.next_registration());
    tell_copies(process, made.key);
    return 0;
}

int deregister_memory(ibv_mr* public_mr) noexcept {
    auto* region = static_cast<MemoryRegion*>(public_mr);
    Context* const owner = context_of(region->context);
    Process& process = *owner->process;
    const bool again = region->invalid;
    if (!again && process.windows().any_on(*region)) {
        base::log_line(
            base::LogLevel::warn, "soft",
            "deregister memory: memory windows are bound to it; invalidate or free them first");
        return EBUSY;
    }
    if (!again) {
        if (owner->mode.kind == ModeKind::strict) process.tell_of_requests_with(region->lkey);
        process.node().invalidate_region(region->lkey);
    }
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
    if (region->device_memory != nullptr) region->device_memory->users.fetch_sub(1);
    release(owner);
    delete region;
    return 0;
}

}  // namespace millrace::soft
