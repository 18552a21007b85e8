// Memory regions of the soft device. docs/soft/fences.md.
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "copy_service/copy_service.hpp"
#include "fabric/node.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/device.hpp"
#include "objects/device_memory.hpp"
#include "objects/opened_device.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "regions/remapped_memory.hpp"
#include "system/refused.hpp"

namespace millrace::soft {

namespace {

/// A registration as the program sees it.
void describe(MemoryRegion& region) noexcept {
    const Registration& registration = *region.registration;
    region.handle = registration.handle;
    region.lkey = registration.key;
    region.rkey = registration.key;
}

/// Brings what the node made into the registration.
void take_over(Registration& registration, const LocalRegion& made, Process& process) noexcept {
    registration.key = made.key;
    registration.iova = made.iova;
    registration.length = made.length;
    registration.access = made.access;
    registration.number = process.next_registration();
}

/// Peers that may not copy it themselves are to be served from now on.
void tell_copies(Process& process, std::uint32_t key) noexcept {
    const RegionEntry* const entry = process.node().regions().valid(key);
    if (entry != nullptr && static_cast<RegionKind>(entry->kind) == RegionKind::private_memory) {
        process.copies().need_thread();
    }
}

/// Ends what nobody knows of yet.
void give_back(Process& process, std::uint32_t key) noexcept {
    if (key == 0) return;
    process.node().regions().invalidate(key);
    process.node().regions().release(key);
}

/// A handle of the registration. Null with errno.
[[nodiscard]] MemoryRegion* make_handle(ibv_pd* pd,
                                        std::shared_ptr<Registration> registration) noexcept {
    auto* const region = new (std::nothrow) MemoryRegion{};
    if (region == nullptr) return refused(ENOMEM);
    region->context = pd->context;
    region->pd = pd;
    region->registration = std::move(registration);
    region->length = region->registration->length;
    describe(*region);
    hold(pd);
    context_of(pd->context)->users.fetch_add(1);
    return region;
}

/// Makes a region of what `add` registers in the domain; nullptr with errno.
template <class Add>
[[nodiscard]] MemoryRegion* make_region(ibv_pd* pd, const Add& add) noexcept {
    if (!usable(pd)) return refused(EINVAL);
    Context* const owner = context_of(pd->context);
    Process& process = *owner->process;
    const auto& domain = static_cast<ProtectionDomain*>(pd)->domain;
    LocalRegion made;
    try {
        auto registration = std::make_shared<Registration>();
        registration->domain = domain;
        if (const int error = add(process.node(), domain->number, made); error != 0)
            return refused(error);
        take_over(*registration, made, process);
        owner->opened->registrations.add(registration, index_of_key(made.key));
        if (MemoryRegion* const region = make_handle(pd, registration)) {
            domain->users.enter();
            tell_copies(process, made.key);
            return region;
        }
        owner->opened->registrations.forget(*registration);
    } catch (const std::exception&) {
    }
    give_back(process, made.key);
    return refused(ENOMEM);
}

[[nodiscard]] int refuse_rereg(int error) noexcept {
    errno = error;
    return IBV_REREG_MR_ERR_INPUT;  // the region stays as it was
}

}  // namespace

ibv_mr* register_memory(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                        unsigned access) noexcept {
    if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
    auto remapped = RemappedMemory::of(address, length);
    MemoryRegion* const region =
        make_region(pd, [&](Node& node, std::uint32_t number, LocalRegion& made) {
            return node.regions().add(address, length, iova, access, number, made);
        });
    if (region == nullptr) return nullptr;
    region->addr = address;
    region->registration->remapped = std::move(remapped);
    return region;
}

ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept {
    const base::Uncancelled held;
    MemoryRegion* const region =
        make_region(pd, [&](Node& node, std::uint32_t number, LocalRegion& made) {
            return node.regions().add_nothing(number, made);
        });
    if (region == nullptr) return nullptr;
    region->registration->plain = false;
    return region;
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* public_memory, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept {
    const base::Uncancelled held;
    const auto& memory = static_cast<DeviceMemory*>(public_memory)->bytes;
    if (!opened_together(public_memory->context, pd->context) || memory->users.ended() ||
        (access & IBV_ACCESS_ZERO_BASED) == 0 || offset > memory->length ||
        length > memory->length - offset) {
        return refused(EINVAL);
    }
    ibv_mr* const made = reg_mr(pd, memory->mapping.memory() + offset, length, 0, access);
    if (made == nullptr) return nullptr;
    auto* region = static_cast<MemoryRegion*>(made);
    region->addr = nullptr;  // it has none that a program may use
    region->registration->plain = false;
    region->registration->device_memory = memory;
    memory->users.enter();
    return region;
}

ibv_mr* import_mr(ibv_pd* pd, std::uint32_t handle) noexcept {
    const base::Uncancelled held;
    auto registration = context_of(pd->context)->opened->registrations.find(handle);
    if (registration == nullptr) return refused(ENOENT);
    return make_handle(pd, std::move(registration));
}

void unimport_mr(ibv_mr* mr) noexcept {
    const base::Uncancelled held;
    auto* const region = static_cast<MemoryRegion*>(mr);
    ibv_pd* const pd = region->pd;
    Context* const owner = context_of(region->context);
    delete region;
    drop(pd);
    release(owner);
}

int rereg_mr(ibv_mr* public_mr, int flags, ibv_pd* pd, void* address, std::size_t length,
             unsigned access) noexcept {
    const base::Uncancelled held;
    auto* region = static_cast<MemoryRegion*>(public_mr);
    Registration& registration = *region->registration;
    const bool new_place = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
    const bool new_pd = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
    const bool new_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
    if (registration.ended) return refuse_rereg(ENOENT);
    if (flags == 0 || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 || registration.invalid ||
        !registration.plain || (new_place && (address == nullptr || length == 0)) ||
        (new_pd &&
         (pd == nullptr || !usable(pd) || !opened_together(pd->context, region->context)))) {
        return refuse_rereg(EINVAL);
    }
    Context* const owner = context_of(region->context);
    Process& process = *owner->process;
    const auto domain = new_pd ? static_cast<ProtectionDomain*>(pd)->domain : registration.domain;
    std::uint64_t iova = registration.iova;
    if (new_place) {
        iova = reinterpret_cast<std::uintptr_t>(address);
    } else {
        // An imported handle has no address: the table has.
        const RegionEntry* const entry = process.node().regions().valid(registration.key);
        if (entry == nullptr) return refuse_rereg(EINVAL);
        address = reinterpret_cast<void*>(entry->address);
        length = registration.length;
    }
    if (!new_access) access = registration.access;
    if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
    if (process.windows().any_on(registration)) return refuse_rereg(EBUSY);
    auto remapped = new_place ? RemappedMemory::of(address, length) : registration.remapped;
    // The new one first: where it cannot be made, the old one is as it was.
    LocalRegion made;
    const std::uint32_t handle = registration.handle;
    try {
        const int error =
            process.node().regions().add(address, length, iova, access, domain->number, made);
        if (error != 0) return refuse_rereg(error);
        owner->opened->registrations.add(region->registration, index_of_key(made.key));
    } catch (const std::exception&) {
        give_back(process, made.key);
        return refuse_rereg(ENOMEM);
    }
    owner->opened->registrations.forget(registration, handle);
    if (end_registration(process, registration) != 0) {
        // As a device's failure in the middle: neither the old one nor the new one is valid, and
        // dereg_mr is what can be done with it.
        owner->opened->registrations.forget(registration);
        give_back(process, made.key);
        base::log_line(base::LogLevel::warn, "soft",
                       "re-register memory: a stopped process may still be copying from or to it; "
                       "the memory must not be reused until ibv_dereg_mr succeeds");
        errno = EBUSY;
        return IBV_REREG_MR_ERR_CMD;
    }
    registration.invalid = registration.ended = false;
    registration.domain = domain;
    domain->users.enter();
    registration.remapped = std::move(remapped);
    take_over(registration, made, process);
    if (new_pd) {
        hold(pd);
        drop(std::exchange(region->pd, pd));
    }
    if (new_place) region->addr = address;
    region->length = length;
    describe(*region);
    tell_copies(process, made.key);
    return 0;
}

int deregister_memory(ibv_mr* public_mr) noexcept {
    auto* const region = static_cast<MemoryRegion*>(public_mr);
    Registration& registration = *region->registration;
    if (registration.ended) return ENOENT;
    Context& owner = *context_of(region->context);
    Process& process = *owner.process;
    const bool again = registration.invalid;
    if (!again && process.windows().any_on(registration)) {
        base::log_line(
            base::LogLevel::warn, "soft",
            "deregister memory: memory windows are bound to it; invalidate or free them first");
        return EBUSY;
    }
    if (!again && owner.mode.kind == ModeKind::strict)
        process.queue_pairs().tell_of_requests_with(registration.key);
    owner.opened->registrations.forget(registration);
    const int error = end_registration(process, registration);
    if (error == EBUSY) {
        base::log(again ? base::LogLevel::debug : base::LogLevel::warn, "soft",
                  "deregister {} bytes at {}: a stopped process may still be copying; the memory "
                  "must not be reused until ibv_dereg_mr succeeds",
                  region->length, region->addr);
    }
    if (error != 0) return error;
    unimport_mr(region);
    return 0;
}

}  // namespace millrace::soft
