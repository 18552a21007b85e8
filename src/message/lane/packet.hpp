// Packets: what one end of a packet stream (packet_stream.hpp) puts into a datagram, or into a SEND
// of an unreliable connection. Used by the stream, its tests and its fuzzer.
//
//   offset 0       8          16         20             24     26       28      30
//   | token        | received | sequence | acknowledged | room | length | flags | 0 | payload …
//
// Numbers of packets are 32 bits and wrap. A packet that comes 2^31 packets late would be taken for
// another one: no network keeps one for so long.
//
// Everything here may have been written by a hostile peer, or be a packet of somebody else, and
// late: parse() says whether it is a packet at all. Whose it is, and whether what it says can be
// so, is for the stream to judge.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace millrace::message {

/// As it travels, in the byte order of the host, as every frame of this folder.
struct PacketHead {
    std::uint64_t token = 0;         ///< of the connection: what its receiver asked for
    std::uint64_t received = 0;      ///< bit i: packet `acknowledged` + 1 + i has come, too
    std::uint32_t sequence = 0;      ///< data: its number; otherwise that of the next one
    std::uint32_t acknowledged = 0;  ///< all packets before this one have come
    std::uint16_t room = 0;          ///< so many packets from `acknowledged` on have a place
    std::uint16_t length = 0;        ///< bytes of the payload, which is all that follows
    std::uint16_t flags = 0;
    std::uint16_t zero = 0;
};
static_assert(std::endian::native == std::endian::little);
inline constexpr std::size_t packet_head_bytes = sizeof(PacketHead);
static_assert(packet_head_bytes == 32);

inline constexpr std::uint16_t packet_data = 1;     ///< it has a number, and a payload
inline constexpr std::uint16_t packet_first = 2;    ///< data: a message begins with it
inline constexpr std::uint16_t packet_last = 4;     ///< data: a message ends with it
inline constexpr std::uint16_t packet_asks = 8;     ///< acknowledge it, be it by itself
inline constexpr std::uint16_t packet_probes = 16;  ///< its sender has waited in vain
inline constexpr std::uint16_t packet_whole = packet_data | packet_first | packet_last;
inline constexpr std::uint16_t packet_flags = packet_whole | packet_asks | packet_probes;

/// Most packets that one end holds for the other: what `received` has bits for.
inline constexpr std::uint32_t most_packets = 64;

/// False: it is no packet.
[[nodiscard]] inline bool parse(std::span<const std::byte> packet, PacketHead& head,
                                std::span<const std::byte>& payload) noexcept {
    if (packet.size() < packet_head_bytes) return false;
    std::memcpy(&head, packet.data(), packet_head_bytes);
    payload = packet.subspan(packet_head_bytes);
    const bool is_data = (head.flags & packet_data) != 0;
    return head.length == payload.size() && head.room <= most_packets && head.zero == 0 &&
           (head.flags & ~packet_flags) == 0 &&
           (is_data || ((head.flags & (packet_first | packet_last)) == 0 && head.length == 0));
}

/// How far `number` comes after `from`, of numbers that wrap: negative if it comes before.
[[nodiscard]] constexpr std::int32_t distance(std::uint32_t from, std::uint32_t number) noexcept {
    return static_cast<std::int32_t>(number - from);
}

}  // namespace millrace::message
