// A queue of at most as many entries as it is made for: it allocates once, when it is made. Used by
// Sender and Receiver. One thread.
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::stream {

template <class Entry>
class BoundedQueue {
  public:
    explicit BoundedQueue(std::size_t capacity) : entries_(capacity) {}

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return entries_.size(); }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] bool full() const noexcept { return size_ == entries_.size(); }

    /// Requires index < size(). 0 is the front.
    [[nodiscard]] Entry& operator[](std::size_t index) noexcept { return entries_[place(index)]; }
    [[nodiscard]] const Entry& operator[](std::size_t index) const noexcept {
        return entries_[place(index)];
    }
    /// Require !empty().
    [[nodiscard]] Entry& front() noexcept { return entries_[first_]; }
    [[nodiscard]] const Entry& front() const noexcept { return entries_[first_]; }

    [[nodiscard]] Entry& back() noexcept { return entries_[place(size_ - 1)]; }

    /// Requires !full().
    void push(const Entry& entry) noexcept { entries_[place(size_++)] = entry; }
    /// Requires !empty().
    void pop() noexcept {
        first_ = first_ + 1 == entries_.size() ? 0 : first_ + 1;
        --size_;
    }
    /// Requires index < size(). Moves what is behind it.
    void erase(std::size_t index) noexcept {
        for (; index + 1 < size_; ++index) (*this)[index] = (*this)[index + 1];
        --size_;
    }
    void clear() noexcept { size_ = 0; }

  private:
    [[nodiscard]] std::size_t place(std::size_t index) const noexcept {
        const std::size_t at = first_ + index;
        return at >= entries_.size() ? at - entries_.size() : at;
    }

    std::vector<Entry> entries_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
};

}  // namespace millrace::stream
