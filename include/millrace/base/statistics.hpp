// Statistics pages: counters, gauges and histograms that a running program keeps in shared memory,
// so that another process can read them while it runs and the program pays one plain store per
// count.
//
// The pages of a process lie together in a sealed memfd ("millrace-stats:pages"; another one when
// it is full) that any process of the same user can open through /proc/<pid>/fd, and that vanishes
// with its process. In lines of 64 bytes, each record telling where the next one is. Names lie
// apart: thousands of pages of one kind have theirs in common.
//
//   file   u64 magic  u32 version  u32 lines
//   names  u64 magic  u32 lines    u32 count  count x { char name[56]; u32 kind; u32 unused }
//   page   u64 magic  u32 lines    u32 count  char title[48]
//          u64 line of its names   values: u64 of a counter or gauge, a base::Histogram of one
//   gap    u64 magic  u32 lines
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/histogram.hpp"
#include "millrace/base/language.hpp"

namespace millrace::base {

/// One counter. One writer thread at a time; any number of readers, in any process.
class Counter {
  public:
    Counter() noexcept = default;
    explicit Counter(std::uint64_t* cell) noexcept : cell_{cell} {}
    void add(std::uint64_t n = 1) noexcept {
        std::atomic_ref<std::uint64_t> cell{*cell_};
        cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    void set(std::uint64_t n) noexcept {
        std::atomic_ref<std::uint64_t>{*cell_}.store(n, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t value() const noexcept {
        return std::atomic_ref<std::uint64_t>{*cell_}.load(std::memory_order_relaxed);
    }

  private:
    std::uint64_t* cell_ = nullptr;
};

/// What a value of a page is.
enum class FigureKind : std::uint32_t {
    counter,    ///< it grows
    gauge,      ///< it is what is now, and goes down as well
    histogram,  ///< of many values, see base::Histogram: 30 KiB, resident as far as they are used
};
/// A value of a page, by name.
struct Figure {
    std::string_view name;
    FigureKind kind = FigureKind::counter;
};

/// A page with a fixed set of named figures. Move-only; its place is free again on destruction.
/// Making and destroying them: any thread.
class StatisticsPage {
  public:
    static constexpr std::size_t longest_title = 47;
    /// Names are at most 55 bytes, the title at most 47; longer ones are refused (Error), and
    /// histograms that are not behind all others. Without kinds all are counters.
    StatisticsPage(std::string_view title, std::initializer_list<std::string_view> names);
    StatisticsPage(std::string_view title, std::span<const Figure> figures);
    StatisticsPage(StatisticsPage&& other) noexcept;
    StatisticsPage& operator=(StatisticsPage&& other) noexcept;
    StatisticsPage(const StatisticsPage&) = delete;
    StatisticsPage& operator=(const StatisticsPage&) = delete;
    ~StatisticsPage();

    /// The counter or gauge at `index`, in the order the names were given.
    [[nodiscard]] Counter counter(std::size_t index) noexcept;
    /// Sets counters and gauges, from the first on.
    void set(std::span<const std::uint64_t> values) noexcept;
    /// The histogram at `index` of the histograms. One thread at a time records in it. It lives as
    /// long as the page.
    [[nodiscard]] Histogram& histogram(std::size_t index) noexcept;
    /// Counters and gauges, in the order the names were given.
    [[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> read() const;

    /// What a histogram had when it was read.
    struct Distribution {
        std::string name;
        std::uint64_t count = 0;
        double mean = 0;
        std::uint64_t least = 0;
        std::uint64_t median = 0;  ///< and the others: at most Histogram::precision of it too high
        std::uint64_t p90 = 0;
        std::uint64_t p99 = 0;
        std::uint64_t p999 = 0;
        std::uint64_t most = 0;
    };
    struct Snapshot {
        int pid = 0;
        std::string title;
        std::vector<std::pair<std::string, std::uint64_t>> counters;
        std::vector<std::pair<std::string, std::uint64_t>> gauges;
        std::vector<Distribution> histograms;
    };
    /// The pages that process `pid` has open now. Empty if there are none or it cannot be looked
    /// into. Validates what it reads: a page that is not one of ours is passed over.
    [[nodiscard]] static std::vector<Snapshot> of_process(int pid);

  private:
    void* memory_ = nullptr;    ///< the page; null: none
    std::uint32_t values_ = 0;  ///< counters and gauges
    std::uint32_t histograms_ = 0;
    const void* names_ = nullptr;
};

}  // namespace millrace::base
