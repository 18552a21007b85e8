// The memory windows of this process: which there are, what they are bound to, and through which
// queue pair. Used by memory windows, regions and queue pairs. Thread-safe; its mutex is taken
// last.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace millrace::soft {

struct Registration;
struct MemoryWindow;
class Node;

class Windows {
  public:
    /// Of `node`'s keys.
    explicit Windows(Node& node) noexcept : node_{node} {}

    void add(MemoryWindow& window);
    void remove(MemoryWindow& window) noexcept;
    /// Is a window bound to it? Those that their peers have invalidated are unbound from here on:
    /// no word that somebody writes into a block makes them valid again.
    [[nodiscard]] bool any_on(const Registration& region) noexcept;
    /// Unbinds what is bound through the queue pair whose block has these words, and which ends or
    /// is reset.
    void leave(const std::atomic<std::uint64_t>* words) noexcept;

    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
    /// The window whose key has that index, or null. With the mutex.
    [[nodiscard]] MemoryWindow* find(std::uint32_t index) const noexcept;
    /// With the mutex: which of a block's words no window uses, or -1.
    [[nodiscard]] int free_slot(const std::atomic<std::uint64_t>* words) const noexcept;

  private:
    Node& node_;
    std::mutex mutex_;
    std::unordered_map<std::uint32_t, MemoryWindow*> by_index_;
};

}  // namespace millrace::soft
