// What a copy costs: within a process, and into another one through the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Bytes per nanosecond (GB/s) of memcpy between the same two buffers again and again.
[[nodiscard]] double copy_hot(std::size_t size);
/// The same where neither source nor destination is in any cache of this core.
[[nodiscard]] double copy_cold(std::size_t size);

/// Nanoseconds of one process_vm_writev of 8 bytes into private memory of another process that
/// polls there, as it would for a message. Throws base::Error where the kernel denies it.
[[nodiscard]] double process_vm_write(std::uint64_t calls = 20'000);

/// Nanoseconds one way (half a round trip) where both sides throw 8 bytes at each other so, each
/// waiting for the other's by looking at its own private memory: what a message costs that has
/// nothing but the call. More than the call by itself in a loop, which nobody answers.
[[nodiscard]] double process_vm_one_way(std::uint64_t round_trips = 20'000);

}  // namespace millrace::bench
