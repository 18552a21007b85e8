// The one thread of a process's wire, `millrace-wire`: looks after the port while no thread of the
// program does, and calls timers when they are due. It sleeps while nothing is: a thousand idle
// queue pairs wake nobody. Used by the port and the adapters of queue pairs.
//
// Timers lie in a heap. What is expected later than the heap will wake for costs two loads: the
// timer has moved on by the time its old entry comes up, and is put back for the new one. So an
// acknowledged request, whose timer is put off each time, costs no lock.
//
//   who expects                            the engine, at an entry of the heap
//   1 deadline = when                      1 entry = never
//   2 full fence                           2 full fence
//   3 entry > when? into the heap, wake    3 deadline due? `due`. Later? into the heap again
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "system/descriptor.hpp"

namespace millrace::soft {

inline constexpr std::int64_t wire_never = std::numeric_limits<std::int64_t>::max();

/// Something with a deadline. Lives from WireEngine::add to `remove`.
class WireTimer {
  public:
    /// The deadline has passed and is taken back: who wants another one expects it. By the engine,
    /// without its locks.
    virtual void due(std::int64_t now) noexcept = 0;
    /// As last expected.
    [[nodiscard]] std::int64_t deadline() const noexcept {
        return deadline_.load(std::memory_order_relaxed);
    }

    virtual ~WireTimer() = default;

  protected:
    WireTimer() = default;
    WireTimer(const WireTimer&) = delete;
    WireTimer& operator=(const WireTimer&) = delete;

  private:
    friend class WireEngine;
    static constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();
    [[nodiscard]] std::int64_t entry() const noexcept {
        return entry_.load(std::memory_order_relaxed);
    }

    std::atomic<std::int64_t> deadline_{wire_never};
    std::atomic<std::int64_t> entry_{wire_never};  ///< when the heap comes to it; with its lock
    std::size_t place_ = nowhere;                  ///< in the heap; with its lock, as the next one
    bool is_known_ = false;
};

/// What the engine looks after besides timers: the port.
class WireWatch {
  public:
    /// Something can be read, or it is time to look again. Returns when that is the next time, and
    /// until then the socket is not watched; `wire_never`: it is.
    [[nodiscard]] virtual std::int64_t look(std::int64_t now) noexcept = 0;
    /// Somebody stands at the door.
    virtual void answer() noexcept = 0;
    /// After the timers of a round in which there was something: sends what was composed.
    virtual void round_ended(std::int64_t now) noexcept = 0;
    /// Some times in a second while there is something, and a last time when there is nothing.
    virtual void rest() noexcept = 0;

  protected:
    ~WireWatch() = default;
};

class WireEngine {
  public:
    /// Starts the thread. `door`: negative if there is none. Throws base::Error.
    WireEngine(WireWatch& watch, int socket, int door);
    ~WireEngine();
    WireEngine(const WireEngine&) = delete;
    WireEngine& operator=(const WireEngine&) = delete;

    /// Throws std::bad_alloc.
    void add(WireTimer& timer);
    /// From here on `due` is not called, and not running, unless by the caller. Not with a lock
    /// that `due` waits for.
    void remove(WireTimer& timer) noexcept;
    /// From now on `timer` is to be called at `deadline` (CLOCK_MONOTONIC, ns; `wire_never`: not),
    /// and not when it was expected before. Any thread.
    void expect(WireTimer& timer, std::int64_t deadline) noexcept;

    /// What WireWatch::look left to others is looked at now.
    void look_again() noexcept;
    /// In a child made by fork: there is no thread.
    void become_copy() noexcept;

  private:
    void run() noexcept;
    [[nodiscard]] bool run_due(std::int64_t now) noexcept;
    /// False: something is due before it could sleep.
    [[nodiscard]] bool prepare_to_sleep(std::int64_t until) noexcept;
    [[nodiscard]] std::int64_t sleeps_until() noexcept {
        const std::lock_guard guard{mutex_};
        return sleeps_until_;
    }
    void awake() noexcept {
        const std::lock_guard guard{mutex_};
        sleeps_until_ = 0;
    }
    void set_clock(std::int64_t when) noexcept;
    void arm_socket() noexcept;
    void wake() noexcept;

    // With the lock.
    void put(std::size_t at, WireTimer* timer) noexcept;
    void rise(std::size_t at) noexcept;
    void sink(std::size_t at) noexcept;
    void enter(WireTimer& timer, std::int64_t when) noexcept;
    void take_out(WireTimer& timer) noexcept;

    WireWatch& watch_;
    const int socket_;
    Descriptor epoll_;
    Descriptor bell_;
    Descriptor clock_;
    std::mutex mutex_;  ///< the next three; a leaf
    std::vector<WireTimer*> heap_;
    std::size_t timers_ = 0;
    std::int64_t sleeps_until_ = 0;  ///< 0: it is awake, or has been woken
    std::atomic<WireTimer*> running_{nullptr};
    std::atomic<bool> looks_again_{false};
    std::atomic<bool> stop_{false};
    std::int64_t clock_at_ = 0;  ///< the engine's: what the clock is set to; 0: nothing
    bool is_copy_ = false;
    std::unique_ptr<std::thread> thread_;  ///< the last: it uses the others
};

}  // namespace millrace::soft
