// A program's plain memory made shared, so that peers store to it directly: where MILLRACE_REMAP=1
// asks for it. Called when memory is registered. docs/soft/memory.md has what it costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "system/descriptor.hpp"

namespace millrace::soft {

/// Whole pages of private anonymous memory that lie in a memfd of ours while this lives. What other
/// threads write to them while they are moved, in either direction, may be lost.
class RemappedMemory {
  public:
    /// Moves [address, address + length), or finds where it was moved before. nullptr: the
    /// environment does not ask for it (looked at once), it is not whole pages of such memory, or
    /// the system refused, which is said once; the memory is as it was.
    [[nodiscard]] static std::shared_ptr<RemappedMemory> of(void* address,
                                                            std::size_t length) noexcept;

    ~RemappedMemory();
    RemappedMemory(const RemappedMemory&) = delete;
    RemappedMemory& operator=(const RemappedMemory&) = delete;

  private:
    RemappedMemory() noexcept = default;
    void move_back() const noexcept;

    std::uintptr_t begin_ = 0;
    std::size_t size_ = 0;
    Descriptor file_;
};

}  // namespace millrace::soft
