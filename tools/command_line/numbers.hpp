// What an option checks that takes a number: the parser alone takes -5 for a whole number of 64
// bits (one of the largest), what is too large for 64 bits for the largest, and "nan" for a
// fraction in any range.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>

namespace millrace::tools {

// For CLI::Option::transform: what is right is passed on as the parser reads it.

/// A whole number from `least` to `most`, in decimal digits.
[[nodiscard]] CLI::Validator whole_between(std::uint64_t least, std::uint64_t most);

/// A number of bytes from `least` to `most`, in digits, and perhaps after them k, m, g, t, p or e
/// (of 1024 each; kb, ki and kib mean the same), in letters of either case.
[[nodiscard]] CLI::Validator bytes_between(std::uint64_t least, std::uint64_t most);

/// A finite number from `least` to `most`.
[[nodiscard]] CLI::Validator fraction_between(double least, double most);

}  // namespace millrace::tools
