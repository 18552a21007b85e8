// Cancellation: ends waits early, asleep or not. Named by deadlines (deadline.hpp); whoever sleeps
// for one watches its descriptor.
//
//   request()   requested = true; descriptor? -> write to it
//   sleeper     makes the descriptor, if there is none; requested? -> does not sleep
//
// Both sides are sequentially consistent, so that one of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// A flag that another thread (or a signal handler) raises to end waits at once. It must outlive
/// every deadline that names it, and its own request().
class Cancellation {
  public:
    Cancellation() noexcept = default;
    Cancellation(const Cancellation&) = delete;
    Cancellation& operator=(const Cancellation&) = delete;
    ~Cancellation();

    /// Any thread, and signal handlers. A system call if somebody has slept for it, else none.
    void request() noexcept {
        requested_.store(true, std::memory_order_seq_cst);
        if (place_.load(std::memory_order_seq_cst) != 0) ring();
    }
    void reset() noexcept {
        requested_.store(false, std::memory_order_seq_cst);
        settle();
    }
    [[nodiscard]] bool requested() const noexcept {
        return requested_.load(std::memory_order_acquire);
    }

    /// For who sleeps: readable as long as it is requested, or nearly so. Made by the first that
    /// asks; in a child made by fork, anew. -1: there is none to be had, look by the clock. Lives
    /// as long as this object. Any thread.
    [[nodiscard]] int descriptor() const noexcept;
    /// Behind a sleep that the descriptor may have ended: if nothing is requested (any more), it
    /// is quiet again. Costs a load where nobody has written to it. Any thread.
    void settle() const noexcept {
        if (!requested() && has_rung_.load(std::memory_order_seq_cst)) [[unlikely]]
            quieten();
    }

  private:
    /// The number of the descriptor, -1 if it is of another process or there is none.
    [[nodiscard]] int number() const noexcept;
    void ring() const noexcept;
    void quieten() const noexcept;

    std::atomic<bool> requested_{false};
    mutable std::atomic<bool> has_rung_{false};  ///< the descriptor may be readable
    /// Which process made the descriptor (forks.hpp), and its number; 0: none yet.
    mutable std::atomic<std::uint64_t> place_{0};
};

/// What a poll(2) watches for it: -1, which poll passes over, where nothing can be cancelled.
[[nodiscard]] inline int descriptor_of(const Cancellation* cancellation) noexcept {
    return cancellation == nullptr ? -1 : cancellation->descriptor();
}

}  // namespace millrace::base
