// What the two ends of a ring agree upon before the first item: said once, over the link's
// socket. Used by Sender and Receiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/item_facts.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

/// The ring bytes that one fixed-size item takes: payload, padding, and a mark where items are
/// marked. Large items each begin at a cache line of their own, which costs them 1.4 % of ring at
/// most: across lines, every fourth store of a copy goes to two of them.
[[nodiscard]] constexpr std::uint64_t slot_bytes_of(std::uint64_t item_size,
                                                    std::uint64_t item_alignment,
                                                    bool marked = true) noexcept {
    constexpr std::uint64_t large = 4096;
    const std::uint64_t boundary = item_size >= large ? 64 : 8;
    return round_up(round_up(item_size, 8) + (marked ? mark_bytes : 0),
                    item_alignment > boundary ? item_alignment : boundary);
}

/// Which end of a ring this is.
enum class Role : std::uint8_t { producer, consumer };

/// What both ends hold after the agreement.
struct Terms {
    std::uint64_t ring_bytes = 0;     ///< of each ring; a multiple of slot_bytes, or of 8
    std::uint64_t slot_bytes = 0;     ///< one item with padding and mark; 0: frames
    std::uint64_t initial = 0;        ///< position of the first item
    std::uint64_t secret = 0;         ///< of the frames' tags; chosen by the producer
    bool in_order = false;            ///< a run of items may be one WRITE: the device keeps the
                                      ///< order of its bytes, or the design does not need it
    bool own_transfer_queue = false;  ///< the counter of transfer push has a queue pair of its own
    bool second_queue = false;  ///< the link gets a second queue pair, for that or for a mover
    bool in_place = false;      ///< the producer lays items in the consumer's ring
    bool far_fences = false;    ///< an end that sleeps makes the fences of the one that publishes
    std::uint64_t chunk_bytes = 0;   ///< push2: the transfer size; else 0
    std::uint64_t window_bytes = 0;  ///< what may lie at the consumer unconsumed
    std::uint32_t receive_pool = 0;  ///< the consumer's
    std::uint32_t peer_label = 0;    ///< as the other end has said
    Crew peer_crew{};                ///< likewise
    bool is_filtered = false;        ///< the producer's items go through a filter before
    std::uint32_t batch = 1;         ///< items
    std::uint64_t batch_bytes = 0;   ///< the same as bytes of ring; 0: unbatched, or the batch is
                                     ///< one of frames, which are counted where they are laid

    [[nodiscard]] bool framed() const noexcept { return slot_bytes == 0; }
    /// Items that fit in a ring; frames: bytes.
    [[nodiscard]] std::uint64_t capacity() const noexcept {
        return framed() ? ring_bytes : ring_bytes / slot_bytes;
    }
    /// The longest frame's payload. Half of the ring: so a frame and what is skipped before it
    /// always fit together.
    [[nodiscard]] std::uint64_t max_frame() const noexcept;
};

/// The addresses one end shows the other.
struct Places {
    verbs::RemoteAddress ring;      ///< the end whose ring the other WRITEs or READs
    verbs::RemoteAddress page;      ///< both: the WakeUpPage
    verbs::RemoteAddress credit;    ///< producer: where pushed credit is written
    verbs::RemoteAddress transfer;  ///< where the transfer counter is pushed to or pulled from
    verbs::RemoteAddress taken;     ///< producer: how many credit SENDs it has taken
};

/// Throws Error (invalid_argument) for a capacity of zero or beyond the limit, and for fields out
/// of range. Called before anything is connected.
void check(const RingOptions& options, const ItemFacts& item = {}, Design design = {});
/// Of an item's slot; 0: items are frames.
[[nodiscard]] std::uint64_t slot_bytes(const ItemFacts& item, Design design) noexcept;

/// What both ends have said of what they want, as it went over the socket.
struct Proposals {
    std::vector<std::byte> mine;
    std::vector<std::byte> theirs;
};
/// Says what this end wants: the first half of an agreement, for an end that does not wait. The
/// answer of the peer is the next word that the link has heard. Returns what was said. Never
/// blocks. Throws Error: invalid_argument for `options`; and as Link::say.
[[nodiscard]] std::vector<std::byte> propose(connect::Link& link, Role role, Design design,
                                             const RingOptions& options, const ItemFacts& item);
/// Agrees with the other end: waits for its proposal, unless both have proposed already; then it
/// does not block. Throws Error:
/// refused when the two do not fit (two consumers, another design, another item size), naming both,
/// at both ends; invalid_argument for `options`; and as Link::exchange.
[[nodiscard]] Terms agree(connect::Link& link, Role role, Design design, const RingOptions& options,
                          const ItemFacts& item, const base::Deadline& deadline,
                          const std::optional<Proposals>& proposals = std::nullopt);
/// The exchange of addresses, in halves that do not wait. Both ends must have registered what they
/// name. Throw Error (peer_lost, closed, protocol).
void say_places(connect::Link& link, const Places& mine);
[[nodiscard]] std::optional<Places> hear_places(connect::Link& link);
/// The second half, waiting for it. Throws Error as Link::exchange.
[[nodiscard]] Places wait_for_places(connect::Link& link, const base::Deadline& deadline);

/// What a link must be asked for so that a ring can run over it.
[[nodiscard]] connect::LinkOptions link_options(
    std::string_view service, std::uint32_t receive_pool = RingOptions::default_pool);

}  // namespace millrace::ring
