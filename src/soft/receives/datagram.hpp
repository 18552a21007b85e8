// What a UD queue pair has beyond a connected one, as a receiver: who executes on it, and the ring
// of what has arrived. Owned by the queue pair. docs/soft/receives.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/node.hpp"
#include "layout/block_layout.hpp"
#include "layout/receive_pool_layout.hpp"
#include "layout/sender_table.hpp"
#include "system/guarded.hpp"

namespace millrace::soft {

/// Of the process's `listed`.
struct ListedQueuePairs;
using QueuePairsHeld = Held<ListedQueuePairs>;

inline constexpr std::uint32_t grh_bytes = 40;
inline constexpr std::uint32_t datagram_mtu = 4096;

/// A sender that was executing when looked at.
struct SeenSender {
    std::uint32_t node;
    std::uint64_t word;
};

/// One datagram's facts that a completion sub-ring's entry has no room for.
struct ArrivalFacts {
    std::uint32_t source = 0;
    std::uint32_t flags = 0;
    std::uint64_t stamp = 0;
};

class Datagram {
  public:
    /// `entries`: receives that its pool has.
    Datagram(Node& node, std::byte* sender_table, std::uint32_t entries);

    [[nodiscard]] const SenderTable& senders() const noexcept { return senders_; }

    /// The senders that execute now. False: no memory to say.
    [[nodiscard]] bool see(std::vector<SeenSender>& seen) const noexcept;
    /// Has the sender let go of what it did when its hazard word was `word`? With `region`: of
    /// that. False where it cannot be told.
    [[nodiscard]] bool sender_out(std::uint32_t node, std::uint64_t word,
                                  const FencedKey* region = nullptr) const noexcept;

    /// For fences of regions: takes those out of `seen` that are known to be stopped. False: one
    /// of them may be copying from before `registration`.
    [[nodiscard]] bool pass_stopped(QueuePairsHeld, std::vector<SeenSender>& seen,
                                    std::uint64_t registration, const FencedKey& region);
    /// These did not let go for a second. `registrations`: as many regions there have been so far.
    void remember_stopped(QueuePairsHeld, const std::vector<SeenSender>& seen,
                          std::uint64_t registrations, const FencedKey& region);

    /// Is there room for one more, when so many have been polled? A shared receive queue that has
    /// grown has more receives than the ring has places. With the pool's lock.
    [[nodiscard]] bool has_room(std::uint32_t polled) const noexcept {
        return tail_.load(std::memory_order_relaxed) - polled <= mask_;
    }
    /// One more has arrived. With the pool's lock.
    void push(const PoolSlot& slot, std::uint32_t number) noexcept;
    [[nodiscard]] CompletionEntry* ring() const noexcept { return ring_.get(); }
    [[nodiscard]] std::uint32_t mask() const noexcept { return mask_; }
    /// Position of the next one.
    [[nodiscard]] std::uint32_t arrivals() const noexcept {
        return tail_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] const ArrivalFacts& facts(std::uint32_t position) const noexcept {
        return facts_[position & mask_];
    }
    /// Forgets what has arrived. Nobody may push.
    void clear() noexcept;

  private:
    struct Stopped {
        SeenSender sender;
        std::uint64_t registrations;
    };
    Node& node_;
    SenderTable senders_;
    std::uint32_t mask_;
    std::unique_ptr<CompletionEntry[]> ring_;
    std::unique_ptr<ArrivalFacts[]> facts_;
    std::atomic<std::uint32_t> tail_{first_position};
    std::vector<Stopped> stopped_;
};

}  // namespace millrace::soft
