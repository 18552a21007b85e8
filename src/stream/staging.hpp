// Registered memory that small plain sends are copied to: a ring, given back in the order in which
// it was taken. Used by Socket::Core. One thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::stream {

class Staging {
  public:
    Staging() noexcept = default;
    Staging(std::byte* memory, std::size_t size) noexcept : memory_{memory}, size_{size} {}

    /// `length` bytes in one piece; null: there is no room now.
    [[nodiscard]] std::byte* claim(std::size_t length) noexcept {
        const std::size_t offset = taken_ % size_;
        const std::size_t skipped = length > size_ - offset ? size_ - offset : 0;
        if (length + skipped > size_ - (taken_ - returned_)) return nullptr;
        std::byte* const place = memory_ + (taken_ + skipped) % size_;
        taken_ += skipped + length;
        return place;
    }
    /// Behind what was claimed last.
    [[nodiscard]] std::uint64_t position() const noexcept { return taken_; }
    /// Everything before `position` is free again.
    void return_to(std::uint64_t position) noexcept { returned_ = position; }
    /// The most that a claim can be answered with.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

  private:
    std::byte* memory_ = nullptr;
    std::size_t size_ = 1;
    std::uint64_t taken_ = 0;
    std::uint64_t returned_ = 0;
};

}  // namespace millrace::stream
