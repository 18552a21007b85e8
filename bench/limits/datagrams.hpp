// What plain UDP does between two processes of this machine: the baseline of the wire, which is
// made of it. On the loopback, nothing is lost while no more is under way than a socket's buffer
// takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Nanoseconds for one round trip of datagrams of `size` bytes, both ends spinning.
[[nodiscard]] double datagram_round_trip(std::size_t size, std::uint64_t round_trips);
/// Datagrams of `size` bytes per second: a call to send and one to receive each.
[[nodiscard]] double datagram_rate(std::size_t size, std::uint64_t datagrams);
/// Bytes per second by the kernel's segments (UDP_SEGMENT, UDP_GRO) of 4,096 bytes, 128 KiB under
/// way, each copied once more at the receiver, to where it belongs.
[[nodiscard]] double segment_rate(std::uint64_t bytes);

}  // namespace millrace::bench
