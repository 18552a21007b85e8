// Mutual exclusion of all processes that execute atomics on memory of one node which they cannot
// map. Called by executors, for such memory only: what is mapped takes the processor's own atomics.
//
// The lock is a record lock on the node's memory file, by open file description: the kernel gives
// it back when its holder ends, however that ends, and a child made by fork closes its descriptor.
#pragma once

#include <array>
#include <cstdint>

#include "system/spin_lock.hpp"

namespace millrace::soft {

class AtomicLocks {
  public:
    /// `file`: the node's memory, writable, open as long as this is used. Not owned.
    explicit AtomicLocks(int file) noexcept : file_{file} {}

    /// Takes the lock of the 8 bytes at `address` (in the node's process). False: somebody has held
    /// it for longer than one atomic takes. At most some 100 µs.
    [[nodiscard]] bool lock(std::uint64_t address) noexcept;
    void unlock(std::uint64_t address) noexcept;

  private:
    static constexpr std::size_t stripes = 16;
    [[nodiscard]] static std::size_t stripe_of(std::uint64_t address) noexcept {
        return address / 8 % stripes;
    }

    int file_;
    /// Record locks do not exclude the threads of one process from each other.
    std::array<SpinLock, stripes> here_;
};

}  // namespace millrace::soft
