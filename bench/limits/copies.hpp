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

}  // namespace millrace::bench
