// What a program asks for of one end of a ring. flow::Options holds them.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/ring/carrier.hpp"
#include "millrace/ring/detail/end_names.hpp"

namespace millrace::ring {

/// What one end asks for.
/// Rings whose ends on one side are one to the program, such as those of the levels of a
/// flow::PriorityProducer, which sets it.
struct Crew {
    std::uint64_t number = 0;  ///< the same for all of them, and for no others; 0: it is alone
    std::uint32_t size = 1;    ///< how many they are
};

struct RingOptions {
    /// Items that each of the two rings (the producer's and the consumer's) holds: 1 or more, not
    /// only powers of two. Frames: bytes of ring, frame headers included; the longest frame is
    /// about half of it. Not given: what the other end asks for, else 256 KiB. If both ends ask,
    /// the smaller number holds. 0 is refused.
    std::optional<std::uint64_t> capacity{};
    /// Pull space: above which part of the consumer's ring in use (as far as is known) the
    /// producer refreshes what it knows, without waiting for the answer. U_max of equation 5.2,
    /// for which the work gives no value. 0 to 1.
    double refresh_above = 0.5;
    /// Consumer: credit returns after every so-many-th part of the ring, and when it finds the
    /// ring empty. 1 to 65536. A part smaller than an item means every item.
    std::uint32_t credit_parts = 8;
    /// Consumer: receives kept posted, for push2 data and for immediates. As many are asked of the
    /// queue pair. 1 to 16384; push2: at most the chunks of the ring (fixed-size items: the
    /// capacity). More than 64 must be asked of both ends, because the accepting end makes its
    /// queue pair before they agree. Work 000, section 6.2.
    std::uint32_t receive_pool = default_pool;
    /// How many items make a batch, 1 to 65536 and at most the capacity. Batching::fixed sends when
    /// so many are there (default 16); Batching::dynamic when so many are there although the
    /// consumer is not done with what it has (default 64; not for frames). Not given: what the
    /// other end asks for. If both ends ask, the smaller number holds. It is the number after
    /// "fixed" or "dynamic" in the name of a design.
    std::optional<std::uint32_t> batch{};
    /// Producer: how it learns that its requests are complete. `events` is there to compare with
    /// the work, which used them.
    Completions completions = Completions::polled;
    /// Transfer push: the counter travels on a queue pair of its own, and so waits for no data that
    /// are posted after those it tells of; but it is posted only when they are known to have
    /// arrived, because nothing orders two queue pairs. What either end asks for holds for both.
    /// Work 000, section 6.1.
    bool own_transfer_queue = false;
    /// What carries items of push1 data, and counters: stores, where the peer's memory is
    /// addressable, or requests; see carrier.hpp, docs/flow.md and explain(). With stores, a
    /// producer without a mover lays its items where the consumer reads them, so the two rings are
    /// one and hold half as much. Each end chooses for itself.
    Carrier carrier = Carrier::automatic;
    /// Told to the other end, to which it means what the two have agreed on: see flow::FanIn and
    /// flow::PriorityProducer.
    std::uint32_t label = 0;
    /// The other end's label must be below, or the two do not come together. 0: it may be any.
    std::uint32_t peer_labels = 0;
    /// Told to the other end as well.
    Crew crew{};

    static constexpr std::uint32_t default_pool = 64;
    static constexpr std::uint32_t max_pool = 16384;
    static constexpr std::uint32_t max_batch = 65536;
    static constexpr std::uint32_t default_fixed_batch = 16;
    static constexpr std::uint32_t default_dynamic_batch = 64;
    static constexpr std::uint64_t default_bytes = 256 * 1024;
    static constexpr std::uint64_t max_bytes = std::uint64_t{1} << 30;
};

}  // namespace millrace::ring
