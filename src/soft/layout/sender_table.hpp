// The sender table, at the end of a UD queue pair's block, page aligned: a bitmap of the node
// numbers that have attached themselves, then a cache line per node number. Written by the senders'
// processes, each its own bit (set only) and line; but for the word that names the sender's copy
// box, which the owner writes. docs/soft/receives.md.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "layout/hazard.hpp"
#include "layout/layout.hpp"

namespace millrace::soft {

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
    void enter(std::uint32_t node, const NodeIdentity& identity) const noexcept {
        const std::uint64_t tag = tag_of(identity);
        std::atomic<std::uint64_t>& mine = word(node);
        const std::uint64_t before = mine.load(std::memory_order_relaxed);
        // Whoever had the number before is gone, and out whatever its word says.
        if (before == 0 || tag_in(before) != tag || (before & 1) != 0) {
            copy_box(node).store(0, std::memory_order_relaxed);
            mine.store(((before & ~(one_step - 1)) + one_step) | tag << 1,
                       std::memory_order_release);
        }
        // Seen by each fence from here on, or it comes before whatever we check.
        bits(node / 64).fetch_or(std::uint64_t{1} << (node % 64), std::memory_order_seq_cst);
    }
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

}  // namespace millrace::soft
