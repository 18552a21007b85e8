// What both halves of a packet stream (packet_stream.hpp) go by: what its two ends have agreed on,
// what happened, and why it is over. Used by the halves alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "lane/packet.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/message/detail/held_bytes.hpp"

namespace millrace::message {

using PacketTime = base::Clock::time_point;

/// Packets lie at multiples of it where they are sent from, so that what is read in place is
/// aligned.
inline constexpr std::size_t packet_alignment = 16;
/// A packet is taken for lost when one was acknowledged that was sent so many later.
inline constexpr std::uint64_t packet_tolerance = 3;
/// Packets that are sent again for a probe.
inline constexpr std::uint32_t packet_repeats = 4;

/// What the two ends have agreed on.
struct PacketTerms {
    std::uint64_t own_token = 0;   ///< in packets to this end
    std::uint64_t peer_token = 0;  ///< in packets from it
    std::uint32_t own_first = 0;   ///< number of the first packet to this end
    std::uint32_t peer_first = 0;  ///< and from it
    /// The longest packet from this end, head included; a multiple of 16, larger than a head.
    std::size_t packet_bytes = 4096;
    std::uint32_t own_room = 16;   ///< packets that this end can hold, 1 to most_packets
    std::uint32_t peer_room = 16;  ///< and the peer
    bool has_timer = false;        ///< exactly one of both ends
    std::chrono::nanoseconds first_patience = std::chrono::milliseconds{10};
    std::chrono::nanoseconds least_patience = std::chrono::milliseconds{3};
    std::chrono::nanoseconds most_patience = std::chrono::milliseconds{100};
    /// The longest message to this end that is put together.
    std::size_t max_message_bytes = std::size_t{1} << 20;
    /// The longest packet to this end, for one whose owner's memory may be short: see receive().
    std::size_t spare_bytes = 0;
    /// Whose part such a message is while it is put together; null: nobody's.
    std::shared_ptr<HeldBytes> held{};
};

struct PacketCounts {
    std::uint64_t sent = 0;        ///< transmissions of packets with data
    std::uint64_t repeated = 0;    ///< of these, those that were not the packet's first
    std::uint64_t bare = 0;        ///< packets without data
    std::uint64_t probes = 0;      ///< timers that ran out
    std::uint64_t received = 0;    ///< packets with data, taken
    std::uint64_t duplicates = 0;  ///< that were here already
    std::uint64_t foreign = 0;     ///< that were nobody's
    std::uint64_t dropped = 0;     ///< for which the owner had no memory to spare
    std::uint64_t damaged = 0;     ///< that had come, and could not be read
};

/// Of one stream, whose halves write it.
struct PacketLog {
    PacketCounts counts{};
    std::string_view failure{};  ///< why it is over before its end; empty while it is not

    void fail(std::string_view why) noexcept {
        if (failure.empty()) failure = why;
    }
    [[nodiscard]] bool is_broken() const noexcept { return !failure.empty(); }
};

}  // namespace millrace::message
