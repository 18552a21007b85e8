// Implementation of device_memory.hpp.
#include "device_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "context.hpp"
#include "layout.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] bool within(const DeviceMemory& memory, std::uint64_t offset,
                          std::size_t length) noexcept {
    return offset <= memory.length && length <= memory.length - offset;
}

int copy_to(ibv_dm* to, std::uint64_t offset, const void* from, std::size_t length) noexcept {
    const auto& memory = *static_cast<DeviceMemory*>(to);
    if (!within(memory, offset, length)) return EINVAL;
    std::memcpy(memory.memory + offset, from, length);
    return 0;
}

int copy_from(void* to, ibv_dm* from, std::uint64_t offset, std::size_t length) noexcept {
    const auto& memory = *static_cast<DeviceMemory*>(from);
    if (!within(memory, offset, length)) return EINVAL;
    std::memcpy(to, memory.memory + offset, length);
    return 0;
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) noexcept {
    constexpr std::uint32_t largest_alignment = 12;  // of a page, as its logarithm
    if (attributes->comp_mask != 0 || attributes->length == 0 ||
        attributes->length > max_device_memory || attributes->log_align_req > largest_alignment) {
        errno = EINVAL;
        return nullptr;
    }
    std::unique_ptr<DeviceMemory> made{new (std::nothrow) DeviceMemory{}};
    if (made == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    const std::size_t bytes = (attributes->length + page_size - 1) / page_size * page_size;
    made->file =
        Descriptor{::memfd_create("millrace-device-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    // Allocated here, where a lack of memory is an error and not a signal later.
    if (!made->file || ::ftruncate(made->file.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fallocate(made->file.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(made->file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return nullptr;
    }
    made->mapping = Mapping{made->file.get(), 0, bytes, PROT_READ | PROT_WRITE};
    if (!made->mapping) return nullptr;
    made->context = context;
    made->memcpy_to_dm = copy_to;
    made->memcpy_from_dm = copy_from;
    made->memory = made->mapping.memory();
    made->length = attributes->length;
    made->owner = context_of(context);
    made->owner->users.fetch_add(1);
    return made.release();
}

int free_dm(ibv_dm* public_memory) noexcept {
    auto* memory = static_cast<DeviceMemory*>(public_memory);
    if (memory->users.load() != 0) return EBUSY;
    Context* const owner = memory->owner;
    delete memory;
    release(owner);
    return 0;
}

}  // namespace millrace::soft
