// The memory windows of this process: which there are, what they are bound to, and through which
// queue pair. Used by memory windows, regions and queue pairs. Thread-safe; its mutex is taken
// last.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace millrace::soft {

struct Registration;
struct MemoryWindow;
struct QueuePair;

class Windows {
  public:
    void add(MemoryWindow& window);
    void remove(MemoryWindow& window) noexcept;
    /// Is a window bound to it? Those that their peers have invalidated are unbound from here on:
    /// no word that somebody writes into a block makes them valid again.
    [[nodiscard]] bool any_on(const Registration& region) noexcept;
    /// Unbinds what is bound through the queue pair, which ends or is reset.
    void leave(QueuePair& qp) noexcept;

    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
    /// The window whose key has that index, or null. With the mutex.
    [[nodiscard]] MemoryWindow* find(std::uint32_t index) const noexcept;
    /// With the mutex: a place of the queue pair's block that no other window uses, or -1.
    [[nodiscard]] int free_slot(const QueuePair& qp) const noexcept;

  private:
    std::mutex mutex_;
    std::unordered_map<std::uint32_t, MemoryWindow*> by_index_;
};

}  // namespace millrace::soft
