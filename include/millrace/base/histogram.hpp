// A histogram of times, or of any numbers, with a bounded relative error: quantiles of millions of
// values in a few kilobytes, as HdrHistogram has it. Used by whoever measures latencies.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// One thread. Never allocates.
class Histogram {
  public:
    /// A value is told apart from others that differ by more than this part of it.
    static constexpr double precision = 1.0 / 64;

    void record(std::uint64_t value) noexcept {
        ++counts_[place_of(value)];
        ++count_;
        sum_ += value;
        least_ = std::min(least_, value);
        most_ = std::max(most_, value);
    }
    void add(const Histogram& other) noexcept {
        for (std::size_t i = 0; i < places; ++i) counts_[i] += other.counts_[i];
        count_ += other.count_;
        sum_ += other.sum_;
        least_ = std::min(least_, other.least_);
        most_ = std::max(most_, other.most_);
    }

    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
    /// Of an empty one: 0.
    [[nodiscard]] double mean() const noexcept {
        return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_);
    }
    [[nodiscard]] std::uint64_t least() const noexcept { return count_ == 0 ? 0 : least_; }
    [[nodiscard]] std::uint64_t most() const noexcept { return most_; }
    /// The least value that is not below `fraction` (0 to 1) of all: at most `precision` of it
    /// above the true one, never above most().
    [[nodiscard]] std::uint64_t quantile(double fraction) const noexcept {
        if (count_ == 0) return 0;
        const auto wanted = std::clamp<std::uint64_t>(
            static_cast<std::uint64_t>(fraction * static_cast<double>(count_) + 0.5), 1, count_);
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < places; ++i) {
            seen += counts_[i];
            if (seen >= wanted) return std::min(last_of(i), most_);
        }
        return most_;
    }

  private:
    // Values below 64 have a place each; from there on every power of two has 64.
    static constexpr unsigned bits = 6;
    static constexpr std::uint64_t part = std::uint64_t{1} << bits;
    static constexpr std::size_t places = (64 - bits + 1) * part;

    [[nodiscard]] static constexpr std::size_t place_of(std::uint64_t value) noexcept {
        if (value < part) return static_cast<std::size_t>(value);
        const auto shift = static_cast<unsigned>(std::bit_width(value)) - bits - 1;
        return static_cast<std::size_t>((shift + 1) * part + (value >> shift) - part);
    }
    /// The greatest value of a place.
    [[nodiscard]] static constexpr std::uint64_t last_of(std::size_t place) noexcept {
        if (place < part) return place;
        const std::uint64_t shift = place / part - 1;
        return ((place % part + part + 1) << shift) - 1;
    }

    std::array<std::uint64_t, places> counts_{};
    std::uint64_t count_ = 0;
    std::uint64_t sum_ = 0;
    std::uint64_t least_ = ~std::uint64_t{0};
    std::uint64_t most_ = 0;
};

}  // namespace millrace::base
