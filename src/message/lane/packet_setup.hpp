// What the two ends of a lane over packets tell each other at the beginning, and what memory each
// has. Used by packet_lane.hpp and packet_host.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lane/packet.hpp"
#include "lane/shared_sender.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/verbs/datagram.hpp"

namespace millrace::message {

inline constexpr const char* setting_up_packets = "set up messages over packets";

/// Receives besides those that the peer may fill, for packets without data.
inline constexpr std::uint32_t spare_receives = 8;
/// Receives of a server's end through a shared buffer, for a client that rings.
inline constexpr std::uint32_t bell_receives = 2;

/// What each end tells the other at the beginning.
struct PacketFacts {
    std::uint64_t token = 0;       ///< in packets to this end
    std::uint64_t ring_bytes = 0;  ///< of memory that the other end shall send from
    std::uint32_t version = 1;     ///< shared_version: the client's go through a shared buffer
    std::uint32_t room = 0;        ///< packets that this end holds
    std::uint32_t packet_bytes = 0;
    std::uint32_t zero = 0;

    static constexpr std::uint32_t shared_version = 2;
};
static_assert(sizeof(PacketFacts) == 32);
/// What the server says of a shared buffer.
struct SharedPacketFacts {
    PacketFacts packets;
    SharedFacts shared;
};
[[nodiscard]] inline PacketFacts packet_facts_in(std::span<const std::byte> told,
                                                 const std::string& peer) {
    return connect::facts_in<PacketFacts>(told, setting_up_packets, peer);
}

/// How one end posts its packets.
struct PacketPosting {
    PostingHabits habits{};
    /// A client's: what is committed waits for more until a look finds nothing.
    bool gathers = false;
};

/// What one end has memory for.
struct PacketMemory {
    std::size_t ring_bytes = 0;           ///< as of a ring: for what comes, see docs/messaging.md
    std::size_t max_peer_ring_bytes = 0;  ///< the same of the peer, for what goes there
    std::size_t max_message_bytes = 0;    ///< to this end
    /// A client's: requests go through the server's shared buffer.
    bool is_shared = false;
    ring::Carrier carrier = ring::Carrier::automatic;  ///< of these
    /// Whose the memory of long messages is; null: nobody's.
    std::shared_ptr<HeldBytes> held{};
};

[[nodiscard]] inline std::size_t mtu_of(connect::Endpoint& endpoint) {
    return std::size_t{128} << endpoint.context().port(endpoint.port()).active_mtu;
}

/// What one end receives into: four times the bytes of its ring, as a packet takes a whole receive
/// however short it is. By UC, receives are short, so that there are many of them. A datagram
/// comes from anyone, so a receive has to be long enough for the longest one.
struct PacketReceives {
    std::size_t packet_bytes;
    std::uint32_t room;
    std::size_t slot_bytes;

    PacketReceives(connect::Transport transport, std::size_t ring_bytes, std::size_t mtu) noexcept
        : packet_bytes{transport == connect::Transport::ud
                           ? mtu
                           : std::clamp(ring_bytes / 16, std::min(least_packet, mtu), mtu)},
          room{static_cast<std::uint32_t>(
              transport == connect::Transport::ud
                  ? std::clamp<std::size_t>(8 * ring_bytes / mtu, 16, most_packets)
                  : most_packets)},
          slot_bytes{in_shared_lines(packet_bytes + header_of(transport)) * shared_line_bytes} {}

    [[nodiscard]] std::uint32_t slots() const noexcept { return room + spare_receives; }

    static constexpr std::size_t least_packet = 256;
    [[nodiscard]] static std::size_t header_of(connect::Transport transport) noexcept {
        return transport == connect::Transport::ud ? verbs::datagram_header_bytes : 0;
    }
};

}  // namespace millrace::message
