// A lock between threads of one process, for the queues of the verbs objects: held for bounded
// work only. Spins, then yields, because on few cores the holder may not be running.
#pragma once

#include <sched.h>

#include <atomic>

#include "millrace/base/wait.hpp"

namespace millrace::soft {

/// Between two tries to take a lock that is held for bounded work; the first is number 0.
inline void wait_for_lock(unsigned tries) noexcept {
    if (tries < 100) {
        base::pause();
    } else {
        sched_yield();
        base::count_system_call();
    }
}

class SpinLock {
  public:
    void lock() noexcept {
        if (!locked_.exchange(true, std::memory_order_acquire)) [[likely]]
            return;
        lock_contended();
    }
    [[nodiscard]] bool try_lock() noexcept {
        return !locked_.load(std::memory_order_relaxed) &&
               !locked_.exchange(true, std::memory_order_acquire);
    }
    void unlock() noexcept { locked_.store(false, std::memory_order_release); }

  private:
    [[gnu::noinline, gnu::cold]] void lock_contended() noexcept {
        for (unsigned tries = 0;; ++tries) {
            if (!locked_.load(std::memory_order_relaxed) &&
                !locked_.exchange(true, std::memory_order_acquire)) {
                return;
            }
            wait_for_lock(tries);
        }
    }
    std::atomic<bool> locked_{false};
};

}  // namespace millrace::soft
