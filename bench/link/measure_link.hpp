// How well the soft device's mode `shaped` keeps to its settings: one-way times and bandwidths of
// raw WRITEs between two processes. Called by `millrace bench link`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/framework/statistics.hpp"

namespace millrace::bench {

/// Which side moves the link while a WRITE is in flight.
enum class Mover {
    ends,    ///< both ends poll their completion queues
    engine,  ///< nobody calls verbs: the sender sleeps, the receiver looks at its memory
};

struct OneWay {
    Summary us;      ///< from just before the post to the first look that sees the last byte
    double set = 0;  ///< what the mode says, in us
};

/// WRITEs of `bytes`, each posted when the one before has completed. `mode`: shaped, as
/// MILLRACE_SOFT_MODE has it; the variable is left as it was. Throws base::Error.
[[nodiscard]] OneWay measure_one_way(const std::string& mode, std::size_t bytes, Mover mover,
                                     std::uint64_t count);

struct Bandwidth {
    Summary gigabits;  ///< payload per second, in the peer's memory
    double set = 0;    ///< the rate, or what 1024 requests in flight allow
};

/// WRITEs of `bytes`, at most 1024 in flight, `total` bytes in each of `rounds`.
[[nodiscard]] Bandwidth measure_bandwidth(const std::string& mode, std::size_t bytes,
                                          std::uint64_t total, int rounds);

}  // namespace millrace::bench
