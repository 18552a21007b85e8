#include "objects/device_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "layout/layout.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "objects/opened_device.hpp"
#include "process/context.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] bool within(const DeviceBytes& memory, std::uint64_t offset,
                          std::size_t length) noexcept {
    return offset <= memory.length && length <= memory.length - offset;
}

int copy_to(ibv_dm* to, std::uint64_t offset, const void* from, std::size_t length) noexcept {
    const DeviceBytes& memory = *static_cast<DeviceMemory*>(to)->bytes;
    if (!within(memory, offset, length)) return EINVAL;
    std::memcpy(memory.mapping.memory() + offset, from, length);
    return 0;
}

int copy_from(void* to, ibv_dm* from, std::uint64_t offset, std::size_t length) noexcept {
    const DeviceBytes& memory = *static_cast<DeviceMemory*>(from)->bytes;
    if (!within(memory, offset, length)) return EINVAL;
    std::memcpy(to, memory.mapping.memory() + offset, length);
    return 0;
}

/// A handle of them, in `context`. Null with errno.
[[nodiscard]] ibv_dm* make_handle(ibv_context* context,
                                  std::shared_ptr<DeviceBytes> bytes) noexcept {
    auto* const made = new (std::nothrow) DeviceMemory{};
    if (made == nullptr) return refused(ENOMEM);
    made->context = context;
    made->handle = bytes->handle;
    made->memcpy_to_dm = copy_to;
    made->memcpy_from_dm = copy_from;
    made->bytes = std::move(bytes);
    context_of(context)->users.fetch_add(1);
    return made;
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) noexcept {
    const base::Uncancelled held;
    constexpr std::uint32_t largest_alignment = 12;  // of a page, as its logarithm
    if (attributes->comp_mask != 0 || attributes->length == 0 ||
        attributes->length > max_device_memory || attributes->log_align_req > largest_alignment) {
        return refused(EINVAL);
    }
    OpenedDevice& opened = *context_of(context)->opened;
    try {
        auto bytes = std::make_shared<DeviceBytes>();
        const std::size_t whole = (attributes->length + page_size - 1) / page_size * page_size;
        bytes->file =
            Descriptor{::memfd_create("millrace-device-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
        const int file = bytes->file.get();
        // Allocated here, where a lack of memory is an error and not a signal later.
        if (file < 0 || ::ftruncate(file, static_cast<off_t>(whole)) != 0 ||
            ::fallocate(file, 0, 0, static_cast<off_t>(whole)) != 0 ||
            ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
            return nullptr;
        }
        bytes->mapping = Mapping{file, 0, whole, PROT_READ | PROT_WRITE};
        if (!bytes->mapping) return nullptr;
        bytes->length = attributes->length;
        opened.memories.add(bytes);
        ibv_dm* const made = make_handle(context, bytes);
        if (made == nullptr) opened.memories.forget(*bytes);
        return made;
    } catch (const std::bad_alloc&) {
        return refused(ENOMEM);
    }
}

int free_dm(ibv_dm* memory) noexcept {
    const base::Uncancelled held;
    DeviceBytes& bytes = *static_cast<DeviceMemory*>(memory)->bytes;
    if (const int error = bytes.users.end(); error != 0) return error;
    context_of(memory->context)->opened->memories.forget(bytes);
    unimport_dm(memory);
    return 0;
}

ibv_dm* import_dm(ibv_context* context, std::uint32_t handle) noexcept {
    const base::Uncancelled held;
    auto bytes = context_of(context)->opened->memories.find(handle);
    if (bytes == nullptr) return refused(ENOENT);
    return make_handle(context, std::move(bytes));
}

void unimport_dm(ibv_dm* public_memory) noexcept {
    const base::Uncancelled held;
    auto* const memory = static_cast<DeviceMemory*>(public_memory);
    Context* const owner = context_of(memory->context);
    delete memory;
    release(owner);
}

}  // namespace millrace::soft
