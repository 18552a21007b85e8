// What a queue pair counts. Plain stores by whoever holds the queue pair's lock; summed into the
// process's statistics page by process.cpp.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace::soft {

enum class Count : std::uint8_t {
    post_send,
    post_receive,
    write,
    write_immediate,
    send,
    read,
    send_completion,
    receive_completion,
    error_completion,
    deferred,
    pending_run,
    receiver_not_ready,
    system_copy,
    bell,
    heavy_fence,
    dropped,
    atomic,
    asked_copy,
    count
};
inline constexpr std::size_t count_kinds = static_cast<std::size_t>(Count::count);
inline constexpr std::array<std::string_view, count_kinds> count_names{"post_send calls",
                                                                       "post_recv calls",
                                                                       "WRITE requests",
                                                                       "WRITE_WITH_IMM requests",
                                                                       "SEND requests",
                                                                       "READ requests",
                                                                       "send completions polled",
                                                                       "receive completions polled",
                                                                       "error completions polled",
                                                                       "requests deferred",
                                                                       "pending requests run",
                                                                       "receiver not ready",
                                                                       "process_vm copies",
                                                                       "bells rung",
                                                                       "heavy fences",
                                                                       "messages dropped",
                                                                       "atomic requests",
                                                                       "copies by their owner"};

/// One writer at a time per instance (a second one only costs counts), any number of readers.
class Counters {
  public:
    void add(Count what, std::uint64_t n = 1) noexcept {
        add_to(cells_[static_cast<std::size_t>(what)], n);
    }
    /// A call of post_send with one WRITE and nothing else: both counts by one store.
    void add_lone_write() noexcept { add_to(lone_writes_, 1); }
    [[nodiscard]] std::uint64_t value(std::size_t index) const noexcept {
        std::uint64_t sum = cells_[index].load(std::memory_order_relaxed);
        if (index == static_cast<std::size_t>(Count::post_send) ||
            index == static_cast<std::size_t>(Count::write)) {
            sum += lone_writes_.load(std::memory_order_relaxed);
        }
        return sum;
    }

  private:
    static void add_to(std::atomic<std::uint64_t>& cell, std::uint64_t n) noexcept {
        cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }

    std::atomic<std::uint64_t> lone_writes_{0};
    std::array<std::atomic<std::uint64_t>, count_kinds> cells_{};
};

}  // namespace millrace::soft
