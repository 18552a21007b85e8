// What a UD queue pair has beyond a connected one, as a receiver: who executes on it (the sender
// table at the end of its block) and the ring of what has arrived. Owned by the queue pair; the
// table is used by senders too. docs/soft-device.md, "Receive pools".
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/node.hpp"
#include "layout/block_layout.hpp"
#include "layout/layout.hpp"
#include "layout/receive_pool_layout.hpp"

namespace millrace::soft {

inline constexpr std::uint32_t grh_bytes = 40;
inline constexpr std::uint32_t datagram_mtu = 4096;

/// At the end of a UD queue pair's block, page aligned: a bitmap of the node numbers that have
/// attached themselves, then a cache line per node number. Written by the senders' processes, each
/// its own bit (set only) and line; but for the word that names the sender's copy box, which the
/// owner writes.
class SenderTable {
  public:
    static constexpr std::size_t lines_offset = page_size;
    static constexpr std::size_t size =
        lines_offset + std::size_t{max_node_number + 1} * cache_line;
    static_assert((max_node_number + 1) / 8 <= page_size);

    SenderTable() = default;
    explicit SenderTable(std::byte* memory) noexcept : memory_{memory} {}

    /// Its names are those of the owner's regions: the receiving end's.
    [[nodiscard]] Hazard& hazard(std::uint32_t node) const noexcept { return line(node).hazard; }
    [[nodiscard]] std::atomic<std::uint64_t>& word(std::uint32_t node) const noexcept {
        return hazard(node).word;
    }
    /// The copy box of a sender that may not copy to the owner's memory (make_copy_box_word). 0: it
    /// has none.
    [[nodiscard]] std::atomic<std::uint64_t>& copy_box(std::uint32_t node) const noexcept {
        return line(node).copy_box;
    }
    /// Not 0: that sender wants one.
    [[nodiscard]] std::atomic<std::uint64_t>& wants_box(std::uint32_t node) const noexcept {
        return line(node).wants_box;
    }
    [[nodiscard]] std::atomic<std::uint64_t>& bits(std::uint32_t index) const noexcept {
        return reinterpret_cast<std::atomic<std::uint64_t>*>(memory_)[index];
    }
    static constexpr std::uint32_t bit_words = (max_node_number + 1) / 64;

    /// Hazard words: count << 21 | tag << 1 | odd while executing.
    [[nodiscard]] static constexpr std::uint64_t tag_of(const NodeIdentity& identity) noexcept {
        return identity.low & 0xfffff;
    }
    [[nodiscard]] static constexpr std::uint64_t tag_in(std::uint64_t word) noexcept {
        return word >> 1 & 0xfffff;
    }
    static constexpr std::uint64_t one_step = std::uint64_t{1} << 21;

    /// By a sender's process, before it executes on the queue pair for the first time.
    void enter(std::uint32_t node, const NodeIdentity& identity) const noexcept;
    /// By the owner: calls `serve(node)` for each sender that wants a copy box since the last call.
    template <class Serve>
    void for_each_wish(Serve&& serve) const noexcept {
        for (std::uint32_t index = 0; index < bit_words; ++index) {
            std::uint64_t bits = this->bits(index).load(std::memory_order_acquire);
            for (; bits != 0; bits &= bits - 1) {
                const std::uint32_t node =
                    index * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
                if (wants_box(node).load(std::memory_order_relaxed) == 0) continue;
                if (wants_box(node).exchange(0, std::memory_order_acquire) != 0) serve(node);
            }
        }
    }

  private:
    struct alignas(cache_line) Line {
        Hazard hazard;
        std::atomic<std::uint64_t> copy_box;
        std::atomic<std::uint64_t> wants_box;
    };
    static_assert(sizeof(Line) == cache_line);
    [[nodiscard]] Line& line(std::uint32_t node) const noexcept {
        return reinterpret_cast<Line*>(memory_ + lines_offset)[node & 0xfff];
    }

    std::byte* memory_ = nullptr;
};

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
    /// that.
    [[nodiscard]] bool sender_out(std::uint32_t node, std::uint64_t word,
                                  const FencedKey* region = nullptr) const noexcept;

    /// For fences of regions: takes those out of `seen` that are known to be stopped. False: one
    /// of them may be copying from before `registration`.
    [[nodiscard]] bool pass_stopped(std::vector<SeenSender>& seen, std::uint64_t registration,
                                    const FencedKey& region);
    /// These did not let go for a second. `registrations`: as many regions there have been so far.
    void remember_stopped(const std::vector<SeenSender>& seen, std::uint64_t registrations,
                          const FencedKey& region);

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
    std::vector<Stopped> stopped_;  ///< with the process mutex
};

}  // namespace millrace::soft
