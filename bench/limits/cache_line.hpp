// The yardstick of latency: one cache line that goes to another core and back.
#pragma once

#include <cstdint>

namespace millrace::bench {

/// The yardstick. Each direction has its own line, written by one side only, as in every message.
/// Nanoseconds for one round trip of a changing word between two processes on two cores, over
/// `round_trips` of them after a warm-up of a tenth.
[[nodiscard]] double cache_line_round_trip(std::uint64_t round_trips = 100'000);

/// The same where one line goes both ways, each side overwriting the other's word. Faster, because
/// the line is already the writer's, and of no use to messages, whose memory belongs to one side.
[[nodiscard]] double shared_line_round_trip(std::uint64_t round_trips = 100'000);

}  // namespace millrace::bench
