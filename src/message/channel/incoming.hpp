// Messages that come by SEND. One direction of a session's channel (channel_core.hpp), where the
// client has asked for it; the other one goes as it was asked for, and everything above the
// channel's end knows nothing of it.
//
// What differs from a ring that the peer writes into is little, and on purpose:
//
//   sender    lays frames (frame.hpp) in a ring of its own, each at the beginning of a slot, and
//             SENDs them from there; a frame takes a slot, whatever its length, so none is skipped
//             at the end, and a longer message than a slot travels in pieces
//   receiver  has posted receives of one slot each; a completion says which one has been filled,
//             and the reader is placed there. Passed over, it is posted again, and then counted
//             as consumed
//
// Positions count bytes of the sender's ring, as ever, and are multiples of a slot at both ends.
// So credit is room: `ring / slot` SENDs may be under way, the receiver tells of what it has
// consumed as it does of a ring's bytes (one WRITE or store for each quarter of them, and the
// sender asks by READ where that is not enough), and credit itself takes no receive: there is
// nothing to reserve against deadlock, and one slot is enough.
//
// Receives that are posted, of its own queue pair: one for each credit; one, as a slot is counted
// as consumed a moment before it is posted again; and those for events of who is asked to wake us
// (end/wake_up.hpp), which come in the same queue and take whichever is next. So a sender that
// keeps to its credits never finds the receiver not ready. One that does not is found out by the
// number of frames that were not passed over, or waits for ever at its own queue pair.
//
// Which receive the next SEND takes is known: the one that was posted first. A server with many
// clients looks there, as it looks at the place of the next frame in a ring. That is a hint, as
// nothing says that memory and completions become visible in one order, and an event may have
// taken that receive: the completion decides, and clients are looked at in turn, hint or none.
//
// With a shared receive queue (shared_receives.hpp) nobody knows who will fill which slot.
// Completions tell.
//
// Source: work 004, sections 3 and 4 (building blocks by SEND, shared receive queue).
#pragma once

#include <cstddef>
#include <cstdint>

#include "bounded_fifo.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::message {

class SharedReceives;

/// Registered memory of receives of one size, side by side.
struct Slots {
    std::byte* begin = nullptr;
    std::size_t slot_bytes = 0;
    std::uint32_t count = 0;
    std::uint32_t key = 0;

    [[nodiscard]] std::byte* at(std::uint32_t slot) const noexcept {
        return begin + slot * slot_bytes;
    }
    /// 0, or as ibv_post_recv. `queue`: of a queue pair, or shared.
    template <class Queue>
    [[nodiscard]] int post(Queue& queue, std::uint32_t slot) const noexcept {
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(at(slot)),
                            static_cast<std::uint32_t>(slot_bytes), key};
        return queue.post(verbs::Receive{.id = slot, .into = {&slice, 1}});
    }
};

/// What one end receives by SEND. One thread. Nothing allocates, blocks or throws once it is made.
class Incoming {
  public:
    struct Arrival {
        std::uint32_t slot = 0;
        std::uint32_t bytes = 0;
    };

    /// Receives beside the credits.
    static constexpr std::uint32_t beside = 1 + end::Sleeper::receives;

    /// Into `slots` of its own, of which `beside` are for others than the sender's credits.
    Incoming(verbs::QueuePair& queue_pair, const Slots& slots)
        : queue_pair_{&queue_pair},
          slots_{slots},
          arrivals_{slots.count - beside},
          posted_{slots.count} {}
    /// Into slots of a shared receive queue.
    Incoming(SharedReceives& shared, const Slots& slots, std::uint32_t credits)
        : shared_{&shared}, slots_{slots}, arrivals_{credits}, posted_{1} {}

    [[nodiscard]] std::size_t slot_bytes() const noexcept { return slots_.slot_bytes; }
    /// Posts all slots of its own. False: the queue pair refused.
    [[nodiscard]] bool post_all() noexcept {
        for (std::uint32_t slot = 0; slot < slots_.count; ++slot) {
            if (!post(slot)) return false;
        }
        return true;
    }
    /// Posts a slot (again).
    [[nodiscard]] bool post(std::uint32_t slot) noexcept;
    /// A completion named it. False: it is no slot.
    [[nodiscard]] bool completed(std::uint32_t slot) noexcept {
        if (slot >= slots_.count) return false;
        if (shared_ != nullptr) return true;
        if (!posted_.empty() && posted_.front() == slot) {
            posted_.pop();
        } else {
            posted_.take_out(slot);
        }
        return true;
    }
    /// A frame has come. False: more than there are credits.
    [[nodiscard]] bool take(const Arrival& arrival) noexcept {
        ++taken_;
        return arrivals_.push(arrival);
    }

    [[nodiscard]] bool empty() const noexcept { return arrivals_.empty(); }
    [[nodiscard]] bool is_single() const noexcept { return arrivals_.size() == 1; }
    /// The frame that is the next to be looked at.
    [[nodiscard]] const Arrival& front() const noexcept { return arrivals_.front(); }
    void pop() noexcept { arrivals_.pop(); }
    [[nodiscard]] const std::byte* place(const Arrival& arrival) const noexcept {
        return slots_.at(arrival.slot);
    }
    /// Where the next one will land, as far as one can know; zeroes.
    [[nodiscard]] const std::byte* hint() const noexcept {
        return posted_.empty() ? nowhere : slots_.at(posted_.front());
    }
    /// All in all.
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

  private:
    alignas(8) static constexpr std::byte nowhere[8]{};

    verbs::QueuePair* queue_pair_ = nullptr;
    SharedReceives* shared_ = nullptr;
    Slots slots_;
    BoundedFifo<Arrival> arrivals_;
    BoundedFifo<std::uint32_t> posted_;  ///< slots, in the order in which they will be taken
    std::uint64_t taken_ = 0;
};

}  // namespace millrace::message
