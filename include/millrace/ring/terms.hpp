// What the two ends of a ring agree upon before the first item: said once, over the link's
// socket. Used by Sender and Receiver.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/send_window.hpp"
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

/// What one end asks for.
struct RingOptions {
    /// Fixed-size items: how many fit in each of the two rings. Frames: how many bytes of ring,
    /// headers included. Not given: what the other end asks for, else the default. If both ends
    /// ask, the smaller number holds.
    std::optional<std::uint64_t> capacity{};
    /// Fixed-size items: sizeof and alignof. 0: frames.
    std::uint32_t item_size = 0;
    std::uint32_t item_alignment = 1;
    /// Pull space: above which part of the consumer's ring in use (as far as is known) the
    /// producer refreshes what it knows, without waiting for the answer. U_max of equation 5.2,
    /// for which the work gives no value. 0 to 1.
    double refresh_above = 0.5;
    /// Consumer: credit returns after every so-many-th part of the ring, and when it finds the
    /// ring empty. 1 to 1024. A part smaller than an item means every item.
    std::uint32_t credit_parts = 8;
    /// Consumer: receives kept posted, for push2 data and for immediates. As many are asked of the
    /// queue pair. 1 to 16384; push2: at most the chunks of the ring (fixed-size items: the
    /// capacity). Work 000, section 6.2.
    std::uint32_t receive_pool = default_pool;
    /// How many items make a batch, 1 to 65536 and at most the capacity. Batching::fixed sends when
    /// so many are there (default 16); Batching::dynamic when so many are there although the
    /// consumer is not done with what it has (default 64; not for frames). Not given: what the
    /// other end asks for. If both ends ask, the smaller number holds.
    std::optional<std::uint32_t> batch{};
    /// Producer: how it learns that its requests are complete. `events` is there to compare with
    /// the work, which used them.
    Completions completions = Completions::polled;
    /// Transfer push: the counter travels on a queue pair of its own, and so waits for no data that
    /// are posted behind those it tells of; but it is posted only when they are known to have
    /// arrived, because nothing orders two queue pairs. What either end asks for holds for both.
    /// Work 000, section 6.1.
    bool own_transfer_queue = false;
    /// Producer of items over push1 data without a mover: lays items where the consumer reads them,
    /// if the device can show it that memory (verbs::QueuePair::map_remote). Requests are the same,
    /// but the device has nothing to copy, and the two rings are one: it holds half as much. Where
    /// the device cannot, the producer has a ring of its own as ever.
    bool in_place = false;
    /// Producer: the position of the first item in bytes, a multiple of 8. For tests of wrapping
    /// counters.
    std::uint64_t initial_position = 0;

    static constexpr std::uint32_t default_pool = 64;
    static constexpr std::uint32_t max_pool = 16384;
    static constexpr std::uint32_t max_batch = 65536;
    static constexpr std::uint32_t default_fixed_batch = 16;
    static constexpr std::uint32_t default_dynamic_batch = 64;
    static constexpr std::uint64_t default_bytes = 256 * 1024;
    static constexpr std::uint64_t max_bytes = std::uint64_t{1} << 30;
};

/// What both ends hold after the agreement.
struct Terms {
    std::uint64_t ring_bytes = 0;     ///< of each ring; a multiple of slot_bytes, or of 8
    std::uint64_t slot_bytes = 0;     ///< one item with padding and mark; 0: frames
    std::uint64_t initial = 0;        ///< position of the first item
    std::uint64_t secret = 0;         ///< of the frames' tags; chosen by the producer
    bool in_order = false;            ///< a run of items may be one WRITE: the device keeps the
                                      ///< order of its bytes, or the design does not need it
    bool own_transfer_queue = false;  ///< the counter of transfer push has a queue pair of its own
    bool in_place = false;            ///< of the producer's: its ring is the consumer's
    bool far_fences = false;          ///< whoever sleeps makes the fences of whoever publishes
    std::uint64_t chunk_bytes = 0;    ///< push2: the transfer size; else 0
    std::uint64_t window_bytes = 0;   ///< what may lie at the consumer unconsumed
    std::uint32_t receive_pool = 0;   ///< the consumer's
    std::uint32_t batch = 1;          ///< items
    std::uint64_t batch_bytes = 0;    ///< the same as bytes of ring; 0: unbatched, or the batch is
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
void check(const RingOptions& options, Design design = {});

/// Agrees with the other end; opens the link's second queue pair if that is agreed. Throws Error:
/// refused when the two do not fit (two consumers, another design, another item size), naming both,
/// at both ends; invalid_argument for `options`; and as Link::exchange.
[[nodiscard]] Terms agree(connect::Link& link, Role role, Design design, const RingOptions& options,
                          const base::Deadline& deadline);
/// Exchanges addresses; both ends must have registered what they name.
[[nodiscard]] Places exchange_places(connect::Link& link, const Places& mine,
                                     const base::Deadline& deadline);

/// What a link must be asked for so that a ring can run over it.
[[nodiscard]] connect::LinkOptions link_options(
    std::string_view service, std::uint32_t receive_pool = RingOptions::default_pool);

}  // namespace millrace::ring
