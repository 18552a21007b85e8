// What the two ends of a channel tell each other: at the beginning, and by the words that the peer
// READs and WRITEs. Used by channel_core.hpp, and by those who make a channel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/end/counter.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::message {

class SharedReceives;

/// Registered memory that the peer reads and writes. One per end.
struct ControlPage {
    end::WakeUpPage wake_up;
    end::CounterLine credit;    ///< PositionWord of what the peer consumed; it WRITEs it at times
    end::CounterLine consumed;  ///< PositionWord of what this end consumed; the peer READs it
    end::CounterLine landing;   ///< of our READ of the peer's `consumed`
    end::CounterLine read;      ///< PositionWord of the peer's READs, see rendezvous.hpp
};

/// Progress of one end, as the peer READs it: units of 64 bytes, sent in the upper half, consumed
/// in the lower. Rings have at most 2^24 units, so 32 bits tell differences. It may be torn: it
/// only decides whether to sleep, and a store that meets the READ also finds the sleep flag set.
struct Progress {
    std::uint32_t sent = 0;
    std::uint32_t consumed = 0;

    [[nodiscard]] static constexpr std::uint32_t units(std::uint64_t position) noexcept {
        return static_cast<std::uint32_t>(position / frame_alignment);
    }
    /// The upper half, of a position that is a multiple of 64.
    [[nodiscard]] static constexpr std::uint64_t sent_half(std::uint64_t position) noexcept {
        return position * ((std::uint64_t{1} << 32) / frame_alignment);
    }
    [[nodiscard]] static constexpr std::uint64_t pack(std::uint64_t sent,
                                                      std::uint64_t consumed) noexcept {
        return sent_half(sent) | units(consumed);
    }
    [[nodiscard]] static constexpr Progress unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word)};
    }
    /// How far `newer` is ahead of `older`, in bytes; negative if it is not.
    [[nodiscard]] static constexpr std::int64_t ahead(std::uint32_t newer,
                                                      std::uint32_t older) noexcept {
        return std::int64_t{static_cast<std::int32_t>(newer - older)} * frame_alignment;
    }
};

/// What each end tells the other at the beginning. Addresses are the sender's own.
struct Facts {
    std::uint64_t ring_address = 0;
    std::uint64_t ring_bytes = 0;
    std::uint64_t control_address = 0;
    std::uint32_t ring_rkey = 0;
    std::uint32_t control_rkey = 0;
    /// Where this end's count of sent bytes begins.
    std::uint64_t first_position = 0;
    /// The largest ring of the peer that it takes: so each end knows that the other refuses.
    std::uint64_t max_peer_ring_bytes = 0;
    /// Of the frames that this end sends.
    std::uint64_t secret = 0;
    /// This end would leave fences to who sleeps (end/far_fence.hpp): if both would, they do.
    std::uint64_t far_fences = 0;
    /// Transfer of what this end sends, and of what it receives. Who accepts says what it was asked
    /// for, or refuses.
    std::uint32_t sends_by = 0;
    std::uint32_t receives_by = 0;
    /// If it receives by SEND: bytes of a receive. Its "ring" is what its credits are worth.
    std::uint64_t slot_bytes = 0;
};
static_assert(sizeof(Facts) == 80);

/// How the two directions of one end go.
struct Ways {
    Transfer sends = Transfer::write;
    Transfer receives = Transfer::write;
    /// Of receives by SEND; at most a ring.
    std::size_t slot_bytes = default_slot_bytes;
    /// Where the completions of this end's receives come, if not in a queue of its own.
    SharedReceives* shared = nullptr;
    /// What it sends begins somewhere in the first page of the peer's ring: for a peer that looks
    /// at many rings. A message that is longer than what is left behind it may have to wait until
    /// the peer has looked there.
    bool begins_anywhere = false;

    static constexpr std::size_t default_slot_bytes = 512;
};

}  // namespace millrace::message
