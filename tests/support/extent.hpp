// How often a test repeats what it does. Called by tests that run in every mode of the soft device
// (docs/testing.md): what takes a microsecond in mode fast takes a hundred where a link is
// modelled, and the modes are there for other interleavings, not for more of the same.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace millrace::test {

/// `times` in mode fast; a quarter in the others and where stores are forbidden; all of them
/// everywhere with MILLRACE_TEST_LONG.
[[nodiscard]] inline std::uint64_t repetitions(std::uint64_t times) {
    const bool is_fast =
        std::getenv("MILLRACE_SOFT_MODE") == nullptr && std::getenv("MILLRACE_CARRIER") == nullptr;
    return is_fast || std::getenv("MILLRACE_TEST_LONG") != nullptr ? times : times / 4;
}

}  // namespace millrace::test
