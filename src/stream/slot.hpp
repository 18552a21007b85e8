// Slots: the memory that control messages travel in. Each end has a ring of them in registered
// memory, which the peer writes and this end reads. Used by Socket::Core.
//
//   offset  field    written by the peer, with one WRITE or one store of each field, in this order
//   0       message  as wire.hpp has it
//   48      size     of the message
//   56      mark     a PositionWord of the message's number, counted from 1
//
// Message n lies in slot (n - 1) modulo the number of slots. It is there when the mark says n: the
// mark is written last. A device that does not keep the order of a WRITE's bytes gets two, the mark
// alone behind the rest. Slots hold nothing else than messages, and a mark is always in the same
// place, so nothing can be taken for the mark of a later one; and it is a word of which half may be
// old (ring/position.hpp).
//
// Who may write when: a message takes a credit (credits.hpp), and the credit for a slot comes back
// behind the reading of its message. So a slot is free when it is written, and nothing else need be
// told. Messages are read strictly by number; whether one was posted or stored does not matter.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/ring/position.hpp"
#include "wire.hpp"

namespace millrace::stream {

struct alignas(64) Slot {
    std::array<std::byte, largest_message> message{};
    std::uint64_t size = 0;
    std::uint64_t mark = 0;

    [[nodiscard]] static constexpr std::uint64_t mark_of(std::uint64_t number) noexcept {
        return ring::PositionWord::pack(number * ring::PositionWord::unit);
    }
};
static_assert(sizeof(Slot) == 64 && offsetof(Slot, size) == 48 && offsetof(Slot, mark) == 56);

/// Fills `slot`, wherever it lies; the mark last, with everything written before.
inline void fill(Slot& slot, const EncodedMessage& message, std::uint64_t number) noexcept {
    std::memcpy(slot.message.data(), message.bytes.data(), largest_message);
    slot.size = message.size;
    base::telling_peers();
    std::atomic_ref<std::uint64_t>{slot.mark}.store(Slot::mark_of(number),
                                                    std::memory_order_release);
}

/// The slots that the peer writes. One thread.
class IncomingSlots {
  public:
    IncomingSlots() noexcept = default;
    /// `count`: a power of two; zeroed.
    IncomingSlots(Slot* slots, std::uint32_t count) noexcept
        : slots_{slots}, mask_{count - 1}, next_mark_{Slot::mark_of(1)} {}

    /// The next message is there.
    [[nodiscard]] bool has_next() const noexcept {
        return std::atomic_ref<std::uint64_t>{slots_[taken_ & mask_].mark}.load(
                   std::memory_order_acquire) == next_mark_;
    }
    /// Takes it. A copy: the peer may go on writing to the slot. One of an impossible size is
    /// answered with none at all, which no kind of message has.
    void take(EncodedMessage& message) noexcept {
        Slot& slot = slots_[taken_ & mask_];
        base::heard_from_peers();
        std::memcpy(message.bytes.data(), slot.message.data(), largest_message);
        // One load, so that what is compared is what is used.
        const std::uint64_t size =
            std::atomic_ref<std::uint64_t>{slot.size}.load(std::memory_order_relaxed);
        message.size = size <= largest_message ? static_cast<std::uint32_t>(size) : 0;
        ++taken_;
        next_mark_ = Slot::mark_of(taken_ + 1);
    }
    /// Messages so far.
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

  private:
    Slot* slots_ = nullptr;
    std::uint64_t mask_ = 0;
    std::uint64_t taken_ = 0;
    std::uint64_t next_mark_ = 0;
};

}  // namespace millrace::stream
