// Statistics pages: counters that a running program keeps in a page of shared memory, so that
// another process can read them while it runs and the program pays one plain store per count.
//
// The pages of a process lie together in a sealed memfd ("millrace-stats:pages"; another one when
// it is full) that any process of the same user can open through /proc/<pid>/fd, and that vanishes
// with its process. In lines of 64 bytes, each page or gap telling where the next one is:
//
//   file   u64 magic  u32 version  u32 lines
//   page   u64 magic  u32 lines    u32 counter count  char title[48]
//          count x { char name[56]; u64 value }
//   gap    u64 magic  u32 lines
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// A page with a fixed set of named counters. Move-only; its place is free again on destruction.
/// Making and destroying them: any thread.
class StatisticsPage {
  public:
    /// Names are at most 55 bytes, the title at most 47; longer ones are refused (Error).
    StatisticsPage(std::string_view title, std::initializer_list<std::string_view> names);
    StatisticsPage(StatisticsPage&& other) noexcept;
    StatisticsPage& operator=(StatisticsPage&& other) noexcept;
    StatisticsPage(const StatisticsPage&) = delete;
    StatisticsPage& operator=(const StatisticsPage&) = delete;
    ~StatisticsPage();

    /// The counter at `index`, in the order the names were given.
    [[nodiscard]] Counter counter(std::size_t index) noexcept;
    [[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> read() const;

    struct Snapshot {
        int pid;
        std::string title;
        std::vector<std::pair<std::string, std::uint64_t>> counters;
    };
    /// The pages that process `pid` has open now. Empty if there are none or it cannot be looked
    /// into. Validates what it reads: a page that is not one of ours is passed over.
    [[nodiscard]] static std::vector<Snapshot> of_process(int pid);

  private:
    void* memory_ = nullptr;  ///< the page; null: none
    std::size_t size_ = 0;
};

}  // namespace millrace::base
