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

  protected:
    WireTimer() = default;
    ~WireTimer() = default;
    WireTimer(const WireTimer&) = delete;
    WireTimer& operator=(const WireTimer&) = delete;

  private:
    friend class WireEngine;
    std::atomic<std::int64_t> deadline_{wire_never};
    std::atomic<std::int64_t> entry_{wire_never};  ///< when the heap comes to it
    bool is_known_ = false;
};

/// What the engine looks after besides timers: the port.
class WireWatch {
  public:
    /// Something can be read, or was left to others for a while. Returns when to look again,
    /// whatever comes: `wire_never`, when something comes; else the descriptor is left alone until
    /// then.
    virtual std::int64_t look(std::int64_t now) noexcept = 0;
    /// Somebody stands at the door.
    virtual void answer() noexcept = 0;
    /// After the timers of a round: sends what they composed.
    virtual void round_ended() noexcept = 0;

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

    /// So often it has woken for something, and what it was.
    [[nodiscard]] std::uint64_t rounds() const noexcept {
        return rounds_.load(std::memory_order_relaxed);
    }
    /// In a child made by fork: there is no thread.
    void become_copy() noexcept;

  private:
    struct Entry {
        std::int64_t when;
        WireTimer* timer;
        [[nodiscard]] bool operator<(const Entry& other) const noexcept {
            return when > other.when;  // the heap's first is the earliest
        }
    };

    void run() noexcept;
    void run_due(std::int64_t now) noexcept;
    [[nodiscard]] std::int64_t earliest() noexcept;
    void sleep_until(std::int64_t when) noexcept;
    void wake() noexcept;
    void arm_socket() noexcept;

    WireWatch& watch_;
    const int socket_;
    const int door_;
    Descriptor epoll_;
    Descriptor bell_;
    Descriptor clock_;
    std::mutex mutex_;  ///< the heap; a leaf
    std::vector<Entry> heap_;
    std::size_t timers_ = 0;
    std::atomic<WireTimer*> running_{nullptr};
    std::atomic<std::int64_t> sleeps_until_{0};  ///< 0: it is awake
    std::atomic<std::uint64_t> rounds_{0};
    std::atomic<bool> stop_{false};
    std::int64_t clock_at_ = wire_never;  ///< what the clock is set to
    std::unique_ptr<std::thread> thread_;
    bool is_copy_ = false;
};

}  // namespace millrace::soft
