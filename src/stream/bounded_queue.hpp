// A queue of at most as many entries as it is made for. It allocates once, before the first entry
// and not when it is made: sockets are idle by the thousand. Used by Socket, Sender and Receiver.
// One thread.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace millrace::stream {

/// False: there is no memory for so many entries now.
template <class Entry>
[[nodiscard]] bool resize(std::vector<Entry>& entries, std::size_t size) noexcept {
    try {
        entries.resize(size);
    } catch (const std::bad_alloc&) {
        return false;
    }
    return true;
}

template <class Entry>
class BoundedQueue {
  public:
    explicit BoundedQueue(std::size_t capacity) noexcept : capacity_{capacity} {}

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] bool full() const noexcept { return size_ == capacity_; }

    /// Requires index < size(). 0 is the front.
    [[nodiscard]] Entry& operator[](std::size_t index) noexcept { return entries_[place(index)]; }
    [[nodiscard]] const Entry& operator[](std::size_t index) const noexcept {
        return entries_[place(index)];
    }
    /// Require !empty().
    [[nodiscard]] Entry& front() noexcept { return entries_[first_]; }
    [[nodiscard]] const Entry& front() const noexcept { return entries_[first_]; }

    [[nodiscard]] Entry& back() noexcept { return entries_[place(size_ - 1)]; }

    /// Makes the entries' memory, unless it is there. False: there is none now.
    [[nodiscard]] bool prepare() noexcept {
        if (entries_.size() == capacity_) [[likely]]
            return true;
        return resize(entries_, capacity_);
    }
    /// Requires !full(), and a prepare() that answered true.
    void push(const Entry& entry) noexcept { entries_[place(size_++)] = entry; }
    /// Requires !empty().
    void pop() noexcept {
        first_ = first_ + 1 == capacity_ ? 0 : first_ + 1;
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
        return at >= capacity_ ? at - capacity_ : at;
    }

    std::size_t capacity_;
    std::vector<Entry> entries_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
};

}  // namespace millrace::stream
