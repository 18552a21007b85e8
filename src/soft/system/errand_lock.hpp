// A lock for an errand that whoever comes first runs for all: who finds it taken leaves word and
// goes on, and whoever lets go of it with word left runs the errand again. Used for the peer's
// pending requests (QueuePair::run_peer_pending), which nobody may wait for and nobody may forget.
//
//   who has news                            holder
//   1 publishes it                          1 runs the errand
//   2 free? takes it. Else: "again"         2 frees it, and reads "again"
//                                           3 "again" was there: takes it, from 1
//
// Both step 2 are read-modify-writes of one word: either the news comes first, and the holder is
// told and sees what was published; or the word is free.
#pragma once

#include <atomic>
#include <cstdint>

#include "system/spin_lock.hpp"

namespace millrace::soft {

class ErrandLock {
  public:
    /// False: somebody else has it, and has been told to run the errand again.
    [[nodiscard]] bool try_lock_or_tell() noexcept {
        std::uint32_t now = state_.load(std::memory_order_relaxed);
        // Also where it says `again` already: the holder must see what we have published.
        while (!state_.compare_exchange_weak(now, now == free ? held : again,
                                             std::memory_order_acq_rel,
                                             std::memory_order_relaxed)) {
        }
        return now == free;
    }
    /// For who has no news: false, and nobody is told.
    [[nodiscard]] bool try_lock() noexcept {
        std::uint32_t now = free;
        return state_.compare_exchange_strong(now, held, std::memory_order_acquire,
                                              std::memory_order_relaxed);
    }
    void lock() noexcept {
        for (unsigned tries = 0; !try_lock(); ++tries) wait_for_lock(tries);
    }
    /// True: somebody came meanwhile, and the errand is to be run again.
    [[nodiscard]] bool unlock() noexcept {
        return state_.exchange(free, std::memory_order_acq_rel) == again;
    }

  private:
    enum : std::uint32_t { free, held, again };
    std::atomic<std::uint32_t> state_{free};
};

/// Holds it for something else than the errand, which is run after that if `again` says so: not
/// under the other locks that go with this one.
class [[nodiscard]] ErrandPause {
  public:
    ErrandPause(ErrandLock& lock, bool& again) noexcept : lock_{lock}, again_{again} {
        lock_.lock();
    }
    ~ErrandPause() { again_ |= lock_.unlock(); }
    ErrandPause(const ErrandPause&) = delete;
    ErrandPause& operator=(const ErrandPause&) = delete;

  private:
    ErrandLock& lock_;
    bool& again_;
};

}  // namespace millrace::soft
