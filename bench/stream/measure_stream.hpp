// Bytes through one direction of a byte stream between two processes, and round trips over one.
// Called by the study of `millrace bench stream` and by the bars.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/stream/mode.hpp"

namespace millrace::bench {

struct StreamCase {
    stream::Mode mode = stream::Mode::dynamic;
    stream::Protocol protocol = stream::Protocol::extended;  ///< of mode dynamic
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
    /// Bytes are counted over windows of this length (rate_over), where they come in bursts and one
    /// run has few of them; 0: from the warm-up to the end.
    std::chrono::nanoseconds window{0};
};

struct StreamFlow {
    double bytes_per_second = 0;
    /// Of the bytes. All sends are equally long, so that it is of the sends, too.
    double percent_direct = 0;
    double percent_direct_transfers = 0;  ///< of the WRITEs, into which sends are cut
    double cpu_seconds_per_gigabyte = 0;  ///< of both processes
    /// Processor time of each process, in percent of the time that the stream took.
    double sender_cpu_percent = 0;
    double receiver_cpu_percent = 0;
};

/// So many bytes had come by then.
struct Arrived {
    base::Clock::time_point when;
    std::uint64_t bytes = 0;
};
/// Bytes a second over a link whose bursts come again after a while: the median over all windows of
/// length `window` that begin at an arrival, at `first` or later, and end before the last one. Of
/// several whiles and a half, it does not matter where within a burst a window begins: on average
/// half of that burst counts. One that begins while the receiver is behind, and so has more than
/// the link brings, is one of many. 0: no window ends in time. `arrivals` are in their order.
[[nodiscard]] double rate_over(std::span<const Arrived> arrivals, base::Clock::time_point first,
                               std::chrono::nanoseconds window);

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
