// A piece of a file mapped shared into this process, or memory of its own, unmapped by its one
// owner. Used throughout the fabric.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace millrace::soft {

class Mapping {
  public:
    Mapping() noexcept = default;
    /// Empty, with errno set, if it cannot be mapped. `offset` must be page aligned. `flags`:
    /// besides MAP_SHARED.
    Mapping(int descriptor, std::uint64_t offset, std::size_t size, int protection,
            int flags = 0) noexcept {
        void* memory = ::mmap(nullptr, size, protection, MAP_SHARED | flags, descriptor,
                              static_cast<off_t>(offset));
        if (memory == MAP_FAILED) return;
        memory_ = static_cast<std::byte*>(memory);
        size_ = size;
    }
    /// Memory of this process alone, zeroed, used as far as it is written. Empty with errno.
    [[nodiscard]] static Mapping of_own_memory(std::size_t size) noexcept {
        Mapping made;
        void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return made;
        made.memory_ = static_cast<std::byte*>(memory);
        made.size_ = size;
        return made;
    }
    Mapping(Mapping&& other) noexcept
        : memory_{std::exchange(other.memory_, nullptr)}, size_{std::exchange(other.size_, 0)} {}
    Mapping& operator=(Mapping&& other) noexcept {
        if (this != &other) {
            unmap();
            memory_ = std::exchange(other.memory_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() { unmap(); }

    [[nodiscard]] std::byte* memory() const noexcept { return memory_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    explicit operator bool() const noexcept { return memory_ != nullptr; }

    /// Gives up ownership: the caller unmaps.
    std::byte* release() noexcept { return std::exchange(memory_, nullptr); }
    void unmap() noexcept {
        if (memory_ != nullptr) ::munmap(std::exchange(memory_, nullptr), size_);
    }

  private:
    std::byte* memory_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace millrace::soft
