// Whether the pages of a peer are there, so that a process_vm_* call copies them without waiting
// for anybody. Asked by PeerNode before each such call; thread-safe.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "system/descriptor.hpp"

namespace millrace::soft {

class RemotePages {
  public:
    /// False: whoever touches them now waits until their owner, its file server or the swap device
    /// brings them. True also where it cannot be told. A page that was there is believed to be
    /// there for some 10 ms.
    [[nodiscard]] bool there(pid_t pid, std::uint64_t address, std::size_t bytes) noexcept;

  private:
    /// Looks at pages from `first` on: `needed`, and some more to know of them.
    [[nodiscard]] bool ask(pid_t pid, std::uint64_t first, std::uint64_t needed) noexcept;
    [[nodiscard]] int map_of_pages(pid_t pid) noexcept;
    [[nodiscard]] std::atomic<std::uint64_t>& place_of(std::uint64_t page) noexcept {
        return known_[page % known_.size()];
    }

    /// Pages that are there, and when they were. Whoever writes last is right.
    std::array<std::atomic<std::uint64_t>, 1024> known_{};
    std::mutex mutex_;
    Descriptor descriptor_;
    std::atomic<int> opened_{-1};
    bool tried_ = false;
};

}  // namespace millrace::soft
