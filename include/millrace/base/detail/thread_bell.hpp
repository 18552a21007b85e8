// Wakes a thread of this process that sleeps for what another thread publishes. Used between the
// threads that enqueue and ring's data mover, and between a message dispatcher and its ports.
//
//   sleeper: announce(); look at what is published once more; sleep() unless it is there; retract()
//   other:   publish; ring()
//
// Both the publication and the sleeper's look are sequentially consistent, so that one of the two
// sees the other. Who is awake costs the other a load.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "millrace/base/cancellation.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"

namespace millrace::base {

/// One thread sleeps, any thread rings. Nothing throws or allocates.
class ThreadBell {
  public:
    void announce() noexcept { asleep_.store(1, std::memory_order_seq_cst); }
    void retract() noexcept;
    /// At most `limit`; returns early when rung since announce(), when `cancellation` (which may be
    /// null) is requested, and sometimes for no reason.
    void sleep(std::chrono::nanoseconds limit, const Cancellation* cancellation = nullptr) noexcept;
    /// Behind the publication, which must be a sequentially consistent store.
    void ring() noexcept {
        if (asleep_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
            wake();
    }

    /// Readable when rung since announce(): for who sleeps elsewhere than in sleep(). Of the one
    /// that sleeps, only while nothing is announced. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor();
    ThreadBell() noexcept = default;
    ThreadBell(const ThreadBell&) = delete;
    ThreadBell& operator=(const ThreadBell&) = delete;
    ~ThreadBell();

  private:
    [[gnu::cold]] void wake() noexcept;
    /// -1 with errno: there is none to be had.
    [[nodiscard]] int make_descriptor() noexcept;
    void sleep_beside(const Cancellation& cancellation, const timespec& time) noexcept;
    std::atomic<std::uint32_t> asleep_{0};
    std::atomic<int> descriptor_{-1};
};

}  // namespace millrace::base
