// A lock for what several threads use in turn, whose wait has a deadline, a cancellation and the
// library's wait strategy. Held for the length of a call; who holds it may wait in it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/thread_bell.hpp"
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
        // In one order with give_back(), as the look of a sleeper that has announced itself.
        return !taken_.load(std::memory_order_seq_cst) &&
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
        void park(std::chrono::nanoseconds limit, const Cancellation* cancellation) override;
        void retract() override;
        [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override {
            return std::chrono::nanoseconds::max();
        }

      private:
        friend Turn;
        Turn& turn_;
        ThreadBell bell_;
        Sleeper* before_ = nullptr;  ///< in the queue; guarded by the turn's mutex_
        Sleeper* behind_ = nullptr;
        bool is_queued_ = false;
    };
    friend ForkWatch;
    /// In a child made by fork: whoever else had it, or slept for it, is not there.
    void become_copy() noexcept;
    void enqueue(Sleeper& sleeper) noexcept;
    void unqueue(Sleeper& sleeper) noexcept;
    void wake_one() noexcept;

    std::atomic<bool> taken_{false};
    std::atomic<std::uint32_t> sleepers_{0};
    std::mutex mutex_;
    Sleeper* first_ = nullptr;  ///< that was not woken yet; guarded by mutex_
    Sleeper* last_ = nullptr;
    ForkWatch fork_watch_{*this};
};

}  // namespace millrace::base
