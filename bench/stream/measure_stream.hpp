// Bytes through one direction of a byte stream between two processes, and round trips over one.
// Called by the study of `millrace bench stream` and by the bars.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/stream/mode.hpp"

namespace millrace::bench {

struct StreamCase {
    stream::Mode mode = stream::Mode::dynamic;
    std::size_t bytes = std::size_t{1} << 20;  ///< of each send and each receive, 8 or more
    std::size_t receive_bytes = 0;             ///< ... of each receive, if it has others
    std::uint32_t sends = 4;                   ///< under way at a time
    std::uint32_t receives = 4;
    /// Receives wait until they are full (MSG_WAITALL): then each is the send of its number.
    bool wait_all = false;
    bool plain = false;                ///< memory that is not registered
    std::size_t offset = 0;            ///< of buffers from their page's begin, below 4096
    std::size_t ring_bytes = 0;        ///< a power of two; 0: as the library chooses
    std::string device_mode = "fast";  ///< as MILLRACE_SOFT_MODE has it
    double seconds = 0.1;              ///< of sending, a fifth of it to warm up
};

struct StreamFlow {
    double bytes_per_second = 0;
    double percent_direct = 0;
    double cpu_seconds_per_gigabyte = 0;  ///< of both processes
};

/// Every send has its number at both ends, written for it. The receiver reads every byte, and
/// compares the ends of what it gets, and of every send that ends in it, with what belongs there.
/// Processor time is counted from the first byte to the last, of as many bytes as were sent. Throws
/// Error.
[[nodiscard]] StreamFlow measure_stream(const StreamCase& chosen);

/// The same in each of `modes` in place of the case's: after one stream to warm up two of each
/// mode, from the first mode to the last and back, all through the same buffers at both ends and by
/// the same two processes. Where a buffer's pages lie, and whether they are huge, makes some ten
/// percent from one allocation to the next. Throws Error.
[[nodiscard]] std::vector<StreamFlow> measure_modes(const StreamCase& chosen,
                                                    std::span<const stream::Mode> modes);

/// Nanoseconds to and fro, of which each way is one send into one receive that waits for it.
[[nodiscard]] double measure_stream_echo(const StreamCase& chosen, std::uint64_t echoes);

}  // namespace millrace::bench
