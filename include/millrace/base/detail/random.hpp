// Numbers that nobody guesses: names of sessions, marks of rings, seeds. Called where ends are
// made.
#pragma once

#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// 64 bits from the kernel: one system call. Any thread. (std::random_device asks the processor
/// what it can each time, which in a virtual machine takes tens of microseconds.) Throws what
/// std::random_device throws where the kernel gives none.
[[nodiscard]] std::uint64_t random_bits();

}  // namespace millrace::base
