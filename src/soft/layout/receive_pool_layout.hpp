// What lies in a receive pool's block: receives that executors of several processes take from, of a
// shared receive queue or of a UD queue pair; and how one is claimed. Included by the pool's owner
// and by executors. docs/soft/receives.md.
//
//   offset 0    PoolFacts     geometry                                     owner, once
//          64   PoolHead      where the next claim is tried                claimants
//          128  PoolWaiting   a sender found nothing                       claimants; owner clears
//          192  PoolBounds    limit, places of the order in use            owner, seldom
//          256  PoolTail      receives posted                              owner, with each
//          320  order         u64 x entries: sequence << 32 | slot         owner
//          …    slots         stride x entries                             see PoolSlot
//
// A shared receive queue's `entries` are what it may ever be resized to: address space, of which it
// uses the beginning. How many places of the order go round says `mask`, which only grows: the
// owner first puts every word where the larger ring has it, too, and then tells the mask. Both
// rings have a position's word, or a newer one in its place, so that a claimant that still goes by
// the old mask finds the right word or another position's; then it looks at the mask again.
//
// Every peer of every queue pair of the pool may write all of it: the owner keeps private what it
// has to rely on, claimants mask and bound what they read, and no loop depends on what is read.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "layout/block_layout.hpp"
#include "layout/layout.hpp"
#include "system/fences.hpp"

namespace millrace::soft {

inline constexpr std::uint32_t pool_magic = 0x4c4f4f50;  // "POOL"

struct alignas(cache_line) PoolFacts {
    std::uint32_t magic;
    std::uint32_t entries;  ///< a power of two: places and slots that there is room for
    std::uint32_t sges;
};
struct alignas(cache_line) PoolHead {
    std::atomic<std::uint32_t> position;
};
struct alignas(cache_line) PoolWaiting {
    std::atomic<std::uint32_t> flag;
};
struct alignas(cache_line) PoolBounds {
    std::atomic<std::uint32_t> limit;  ///< 0: not armed
    std::atomic<std::uint32_t> mask;   ///< places of the order in use, a power of two, less one
};
/// A line of its own: claimants read it only where there is a limit.
struct alignas(cache_line) PoolTail {
    std::atomic<std::uint32_t> position;
};

/// Who has a slot: sequence of its position << 32 | queue pair index << 20 | node << 8 | state.
enum ClaimState : std::uint32_t { claim_none = 0, claim_offered = 1, claim_taken = 2 };
[[nodiscard]] constexpr std::uint64_t make_claim(std::uint32_t position, std::uint32_t queue_pair,
                                                 std::uint32_t node, ClaimState state) noexcept {
    return std::uint64_t{sequence_of(position)} << 32 | (queue_pair & 0xfff) << 20 |
           (node & 0xfff) << 8 | state;
}
[[nodiscard]] constexpr std::uint32_t sequence_of_claim(std::uint64_t claim) noexcept {
    return static_cast<std::uint32_t>(claim >> 32);
}
[[nodiscard]] constexpr std::uint32_t queue_pair_of_claim(std::uint64_t claim) noexcept {
    return static_cast<std::uint32_t>(claim >> 20) & 0xfff;
}
[[nodiscard]] constexpr std::uint32_t node_of_claim(std::uint64_t claim) noexcept {
    return static_cast<std::uint32_t>(claim >> 8) & 0xfff;
}
[[nodiscard]] constexpr ClaimState state_of_claim(std::uint64_t claim) noexcept {
    return static_cast<ClaimState>(claim & 0xff);
}

/// One receive, followed by its sges: that of a receive of one piece is in the same cache line. The
/// sges are the owner's; `claim` goes from the owner (offered) to one claimant (taken); the rest is
/// the claimant's, for UD only. It begins a cache line.
struct PoolSlot {
    std::atomic<std::uint64_t> claim;
    std::uint32_t sges;
    std::uint32_t byte_len;
    std::uint32_t immediate;
    std::uint32_t source;                ///< sender's queue pair number
    std::uint32_t flags;                 ///< completion_… of block_layout.hpp
    std::atomic<std::uint32_t> arrived;  ///< sequence of the position, stored last
    std::uint64_t stamp;                 ///< when, as `cable_now`; 0: it does not say
};
static_assert(sizeof(PoolSlot) == 40 && sizeof(PoolSlot) + sizeof(ibv_sge) <= cache_line);

struct PoolGeometry {
    std::uint32_t entries = 1;
    std::uint32_t sges = 1;

    [[nodiscard]] constexpr bool valid() const noexcept {
        return std::has_single_bit(entries) && entries <= max_queue_entries && sges <= max_sges;
    }
    [[nodiscard]] constexpr std::size_t stride() const noexcept {
        const std::size_t bytes = sizeof(PoolSlot) + std::size_t{sges} * sizeof(ibv_sge);
        return (bytes + cache_line - 1) & ~(cache_line - 1);
    }
    static constexpr std::size_t order_offset = 320;
    [[nodiscard]] constexpr std::size_t slots_offset() const noexcept {
        const std::size_t end = order_offset + std::size_t{entries} * sizeof(std::uint64_t);
        return (end + cache_line - 1) & ~(cache_line - 1);
    }
    [[nodiscard]] constexpr std::size_t block_size() const noexcept {
        const std::size_t end = slots_offset() + entries * stride();
        return (end + page_size - 1) & ~(page_size - 1);
    }
};

/// A receive that was claimed. `slot` null: there was none.
struct ClaimedReceive {
    PoolSlot* slot = nullptr;
    std::uint32_t number = 0;
    std::uint32_t position = 0;
};

/// Typed pointers into a mapped pool. All zero where there is none.
class PoolView {
  public:
    PoolView() = default;
    PoolView(std::byte* memory, const PoolGeometry& geometry) noexcept
        : facts_{at<PoolFacts>(memory, 0)},
          head_{at<PoolHead>(memory, 64)},
          waiting_{at<PoolWaiting>(memory, 128)},
          bounds_{at<PoolBounds>(memory, 192)},
          tail_{at<PoolTail>(memory, 256)},
          order_{at<std::atomic<std::uint64_t>>(memory, PoolGeometry::order_offset)},
          slots_{memory + geometry.slots_offset()},
          stride_{geometry.stride()},
          room_mask_{geometry.entries - 1},
          sges_{geometry.sges} {}

    /// The view of a block whose geometry its owner wrote: nullopt if it does not fit `size`.
    [[nodiscard]] static std::optional<PoolView> of_peer(std::byte* memory,
                                                         std::size_t size) noexcept {
        if (size < page_size) return std::nullopt;
        const auto* facts = at<PoolFacts>(memory, 0);
        const PoolGeometry geometry{load_once(facts->entries), load_once(facts->sges)};
        if (load_once(facts->magic) != pool_magic || !geometry.valid() ||
            geometry.block_size() > size) {
            return std::nullopt;
        }
        return PoolView{memory, geometry};
    }

    explicit operator bool() const noexcept { return slots_ != nullptr; }
    [[nodiscard]] PoolFacts& facts() const noexcept { return *facts_; }
    [[nodiscard]] PoolHead& head() const noexcept { return *head_; }
    [[nodiscard]] PoolWaiting& waiting() const noexcept { return *waiting_; }
    [[nodiscard]] PoolBounds& bounds() const noexcept { return *bounds_; }
    [[nodiscard]] PoolTail& tail() const noexcept { return *tail_; }
    /// Places and slots that there is room for: no number is larger than this mask.
    [[nodiscard]] std::uint32_t room_mask() const noexcept { return room_mask_; }
    /// Which places of the order are in use now, as its owner, or a liar, says.
    [[nodiscard]] std::uint32_t mask() const noexcept {
        return bounds_->mask.load(std::memory_order_acquire) & room_mask_;
    }
    [[nodiscard]] std::uint32_t sges() const noexcept { return sges_; }
    /// `place`: a position under a mask.
    [[nodiscard]] std::atomic<std::uint64_t>& order(std::uint32_t place) const noexcept {
        return order_[place & room_mask_];
    }
    [[nodiscard]] PoolSlot& slot(std::uint32_t number) const noexcept {
        return *at<PoolSlot>(slots_, std::size_t{number & room_mask_} * stride_);
    }

    /// The receive that would be claimed next, for a look at it; it may be gone a moment later.
    [[nodiscard]] ClaimedReceive peek() const noexcept {
        std::uint32_t rounds = most_rounds();
        return peek(rounds);
    }
    /// Each round ends because somebody else claimed a receive; a liar could go on for ever.
    [[nodiscard]] std::uint32_t most_rounds() const noexcept { return mask() + 65; }
    [[nodiscard]] ClaimedReceive peek(std::uint32_t& rounds) const noexcept {
        for (; rounds > 0; --rounds) {
            const std::uint32_t position = head_->position.load(std::memory_order_acquire);
            const std::uint32_t places = mask();
            const std::uint64_t word = order(position & places).load(std::memory_order_acquire);
            if (static_cast<std::uint32_t>(word >> 32) != sequence_of(position)) {
                if (head_->position.load(std::memory_order_acquire) == position &&
                    mask() == places) {
                    return {};
                }
                continue;
            }
            const std::uint32_t number = static_cast<std::uint32_t>(word) & room_mask_;
            PoolSlot& found = slot(number);
            if (found.claim.load(std::memory_order_acquire) ==
                make_claim(position, 0, 0, claim_offered)) {
                return {&found, number, position};
            }
            advance_head(position);
        }
        return {};
    }
    /// Makes it the caller's, unless somebody was faster.
    [[nodiscard]] bool take(const ClaimedReceive& receive, std::uint32_t queue_pair,
                            std::uint32_t node) const noexcept {
        std::uint64_t expected = make_claim(receive.position, 0, 0, claim_offered);
        const bool mine = receive.slot->claim.compare_exchange_strong(
            expected, make_claim(receive.position, queue_pair, node, claim_taken),
            std::memory_order_acq_rel, std::memory_order_acquire);
        advance_head(receive.position);
        return mine;
    }
    [[nodiscard]] ClaimedReceive claim(std::uint32_t queue_pair,
                                       std::uint32_t node) const noexcept {
        for (std::uint32_t rounds = most_rounds(); rounds > 0; --rounds) {
            const ClaimedReceive next = peek(rounds);
            if (next.slot == nullptr || take(next, queue_pair, node)) return next;
        }
        return {};
    }
    /// After a claim failed: says so and tries again, so that whoever offers a receive after this
    /// sees that somebody waits.
    [[nodiscard]] ClaimedReceive claim_or_wait(std::uint32_t queue_pair,
                                               std::uint32_t node) const noexcept {
        const ClaimedReceive found = claim(queue_pair, node);
        if (found.slot != nullptr || waiting_->flag.load(std::memory_order_relaxed) != 0) {
            return found;
        }
        waiting_->flag.store(1, std::memory_order_seq_cst);
        heavy_fence();
        return claim(queue_pair, node);
    }
    /// Has the claim of `position` made the receives fewer than an armed limit?
    [[nodiscard]] bool below_limit(std::uint32_t position) const noexcept {
        const std::uint32_t limit = bounds_->limit.load(std::memory_order_relaxed);
        if (limit == 0) [[likely]]
            return false;
        return tail_->position.load(std::memory_order_relaxed) - (position + 1) < limit;
    }
    void advance_head(std::uint32_t position) const noexcept {
        head_->position.compare_exchange_strong(position, position + 1, std::memory_order_acq_rel,
                                                std::memory_order_relaxed);
    }

  private:
    template <class T>
    [[nodiscard]] static T* at(std::byte* memory, std::size_t offset) noexcept {
        return reinterpret_cast<T*>(memory + offset);
    }

    PoolFacts* facts_ = nullptr;
    PoolHead* head_ = nullptr;
    PoolWaiting* waiting_ = nullptr;
    PoolBounds* bounds_ = nullptr;
    PoolTail* tail_ = nullptr;
    std::atomic<std::uint64_t>* order_ = nullptr;
    std::byte* slots_ = nullptr;
    std::size_t stride_ = 0;
    std::uint32_t room_mask_ = 0;
    std::uint32_t sges_ = 0;
};

}  // namespace millrace::soft
