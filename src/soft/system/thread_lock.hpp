// A lock for what one thread does all the time and others seldom or never: posting to a queue
// pair, polling a completion queue. It belongs to the first thread that takes it with `lock_often`,
// which from then on pays two plain stores and no atomic read-modify-write (those drain the store
// buffer, and with it every store to a peer's memory that is still on its way). The first other
// thread takes the privilege away for good; then it is a SpinLock.
//
//   owner                                 another thread
//   1 inside = true                       1 holds `common`, revoked = true
//   2 compiler barrier                    2 heavy fence (membarrier: a full one in the owner, too)
//   3 revoked? inside = false, as others  3 waits until not inside
//
// Either the owner sees that it is revoked, or the other sees that it is inside. Where there is no
// membarrier (and under the thread sanitizer, which does not know it) it is a SpinLock at once.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "system/fences.hpp"
#include "system/spin_lock.hpp"

#if defined(__SANITIZE_THREAD__)
#define MILLRACE_NO_MEMBARRIER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MILLRACE_NO_MEMBARRIER 1
#endif
#endif

namespace millrace::soft {

class ThreadLock {
  public:
    /// As lock, and makes the calling thread the owner if there has been none.
    void lock_often() noexcept {
        if (enter()) [[likely]]
            return;
        lock_common();
        claim();
    }
    void lock() noexcept {
        if (!enter()) lock_common();
    }
    /// The owner's way alone, for a few instructions that end with `leave_often`, and not `unlock`.
    /// False to any other thread, and to an owner whose privilege is gone: it holds nothing.
    [[nodiscard]] bool enter_often() noexcept {
        if (owner_.load(std::memory_order_relaxed) != this_thread()) [[unlikely]]
            return false;
        inside_.store(true, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (revoked_.load(std::memory_order_relaxed)) [[unlikely]] {
            leave_often();
            return false;
        }
        std::atomic_signal_fence(std::memory_order_acquire);
        return true;
    }
    void leave_often() noexcept { inside_.store(false, std::memory_order_release); }
    /// False also if this thread holds it.
    [[nodiscard]] bool try_lock() noexcept {
        if (owner_.load(std::memory_order_relaxed) == this_thread()) {
            if (inside_.load(std::memory_order_relaxed)) return false;
            if (enter()) return true;
        }
        if (!common_.try_lock()) return false;
        if (revoke()) return true;
        common_.unlock();
        return false;
    }
    void unlock() noexcept {
        if (entered_) [[likely]] {
            entered_ = false;
            inside_.store(false, std::memory_order_release);
        } else {
            common_.unlock();
        }
    }

  private:
    /// Something that only this thread has; never 0. In one instruction, also in a shared library.
    [[nodiscard]] static std::uintptr_t this_thread() noexcept {
#if defined(__x86_64__)
        std::uintptr_t self;
        asm("mov %%fs:0, %0" : "=r"(self));
        return self;
#elif defined(__aarch64__)
        std::uintptr_t self;
        asm("mrs %0, tpidr_el0" : "=r"(self));
        return self;
#else
        static thread_local char mark;
        return reinterpret_cast<std::uintptr_t>(&mark);
#endif
    }

    [[nodiscard]] bool enter() noexcept {
        if (!enter_often()) return false;
        entered_ = true;
        return true;
    }

    [[gnu::noinline]] void lock_common() noexcept {
        common_.lock();
        while (!revoke()) {
            sched_yield();
            base::count_system_call();
        }
    }

    /// With `common`: after it returns true, the owner is outside and stays there. False: it is
    /// still inside.
    [[nodiscard]] bool revoke() noexcept {
        if (owner_.load(std::memory_order_relaxed) == 0) return true;  // claimed under `common`
        if (!revoked_.load(std::memory_order_relaxed)) {
            revoked_.store(true, std::memory_order_relaxed);
            heavy_fence();
        }
        // An owner that is just finding out looks as if it were inside: for a moment.
        return !inside_.load(std::memory_order_acquire);
    }

    /// Holding `common`: becomes the owner, and holds the lock in the owner's way instead.
    void claim() noexcept {
#if !defined(MILLRACE_NO_MEMBARRIER)
        if (owner_.load(std::memory_order_relaxed) != 0 || !register_for_membarrier()) return;
        owner_.store(this_thread(), std::memory_order_relaxed);
        inside_.store(true, std::memory_order_relaxed);
        entered_ = true;
        common_.unlock();
#endif
    }

    std::atomic<std::uintptr_t> owner_{0};
    std::atomic<bool> inside_{false};   ///< the owner is, or is trying to be
    std::atomic<bool> revoked_{false};  ///< for good
    bool entered_ = false;              ///< by the owner's way; guarded by the lock itself
    SpinLock common_;
};

}  // namespace millrace::soft
