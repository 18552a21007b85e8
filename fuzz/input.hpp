// The bytes of one input as numbers, for the fuzzers of this folder. What is not there is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace millrace::fuzz {

class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) noexcept : rest_{data, size} {}

    [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return rest_.size(); }

    template <class Number>
    [[nodiscard]] Number take() noexcept {
        Number number{};
        const std::size_t bytes = rest_.size() < sizeof number ? rest_.size() : sizeof number;
        if (bytes != 0) std::memcpy(&number, rest_.data(), bytes);
        rest_ = rest_.subspan(bytes);
        return number;
    }
    /// One of 0 … count - 1.
    [[nodiscard]] std::uint32_t below(std::uint32_t count) noexcept {
        return count > 256 ? take<std::uint16_t>() % count : take<std::uint8_t>() % count;
    }
    [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t most) noexcept {
        const auto front = rest_.first(most < rest_.size() ? most : rest_.size());
        rest_ = rest_.subspan(front.size());
        return front;
    }

  private:
    std::span<const std::uint8_t> rest_;
};

}  // namespace millrace::fuzz
