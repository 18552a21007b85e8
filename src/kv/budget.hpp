// What of the store's memory is taken: by the slabs and by the table, which count here before they
// ask the system.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::kv {

class Budget {
  public:
    explicit Budget(std::uint64_t limit) noexcept : limit_{limit} {}

    /// False: there is not so much. `spare` of it stays for others.
    [[nodiscard]] bool take(std::uint64_t bytes, std::uint64_t spare = 0) noexcept {
        std::uint64_t taken = taken_.load(std::memory_order_relaxed);
        do {
            if (taken + bytes + spare > limit_) return false;
        } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
        return true;
    }
    void give(std::uint64_t bytes) noexcept { taken_.fetch_sub(bytes, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t taken() const noexcept {
        return taken_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t limit() const noexcept { return limit_; }

    /// What slabs leave: the table will grow soon.
    [[nodiscard]] std::uint64_t saved() const noexcept {
        return saved_.load(std::memory_order_relaxed);
    }
    void save(std::uint64_t bytes) noexcept { saved_.store(bytes, std::memory_order_relaxed); }

  private:
    const std::uint64_t limit_;
    std::atomic<std::uint64_t> taken_{0};
    std::atomic<std::uint64_t> saved_{0};
};

}  // namespace millrace::kv
