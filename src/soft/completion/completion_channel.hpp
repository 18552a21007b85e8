// Completion channels: a descriptor that becomes readable when an armed completion queue has got
// something, from whatever process. An epoll of the bell pipe, a timer if one was ever needed, and
// the lives of the peers that its queue pairs are connected to: each by itself, because the kernel
// bounds how many ways may lead through nested epolls (500 through one, 100 through two). A program
// that hears of its peers otherwise, and asks for the time of the next alarm before it sleeps, may
// have the bell alone: one descriptor in place of two, or three.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "system/guarded.hpp"

namespace millrace::soft {

struct CompletionQueue;
struct Context;

struct CompletionChannel : ibv_comp_channel {
    struct Queues {
        std::vector<CompletionQueue*> all;
        std::size_t next = 0;  ///< whose turn it is
    };
    Guarded<Queues> queues;                ///< held before a completion queue's lock
    int bell = -1;                         ///< both ends of the pipe
    std::atomic<int> timer{-1};            ///< made for the first alarm
    std::atomic<std::uint32_t> alarms{0};  ///< counts alarms that were taken: set it again
    Context* owner = nullptr;
    bool hears_of_peers = true;  ///< false: the program does by itself
    static constexpr std::int64_t no_alarm = std::numeric_limits<std::int64_t>::max();
    /// Of a bare channel: when the program is to look, in ns of base::Clock.
    std::atomic<std::int64_t> due{no_alarm};

    /// The descriptor is the bell itself.
    [[nodiscard]] bool is_bare() const noexcept { return fd == bell; }
    /// Makes the descriptor readable. Any thread, never blocks.
    void ring() noexcept;
    /// Makes it readable at that time at the latest, for timers that nobody polls for; at once,
    /// where the process has no descriptor left for an alarm.
    void wake_in(std::chrono::nanoseconds delay) noexcept;
    /// An alarm that is over is taken: who needs another one sets it again. False: there is none.
    bool take_alarm() noexcept;

    /// Of a bare channel: for so long the program may sleep.
    [[nodiscard]] std::chrono::nanoseconds next_alarm() const noexcept;
    /// Makes the descriptor readable when that one is. False, with errno: it cannot be.
    [[nodiscard]] bool watch(int descriptor) noexcept;

  private:
    /// wake_in() of a bare channel.
    void note_alarm(std::chrono::nanoseconds delay) noexcept;
    /// The timer; -1: there is none to be had.
    [[nodiscard]] int alarm() noexcept;
};

}  // namespace millrace::soft
