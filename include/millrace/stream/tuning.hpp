// What only an expert or a study sets of a byte stream: SocketOptions::tuning. Each value is one
// that was measured (docs/performance/streams.md).
//
// Source: work 003; what the published protocol has is its own, the thresholds are not of the work.
#pragma once

#include <cstddef>

#include "millrace/base/language.hpp"
#include "millrace/stream/mode.hpp"

namespace millrace::stream {

/// Of one end, in mode `dynamic`.
struct Tuning {
    /// With `published` no threshold of SocketOptions or of this says anything but those of plain
    /// memory.
    Protocol protocol = Protocol::extended;
    /// In mode `dynamic`, receives of fewer bytes are advertised only where the program has offered
    /// so many bytes lately, all outstanding receives together: a sender would wait until one that
    /// is offered alone has been read and the next one comes, while through the ring both ends are
    /// busy. 0: however few.
    std::size_t least_offered = std::size_t{80} << 10;
    /// In mode `dynamic`, a send of so many bytes that does not fit into what is free of the peer's
    /// ring waits until all of that is free, as an advertisement may come then; 0: none does. One
    /// that fits may wait for one, too, for about as long as copying all that is in the ring takes.
    std::size_t least_awaited = std::size_t{16} << 10;
};

}  // namespace millrace::stream
