// All limits of this machine as contenders, for the command that prints them.
#pragma once

#include <vector>

#include "bench/framework/rounds.hpp"

namespace millrace::bench {

/// The size in bytes of the rings in ring measurements; contenders use the same.
inline constexpr std::size_t ring_bytes_of_limits = 256U * 1024U;

/// Every limit. `brief`: fewer sizes and repetitions.
[[nodiscard]] std::vector<Contender> all_limits(bool brief);

}  // namespace millrace::bench
