// The dirty bitmap of a completion queue that many queue pairs share: a page of the owner's node in
// which whoever writes a completion leaves a bit, so that the poller need not look at every queue
// pair. docs/soft/completion.md. Written by executors of any process; read, and cleared, by the
// poller (completion_turns.cpp).
//
//   offset 0    u32 rung: something was set since the poller looked last        anybody
//          64   128 words of 64 bits, one bit per sub-ring (CompletionSource)    anybody
//
// The one who sets: completion, full fence, looks at its bit, and sets it if it is not.
// The poller: clears the bit, full fence, looks at the sub-ring once more.
// Either the poller sees the completion, or the other one sees the cleared bit. A bit that is wrong
// (a peer that lies, or died between bit and `rung`) costs time only: idle sub-rings are also
// looked at by turns.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout/layout.hpp"
#include "system/fences.hpp"

namespace millrace::soft {

struct NewsPage {
    static constexpr std::uint32_t words = 128;
    static constexpr std::uint32_t bits = words * 64;

    alignas(cache_line) std::atomic<std::uint32_t> rung;
    alignas(cache_line) std::atomic<std::uint64_t> word[words];

    /// After a completion was written to the sub-ring of `bit`.
    void tell(std::uint32_t bit) noexcept {
        full_fence();
        std::atomic<std::uint64_t>& at = word[bit / 64 % words];
        const std::uint64_t mask = std::uint64_t{1} << bit % 64;
        if ((at.load(std::memory_order_relaxed) & mask) != 0) return;
        at.fetch_or(mask, std::memory_order_seq_cst);
        rung.store(1, std::memory_order_seq_cst);
    }
};
static_assert(sizeof(NewsPage) <= page_size);

/// A sub-ring's place in a page, as the owner says it in the queue pair's block: 0, or the page's
/// block (generation, index) and the bit.
[[nodiscard]] constexpr std::uint64_t make_news_word(std::uint32_t generation, std::uint32_t index,
                                                     std::uint32_t bit) noexcept {
    return std::uint64_t{generation} << 32 | std::uint64_t{index & 0xffff} << 16 | (bit & 0xffff);
}
[[nodiscard]] constexpr std::uint32_t generation_of_news(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> 32);
}
[[nodiscard]] constexpr std::uint32_t index_of_news(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> 16) & 0xffff;
}
[[nodiscard]] constexpr std::uint32_t bit_of_news(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word) & 0xffff;
}

/// The same for an executor in the owner's own process, which does not believe the block.
struct NewsPlace {
    std::atomic<NewsPage*> page{nullptr};  ///< null: the poller looks at this sub-ring anyway
    std::uint32_t bit = 0;
};

}  // namespace millrace::soft
