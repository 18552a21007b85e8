// What both ends of a byte stream agree on before the first byte, and how large each end's queues
// are. Given to Connection; checked here once, when a stream is set up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/stream/mode.hpp"

namespace millrace::stream {

/// The longest send or receive: 1 TiB.
inline constexpr std::uint64_t longest_operation = std::uint64_t{1} << 40;
inline constexpr std::uint64_t largest_ring = std::uint64_t{1} << 40;
inline constexpr std::uint32_t most_adverts = 1U << 16;
inline constexpr std::uint32_t most_operations = 1U << 20;
/// A WRITE carries at most 2^31 bytes.
inline constexpr std::uint32_t longest_transfer = 1U << 30;

/// Of one direction; equal at both ends.
struct DirectionTerms {
    Mode mode = Mode::dynamic;
    std::uint64_t ring_bytes = 256 * 1024;  ///< of the receiver's ring: a power of two; direct: any
    std::uint32_t adverts = 64;             ///< unanswered at most
    /// Places that the mark behind each message takes in the stream, and in the ring, though its
    /// bytes are never sent (SOCK_SEQPACKET); 0: there are no messages (SOCK_STREAM).
    std::uint32_t mark_bytes = 0;

    [[nodiscard]] bool keeps_messages() const noexcept { return mark_bytes != 0; }
};

/// Of one end.
struct Terms {
    DirectionTerms outgoing{};
    DirectionTerms incoming{};
    std::uint32_t own_slots = 64;   ///< here, for the peer's messages (credits.hpp)
    std::uint32_t peer_slots = 64;  ///< ... and at the peer for this end's
    std::uint32_t sends = 64;       ///< of the program, not completed, at most
    std::uint32_t receives = 64;
    std::uint32_t transfer_bytes = longest_transfer;  ///< of one transfer at most
    /// Of one transfer to a ring, and of one copy out of it, at most, so that the receiver copies
    /// the first of them while the sender is at the next. Of a large ring a sixteenth, if that is
    /// more: each piece is a message, of which as many are under way as there are slots.
    std::uint32_t ring_piece_bytes = longest_transfer;
    /// So few patient bytes (Sender::send) wait while earlier ones lie in the ring; 0: none do.
    std::uint32_t coalesced_bytes = 4096;
    /// Sends of so many bytes wait for an empty ring, if they do not fit into it (Sender::
    /// holds_back); 0: none do.
    std::uint64_t awaited_bytes = 0;
    /// ... and once so many have gone to the ring since the last direct transfer, one that fits
    /// waits for a limited time (Sender::puts_off); 0: none does.
    std::uint64_t put_off_bytes = 0;
    /// Sends of fewer bytes go to the ring, from the `short_sends`th in a row on that found an
    /// advertisement: that would be a receive, a WRITE and a message for few bytes (Sender::
    /// forgoes); 0: advertisements are always used.
    std::uint64_t short_bytes = 0;
    std::uint32_t short_sends = 8;
    /// Receives of fewer bytes are advertised where the program offers so many bytes, all of its
    /// receives together, or did lately (Receiver::is_offered_enough); 0: always.
    std::uint64_t offered_bytes = 0;
    /// Behind an empty ring receives are advertised again whose advertisements the sender has
    /// turned away from. False: as work 003 has it, they are filled from the ring before anything
    /// is advertised.
    bool advertises_again = true;
};

/// Terms::ring_piece_bytes of the ring of `terms`.
[[nodiscard]] inline std::uint64_t ring_piece(const DirectionTerms& terms,
                                              std::uint32_t ring_piece_bytes) noexcept {
    return std::max<std::uint64_t>(ring_piece_bytes, terms.ring_bytes / 16);
}

/// Throws base::Error (invalid_argument) that names what is out of range.
void check(const Terms& terms);

}  // namespace millrace::stream
