// What only an expert or a study sets of a byte stream: the `tuning` of SocketOptions. Each value
// weighs a copy against what an advertisement costs the two ends, and was measured
// (docs/performance/streams.md). Source: work 003.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"
#include "millrace/stream/mode.hpp"

namespace millrace::stream {

struct Tuning {
    /// Of this end, in mode `dynamic`. With `published` no `least_…` says anything, but that of
    /// plain memory.
    Protocol protocol = Protocol::extended;
    /// So few bytes of sends with SendFlags::more wait for others; 0: none do. Messages never wait.
    std::uint32_t coalesced_bytes = 4096;
    /// Receives of fewer bytes are not advertised in mode `dynamic`: a copy costs less than that.
    std::size_t least_advertised = std::size_t{16} << 10;
    /// In mode `dynamic`, receives of fewer bytes are advertised only where the program has offered
    /// so many bytes lately, all outstanding receives together: a sender would wait until one that
    /// is offered alone has been read and the next one comes, while through the ring both ends are
    /// busy. 0: however few.
    std::size_t least_offered = std::size_t{80} << 10;
    /// As least_advertised, for receives into plain memory, which is registered for each of them
    /// (unless `registrations` keeps those of receives). 0: 1 MiB, and none where bytes for the
    /// ring are stored: then both ends' copies, side by side, take less time than what a device
    /// must do to reach memory that the peer has not mapped.
    std::size_t least_advertised_plain = 0;
    /// In mode `dynamic`, a send of so many bytes that does not fit into what is free of the peer's
    /// ring waits until all of that is free, as an advertisement may come then; 0: none does. One
    /// that fits may wait for one, too, for about as long as copying all that is in the ring takes.
    std::size_t least_awaited = std::size_t{16} << 10;
};

}  // namespace millrace::stream
