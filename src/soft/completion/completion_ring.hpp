// One of the two rings of completions of a queue pair, that of its sends or that of its receives,
// as whoever executes writes it: the entry, the time if the owner wants it, the bit in the news
// page and the bell. Called by executors of either process and by senders of datagrams; one thread
// at a time. docs/soft/completion.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "completion/ringing.hpp"
#include "fabric/fabric.hpp"
#include "layout/block_layout.hpp"
#include "layout/news_page.hpp"
#include "system/counters.hpp"
#include "system/fences.hpp"

namespace millrace::soft {

class CompletionRing {
  public:
    enum class Of : std::uint8_t { sends, receives };
    /// What the owner's process need not look up, and does not believe of its block; or the peer
    /// that the queue pair is of, which must outlive the ring's use.
    struct Owner {
        int bell = -1;                    ///< of the completion channel; -1: none
        const NewsPlace* news = nullptr;  ///< where completions are announced
        PeerNode* peer = nullptr;
    };

    void open(const BlockView& block, Of of, const Owner& owner, bool asymmetric,
              Counters& counters) noexcept;
    void close() noexcept { *this = CompletionRing{}; }

    /// Of the next completion.
    [[nodiscard]] std::uint32_t position() const noexcept {
        return position_->load(std::memory_order_relaxed);
    }
    /// Writes the completion at `position()`; tells the owner if its completion queue wants that.
    void write(std::uint32_t position, std::uint32_t bytes, std::uint32_t immediate,
               std::uint32_t slot_and_flags) noexcept {
        const std::uint32_t before = armed();
        CompletionEntry& entry = entries_[position & mask_];
        entry.byte_len = bytes;
        entry.immediate = immediate;
        entry.slot_and_flags = slot_and_flags;
        position_->store(position + 1, std::memory_order_relaxed);
        entry.sequence.store(sequence_of(position), std::memory_order_release);
        light_fence(asymmetric_);
        if ((armed_->load(std::memory_order_relaxed) & armed_attention_mask) != 0) [[unlikely]] {
            attend(position, (slot_and_flags & completion_solicited) != 0, before);
        }
    }

    /// The armed word ahead of a completion, for `told`.
    [[nodiscard]] std::uint32_t armed() const noexcept {
        return armed_->load(std::memory_order_acquire);
    }
    /// A completion was written elsewhere: tells the owner if its completion queue wants that.
    void told(bool solicited, std::uint32_t before) noexcept {
        light_fence(asymmetric_);
        if ((armed_->load(std::memory_order_relaxed) & (armed_mode_mask | armed_fenced)) != 0)
            [[unlikely]] {
            ring(solicited, before);
        }
    }

    /// Wakes the owner if its completion queue is armed for anything. Once per epoch suffices for
    /// completions that were written after it had begun: `before` is the armed word as it was ahead
    /// of the completion. One that came while the queue was being armed may be older than the
    /// epoch's first event, and a fault is no completion: they do not count. Makes the full fence
    /// that the armed word may ask for.
    void ring(bool solicited, std::uint32_t before = armed_not) noexcept;
    /// The same whether it is armed or not.
    void wake() noexcept;
    /// Opens the bell that wake() would ring, a peer's: that takes five system calls.
    void open_bell() noexcept { static_cast<void>(bell_of_peer()); }

  private:
    /// The owner's page in which completions are announced, where it is a peer's.
    struct Announcement {
        std::uint64_t word = 0;  ///< what the peer said of it
        std::shared_ptr<NewsPage> page;
    };

    /// What an armed word asks of whoever has written the completion at `position`.
    void attend(std::uint32_t position, bool solicited, std::uint32_t before) noexcept;
    void announce() noexcept;
    [[nodiscard]] int bell_of_peer() noexcept;

    std::atomic<std::uint32_t>* armed_ = nullptr;
    std::atomic<std::uint32_t>* position_ = nullptr;
    CompletionEntry* entries_ = nullptr;
    std::uint32_t mask_ = 0;
    bool asymmetric_ = false;
    RungEpoch rung_;
    CompletionStamp* stamps_ = nullptr;  ///< null: the owner keeps none
    const std::atomic<std::int32_t>* bell_number_ = nullptr;
    const std::atomic<std::uint64_t>* news_word_ = nullptr;
    Owner owner_;
    PeerBell bell_;
    Announcement news_;
    Counters* counters_ = nullptr;
};

}  // namespace millrace::soft
