#include "receives/datagram.hpp"

#include <bit>
#include <cstdint>
#include <new>

#include "fabric/node.hpp"

namespace millrace::soft {

Datagram::Datagram(Node& node, std::byte* sender_table, std::uint32_t entries)
    : node_{node},
      senders_{sender_table},
      mask_{entries - 1},
      ring_{std::make_unique<CompletionEntry[]>(entries)},
      facts_{std::make_unique<ArrivalFacts[]>(entries)} {}

bool Datagram::see(std::vector<SeenSender>& seen) const noexcept {
    seen.clear();
    for (std::uint32_t index = 0; index < SenderTable::bit_words; ++index) {
        std::uint64_t bits = senders_.bits(index).load(std::memory_order_acquire);
        for (; bits != 0; bits &= bits - 1) {
            const std::uint32_t node =
                index * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
            const std::uint64_t word = senders_.word(node).load(std::memory_order_acquire);
            if ((word & 1) == 0) continue;
            try {
                seen.push_back({node, word});
            } catch (const std::bad_alloc&) {
                return false;
            }
        }
    }
    return true;
}

bool Datagram::sender_out(std::uint32_t node, std::uint64_t word,
                          const FencedKey* region) const noexcept {
    const Hazard& hazard = senders_.hazard(node);
    const std::uint64_t now = hazard.word.load(std::memory_order_acquire);
    if ((now & 1) == 0 || now != word) return true;
    if (region != nullptr && !region->may_be_in(hazard, named_by_receiver)) return true;
    if (node == 0 || !node_.usable()) return true;
    try {
        bool is_free = false;
        const auto peer = node_.peer(node, &is_free);
        if (peer == nullptr) return is_free;  // one that cannot be reached may be in mid-copy
        return SenderTable::tag_of(peer->identity()) != SenderTable::tag_in(word);
    } catch (const std::exception&) {
        return false;  // it cannot be told: asked again
    }
}

bool Datagram::pass_stopped(QueuePairsHeld, std::vector<SeenSender>& seen,
                            std::uint64_t registration, const FencedKey& region) {
    bool free = true;
    std::erase_if(seen, [&](const SeenSender& one) {
        for (const Stopped& known : stopped_) {
            if (known.sender.node != one.node || known.sender.word != one.word) continue;
            if (sender_out(one.node, one.word, &region)) return true;
            if (registration <= known.registrations) free = false;
            return true;
        }
        return false;
    });
    std::erase_if(stopped_, [&](const Stopped& known) {
        return sender_out(known.sender.node, known.sender.word);
    });
    return free;
}

void Datagram::remember_stopped(QueuePairsHeld, const std::vector<SeenSender>& seen,
                                std::uint64_t registrations, const FencedKey& region) {
    for (const SeenSender& one : seen) {
        if (!sender_out(one.node, one.word, &region)) stopped_.push_back({one, registrations});
    }
}

void Datagram::push(const PoolSlot& slot, std::uint32_t number) noexcept {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    CompletionEntry& entry = ring_[tail & mask_];
    const std::uint32_t flags = load_once(slot.flags);
    entry.byte_len = load_once(slot.byte_len);
    entry.immediate = load_once(slot.immediate);
    entry.slot_and_flags = (flags & ~std::uint32_t{completion_slot_mask}) | number;
    facts_[tail & mask_] =
        ArrivalFacts{load_once(slot.source) & 0xffffff, flags, load_once(slot.stamp)};
    tail_.store(tail + 1, std::memory_order_relaxed);
    entry.sequence.store(sequence_of(tail), std::memory_order_release);
}

void Datagram::clear() noexcept {
    for (std::uint32_t i = 0; i <= mask_; ++i) {
        ring_[i].sequence.store(0, std::memory_order_relaxed);
    }
    tail_.store(first_position, std::memory_order_relaxed);
}

}  // namespace millrace::soft
