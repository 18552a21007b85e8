// A queue that never allocates once it is made. Used by what one end receives (incoming.hpp,
// packet_stream.hpp).
#pragma once

#include <cstddef>
#include <vector>

namespace millrace::message {

/// First in, first out, of at most as many as were said at first.
template <class Value>
class BoundedFifo {
  public:
    explicit BoundedFifo(std::size_t most) : values_(most) {}
    [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
    [[nodiscard]] std::size_t size() const noexcept { return end_ - begin_; }
    [[nodiscard]] const Value& front() const noexcept { return values_[begin_ % values_.size()]; }
    /// False: it is full.
    bool push(const Value& value) noexcept {
        if (size() == values_.size()) return false;
        values_[end_++ % values_.size()] = value;
        return true;
    }
    void pop() noexcept { ++begin_; }
    /// Takes out the first one that is `value`, wherever it is.
    void take_out(const Value& value) noexcept {
        std::size_t at = begin_;
        while (at != end_ && values_[at % values_.size()] != value) ++at;
        if (at == end_) return;
        for (; at != begin_; --at) {
            values_[at % values_.size()] = values_[(at - 1) % values_.size()];
        }
        ++begin_;
    }

  private:
    std::vector<Value> values_;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

}  // namespace millrace::message
