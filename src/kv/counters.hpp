// What a store has done, counted by many threads that share no line for it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace millrace::kv {

enum class Count : std::uint8_t { hits, misses, sets, erased, evicted, expired, refused, bytes };
inline constexpr std::size_t counts = 8;

class Counters {
  public:
    void add(Count count, std::uint64_t more = 1) noexcept {
        of_thread().values[static_cast<std::size_t>(count)].fetch_add(more,
                                                                      std::memory_order_relaxed);
    }
    /// Of what threads add and take away, the sum is right; parts of it wrap.
    [[nodiscard]] std::uint64_t sum(Count count) const noexcept {
        std::uint64_t sum = 0;
        for (const Line& line : lines_) {
            sum += line.values[static_cast<std::size_t>(count)].load(std::memory_order_relaxed);
        }
        return sum;
    }

  private:
    struct alignas(64) Line {
        std::array<std::atomic<std::uint64_t>, counts> values{};
    };
    static_assert(sizeof(Line) == 64);

    Line& of_thread() noexcept {
        static std::atomic<std::size_t> threads{0};
        thread_local const std::size_t mine = threads.fetch_add(1, std::memory_order_relaxed);
        return lines_[mine % lines_.size()];
    }

    std::array<Line, 64> lines_;
};

}  // namespace millrace::kv
