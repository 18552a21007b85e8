// A lock for what several threads use in turn, whose wait has a deadline, a cancellation and the
// library's wait strategy. Held for the length of a call; who holds it may wait in it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::base {

/// Whoever comes first has it: there is no queue, and a thread that gives it back may have it again
/// before one that waits. All functions from any thread. Without contention taking and giving back
/// are an atomic exchange each, without a system call.
class Turn {
  public:
    Turn() = default;
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    [[nodiscard]] bool try_take() noexcept {
        return !taken_.load(std::memory_order_relaxed) &&
               !taken_.exchange(true, std::memory_order_seq_cst);
    }
    /// `ok`, `timed_out` or `cancelled`.
    Status take(const Deadline& deadline, const WaitPolicy& policy) {
        if (try_take()) [[likely]]
            return Status::ok;
        Sleeper sleeper{*this};
        return wait_until([&] { return try_take(); }, deadline, policy, sleeper);
    }
    /// Only by the thread that took it.
    void give_back() noexcept {
        // In one order with the announcements of sleepers: they see it free, or are seen here.
        taken_.exchange(false, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
            wake_one();
    }

  private:
    class Sleeper final : public Parker {
      public:
        explicit Sleeper(Turn& turn) noexcept : turn_{turn} {}
        void prepare() override;
        void park(std::chrono::nanoseconds limit) override;
        void retract() override;

      private:
        Turn& turn_;
        std::uint64_t seen_ = 0;
    };
    void wake_one() noexcept;

    std::atomic<bool> taken_{false};
    std::atomic<std::uint32_t> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable given_back_;
    std::uint64_t wakes_ = 0;  ///< guarded by mutex_
};

}  // namespace millrace::base
