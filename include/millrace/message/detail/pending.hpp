// The requests of a client that somebody waits for: found by their numbers when an answer comes,
// and over by their deadlines. Used by the clients of rpc/ and kv/, whose callers wait by callbacks
// and by coroutines (awaiting.hpp).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/cancellation.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"

namespace millrace::message::detail {

/// By number, each in its own place or after it. An `Entry` has an `id`, and says whether it
/// `is_taken()`. One thread; only its making allocates.
template <class Entry>
class PendingTable {
  public:
    explicit PendingTable(std::size_t most)
        : entries_{std::make_unique<Entry[]>(std::bit_ceil(most))},
          mask_{std::bit_ceil(most) - 1} {}

    /// Null: there is none.
    [[nodiscard]] Entry* find(std::uint64_t id) noexcept {
        Entry& own = entries_[id & mask_];
        return own.id == id && own.is_taken() ? &own : find_after(id);
    }
    /// For a request of this number. Precondition: not is_full().
    [[nodiscard]] Entry& free_entry(std::uint64_t id) noexcept {
        while (entries_[id & mask_].is_taken()) [[unlikely]]
            ++id;
        return entries_[id & mask_];
    }
    [[nodiscard]] bool is_full() const noexcept { return used_ > mask_; }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }
    void note_taken() noexcept { ++used_; }
    void note_free() noexcept { --used_; }
    /// Free ones, too.
    [[nodiscard]] std::span<Entry> all() noexcept { return {entries_.get(), mask_ + 1}; }

  private:
    [[gnu::noinline, gnu::cold]] Entry* find_after(std::uint64_t id) noexcept {
        for (std::uint64_t step = 1; step <= mask_; ++step) {
            Entry& entry = entries_[(id + step) & mask_];
            if (entry.id == id && entry.is_taken()) return &entry;
        }
        return nullptr;
    }

    std::unique_ptr<Entry[]> entries_;
    std::uint64_t mask_;
    std::size_t used_ = 0;
};

/// When the first of some waits is over, and whether any of them can be cancelled. One thread.
class PendingTimes {
  public:
    using Time = base::Clock::time_point;

    void add(const base::Deadline& deadline) noexcept {
        if (deadline.point() < earliest_) earliest_ = deadline.point();
        if (deadline.cancellation() != nullptr) add_cancellable(deadline);
    }
    void remove(const base::Deadline& deadline) noexcept {
        if (deadline.cancellation() != nullptr) --cancellable_;
    }
    /// Nothing is waited for any more.
    void clear() noexcept { earliest_ = Time::max(); }

    /// None is over before. Not later than it is.
    [[nodiscard]] Time earliest() const noexcept { return earliest_; }
    void no_later_than(Time time) noexcept { earliest_ = std::min(earliest_, time); }
    [[nodiscard]] bool has_cancellable() const noexcept { return cancellable_ != 0; }
    /// Of all that can be cancelled, as far as they have had one since there were none; else null.
    [[nodiscard]] const base::Cancellation* cancellation() const noexcept {
        return cancellable_ == 0 ? nullptr : cancellation_;
    }

  private:
    void add_cancellable(const base::Deadline& deadline) noexcept {
        if (cancellable_++ == 0) {
            cancellation_ = deadline.cancellation();
        } else if (cancellation_ != deadline.cancellation()) {
            cancellation_ = nullptr;
        }
    }

    Time earliest_ = Time::max();
    std::size_t cancellable_ = 0;
    const base::Cancellation* cancellation_ = nullptr;
};

}  // namespace millrace::message::detail
