// A histogram of times, or of any numbers, with a bounded relative error: quantiles of millions of
// values in a few kilobytes, as HdrHistogram has it. Used by whoever measures latencies.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// One thread records, without a lock; any thread may look meanwhile, and may find what is recorded
/// at that moment in one figure and not in another yet. Never allocates.
class Histogram {
  public:
    /// A value is told apart from others that differ by more than this part of it.
    static constexpr double precision = 1.0 / 64;

    void record(std::uint64_t value) noexcept {
        add_to(counts_[place_of(value)], 1);
        add_to(count_, 1);
        add_to(sum_, value);
        if (value < get(least_)) set(least_, value);
        if (value > get(most_)) set(most_, value);
    }
    /// What has been recorded in `other`, too.
    void add(const Histogram& other) noexcept {
        for (std::size_t i = 0; i < places; ++i) add_to(counts_[i], get(other.counts_[i]));
        add_to(count_, get(other.count_));
        add_to(sum_, get(other.sum_));
        set(least_, std::min(get(least_), get(other.least_)));
        set(most_, std::max(get(most_), get(other.most_)));
    }

    [[nodiscard]] std::uint64_t count() const noexcept { return get(count_); }
    /// Of an empty one: 0.
    [[nodiscard]] double mean() const noexcept {
        return count() == 0 ? 0 : static_cast<double>(get(sum_)) / static_cast<double>(count());
    }
    [[nodiscard]] std::uint64_t least() const noexcept { return count() == 0 ? 0 : get(least_); }
    [[nodiscard]] std::uint64_t most() const noexcept { return get(most_); }
    /// The least value that is not below `fraction` (0 to 1) of all: at most `precision` of it
    /// above the true one, never above most().
    [[nodiscard]] std::uint64_t quantile(double fraction) const noexcept {
        const std::uint64_t all = count();
        if (all == 0) return 0;
        const auto wanted = std::clamp<std::uint64_t>(
            static_cast<std::uint64_t>(fraction * static_cast<double>(all) + 0.5), 1, all);
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < places; ++i) {
            seen += get(counts_[i]);
            if (seen >= wanted) return std::min(last_of(i), most());
        }
        return most();
    }

  private:
    // Values below 64 have a place each; from there on every power of two has 64.
    static constexpr unsigned bits = 6;
    static constexpr std::uint64_t part = std::uint64_t{1} << bits;
    static constexpr std::size_t places = (64 - bits + 1) * part;

    // atomic_ref takes no const before C++26, and changes nothing here.
    [[nodiscard]] static std::uint64_t get(const std::uint64_t& cell) noexcept {
        return std::atomic_ref{const_cast<std::uint64_t&>(cell)}.load(std::memory_order_relaxed);
    }
    static void set(std::uint64_t& cell, std::uint64_t value) noexcept {
        std::atomic_ref{cell}.store(value, std::memory_order_relaxed);
    }
    static void add_to(std::uint64_t& cell, std::uint64_t more) noexcept {
        set(cell, get(cell) + more);
    }

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
