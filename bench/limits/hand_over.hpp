// The ideal message hand-over through shared memory: copy in, publish, copy out. Nothing that
// carries messages of any size with two copies can be faster than this on the same machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Nanoseconds for one round trip of messages of `size` bytes (at least 8) that are copied from
/// private memory into the shared slot and from there into private memory, both ways. `ring_bytes`:
/// of slots each way that are used in turn, as what holds several messages must; 0: one slot. There
/// are processors over which few lines that go to and fro all the time travel twice as fast.
[[nodiscard]] double message_round_trip(std::size_t size, std::uint64_t round_trips,
                                        std::size_t ring_bytes = 0);

/// Bytes per nanosecond (GB/s) of messages of `size` bytes (8 or more, a multiple of 8) that are
/// copied once, into a shared ring of `ring_bytes`, and read in full where they lie.
[[nodiscard]] double one_copy_bandwidth(std::size_t size, std::size_t ring_bytes,
                                        std::uint64_t messages);

}  // namespace millrace::bench
