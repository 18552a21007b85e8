// What the halves of a stream count. Written by Sender and Receiver, read by whoever reports.
#pragma once

#include <cstdint>

namespace millrace::stream {

struct SenderCounts {
    std::uint64_t direct_bytes = 0;
    std::uint64_t direct_transfers = 0;
    std::uint64_t indirect_bytes = 0;
    std::uint64_t indirect_transfers = 0;
    std::uint64_t adverts_used = 0;       ///< first matched
    std::uint64_t adverts_stale = 0;      ///< thrown away because they came late
    std::uint64_t adverts_withdrawn = 0;  ///< taken back by the receiver's CANCEL
    std::uint64_t adverts_forgone = 0;    ///< left, as short sends went to the ring
    std::uint64_t phase_changes = 0;
};

struct ReceiverCounts {
    std::uint64_t direct_bytes = 0;
    std::uint64_t direct_transfers = 0;
    std::uint64_t indirect_bytes = 0;
    std::uint64_t indirect_transfers = 0;
    std::uint64_t adverts = 0;
    std::uint64_t copies = 0;
    std::uint64_t lent_bytes = 0;  ///< taken by the program where they lay in the ring
    std::uint64_t cancels = 0;     ///< CANCELs sent
    std::uint64_t phase_changes = 0;
};

}  // namespace millrace::stream
