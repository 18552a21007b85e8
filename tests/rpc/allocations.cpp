// The program's operators new and delete, which count, and fail once if they are asked to.
#include "rpc/allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t count = 0;
thread_local bool is_to_fail = false;
thread_local std::uint64_t fails_behind = 0;

void* allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) noexcept {
    ++count;
    return std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
}
void* allocate_or_throw(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
    const bool fails = is_to_fail && fails_behind-- == 0;
    if (fails) is_to_fail = false;
    void* const memory = fails ? nullptr : allocate(size, alignment);
    if (memory == nullptr) throw std::bad_alloc{};
    return memory;
}
}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size); }
void* operator new[](std::size_t size) { return allocate_or_throw(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
    return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
    return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace millrace::rpc {
std::uint64_t allocations() noexcept { return count; }
FailingAllocation::FailingAllocation(std::uint64_t others) noexcept {
    is_to_fail = true;
    fails_behind = others;
}
FailingAllocation::~FailingAllocation() { is_to_fail = false; }
bool FailingAllocation::has_failed() const noexcept { return !is_to_fail; }
}  // namespace millrace::rpc
