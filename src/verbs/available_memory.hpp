// How much memory can still be had, as far as the system tells. Called before buffers are made:
// allocating a memfd's pages has no limit of its own, so asking for too much would not fail but
// bring the kernel's out-of-memory killer upon the machine.
#pragma once

#include <cstdint>

namespace millrace::verbs {

/// Bytes: the least of what the machine and the control groups of this process have left.
/// UINT64_MAX where nothing is known.
[[nodiscard]] std::uint64_t available_memory() noexcept;

}  // namespace millrace::verbs
