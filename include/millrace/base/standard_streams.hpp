// Keeping off a program's standard streams. A daemon's are often closed; a descriptor made then is
// number 0, 1 or 2, and what the program prints lands in it. Used wherever this library creates a
// descriptor (tests/architecture says so) and by the command.
#pragma once

#include "millrace/base/language.hpp"

namespace millrace::base {

/// `number`, if it is above 2 or negative (then errno stays). Otherwise a copy of it above 2,
/// close-on-exec, and `number` is closed; -1 with errno when there is none to be had. To be called
/// as soon as the descriptor is made: epolls and peers know it by its number.
[[nodiscard]] int above_standard_streams(int number) noexcept;

/// Opens /dev/null as those of descriptors 0, 1 and 2 that are closed. For programs, at their
/// start.
void open_standard_streams() noexcept;

}  // namespace millrace::base
