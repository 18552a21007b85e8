// How often a test repeats what it does. Called by tests that run in every mode of the soft device
// (docs/testing.md): what takes a microsecond in mode fast takes a hundred where a link is
// modelled, and the modes are there for other interleavings, not for more of the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace millrace::test {

/// False: in other modes than fast, and where stores are forbidden, unless MILLRACE_TEST_LONG is
/// set.
[[nodiscard]] inline bool in_full() {
    const bool is_fast =
        std::getenv("MILLRACE_SOFT_MODE") == nullptr && std::getenv("MILLRACE_CARRIER") == nullptr;
    return is_fast || std::getenv("MILLRACE_TEST_LONG") != nullptr;
}

/// `times` in full, an eighth otherwise.
[[nodiscard]] inline std::uint64_t repetitions(std::uint64_t times) {
    return in_full() ? times : std::max<std::uint64_t>(times / 8, 1);
}

/// From one size to the next: `bytes` in full, otherwise some five times as many, which share no
/// divisor with the units of rings.
[[nodiscard]] inline std::size_t size_step(std::size_t bytes) {
    return in_full() ? bytes : 5 * bytes + (bytes % 2 == 0 ? 1 : 0);
}

}  // namespace millrace::test
