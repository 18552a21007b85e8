// Phase numbers: each end counts the switches between direct and indirect transfer. Used by Sender
// and Receiver.
//
// Even phases are direct, odd ones indirect; both ends begin in phase 0. A phase grows by one where
// an end switches, and by more only where the sender raises its own past a stale advertisement's.
//
// Source: work 003, "Late Advertisements: Solution".
#pragma once

#include <cstdint>

namespace millrace::stream {

using Phase = std::uint64_t;

[[nodiscard]] constexpr bool is_direct(Phase phase) noexcept { return phase % 2 == 0; }
[[nodiscard]] constexpr bool is_indirect(Phase phase) noexcept { return phase % 2 == 1; }
[[nodiscard]] constexpr Phase next_phase(Phase phase) noexcept { return phase + 1; }

}  // namespace millrace::stream
