// Whether the pages of a peer are there, so that a process_vm_* call copies them without waiting
// for anybody. Asked by PeerNode before each such call; thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "descriptor.hpp"

namespace millrace::soft {

class RemotePages {
  public:
    /// False: whoever touches them now waits until their owner, its file server or the swap device
    /// brings them. True also where it cannot be told. What is found of a single page is believed
    /// for some 10 ms.
    [[nodiscard]] bool there(pid_t pid, std::uint64_t address, std::size_t bytes) noexcept;

  private:
    [[nodiscard]] bool ask(pid_t pid, std::uint64_t first, std::uint64_t count) noexcept;
    [[nodiscard]] int map_of_pages(pid_t pid) noexcept;

    std::atomic<std::uint64_t> known_{0};  ///< a page that is there, and since when
    std::mutex mutex_;
    Descriptor descriptor_;
    std::atomic<int> opened_{-1};
    bool tried_ = false;
};

}  // namespace millrace::soft
