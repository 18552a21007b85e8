// The memory windows of this process: which there are, what they are bound to, and through which
// queue pair. Used by memory windows, regions and queue pairs. Thread-safe; its lock is taken last.
#pragma once

#include <atomic>
#include <cstdint>

#include "process/memory_window.hpp"

namespace millrace::soft {

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

    /// Their bindings stay as they are while it lives.
    [[nodiscard]] auto hold() noexcept { return by_index_.hold(); }
    /// The window whose key has that index, or null.
    [[nodiscard]] MemoryWindow* find(WindowsHeld held, std::uint32_t index) const noexcept;
    /// Which of a block's words no window uses, or -1.
    [[nodiscard]] int free_slot(WindowsHeld held,
                                const std::atomic<std::uint64_t>* words) const noexcept;

  private:
    Node& node_;
    Guarded<WindowsByIndex> by_index_;
};

}  // namespace millrace::soft
