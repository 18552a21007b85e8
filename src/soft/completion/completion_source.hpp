// One completion sub-ring of a queue pair as its poller sees it. Lives in the queue pair; what only
// who holds the completion queue may touch that it is attached to is behind that lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "layout/block_layout.hpp"
#include "layout/news_page.hpp"
#include "system/guarded.hpp"

namespace millrace::soft {

struct QueuePair;
struct CompletionTurn;
using PollHeld = Held<CompletionTurn>;
class CableMember;
class ReceivePool;

inline constexpr std::size_t not_current = ~std::size_t{0};

struct CompletionSource {
    CompletionEntry* ring = nullptr;
    std::uint32_t mask = 0;
    bool send = false;
    QueuePair* qp = nullptr;
    const BlockView* block = nullptr;    ///< the queue pair's
    const CableMember* cable = nullptr;  ///< null: the queue pair is on no link
    /// Of a UD queue pair: `ring` is filled from it, by whoever polls.
    ReceivePool* collects_from = nullptr;
    std::atomic<std::uint32_t> position{first_position};  ///< next to be polled
    /// The queue pair is in ERROR and settled: entries from `limit` on are not looked at, what
    /// remains is flushed.
    std::atomic<bool> flushing{false};
    std::atomic<std::uint32_t> limit{0};
    NewsPlace place;
    std::atomic<std::uint64_t> polled{0};  ///< completions taken, for the statistics page
    std::atomic<std::uint64_t> errors{0};  ///< of which flushed or failed

    struct Polled {
        std::uint32_t arm_position = 0;   ///< first entry that had not been polled at arming
        std::uint64_t arrival_stamp = 0;  ///< of the datagram taken last; 0: none
    };
    [[nodiscard]] Polled& polled_by(PollHeld) noexcept { return polled_by_; }
    [[nodiscard]] const Polled& polled_by(PollHeld) const noexcept { return polled_by_; }

    [[nodiscard]] const CompletionEntry& entry(std::uint32_t at) const noexcept {
        return ring[at & mask];
    }
    [[nodiscard]] bool holds(std::uint32_t at) const noexcept {
        return entry(at).sequence.load(std::memory_order_acquire) == sequence_of(at);
    }
    /// The first position from `at` on that holds nothing.
    [[nodiscard]] std::uint32_t end_after(std::uint32_t at) const noexcept {
        for (std::uint32_t seen = 0; seen <= mask && holds(at); ++seen) ++at;
        return at;
    }
    /// Of its queue pair's block: when whoever completes has to tell.
    [[nodiscard]] std::atomic<std::uint32_t>& armed() const noexcept {
        return send ? block->control->armed_send : block->control->armed_receive;
    }

  private:
    friend class CompletionTurns;
    std::size_t index_ = not_current;  ///< among those that the poller looks at
    std::uint32_t quiet_since_ = 0;    ///< position when the poller last asked whether it has to
    Polled polled_by_;
};

}  // namespace millrace::soft
