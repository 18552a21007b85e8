// What the two ends of a ring count of what they did. Used by Sender, Receiver and flow/'s
// statistics.
#pragma once

#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::ring {

/// Counts of what a Sender did since it was made.
struct SenderCounts {
    std::uint64_t bytes = 0;            ///< of ring: payload, marks, padding, skips
    std::uint64_t intransit = 0;        ///< of these, sent; over pull data, told of
    std::uint64_t transferred = 0;      ///< and known to have arrived; over pull, to be pulled
    std::uint64_t credited = 0;         ///< and known to have left the consumer's ring; over pull,
                                        ///< as transferred
    std::uint64_t data_writes = 0;      ///< work requests (WRITEs, SENDs) with items or marks
    std::uint64_t transfer_writes = 0;  ///< work requests that told how far items have arrived
    std::uint64_t space_reads = 0;      ///< work requests that asked for space
    std::uint64_t settling_writes = 0;  ///< empty ones, for a completion that was missing
    std::uint64_t events = 0;           ///< wake-ups sent to the consumer
    std::uint64_t work_requests = 0;    ///< all of them, announcements of sleep included
    std::uint64_t receives = 0;         ///< receives posted for credit
    std::uint64_t full_returns = 0;
    std::uint64_t lazy_refreshes = 0;
    std::uint64_t forced_refreshes = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t wake_ups = 0;  ///< events received
};

/// Counts of what a Receiver did since it was made.
struct ReceiverCounts {
    std::uint64_t bytes = 0;           ///< of ring: payload, marks, padding, skips
    std::uint64_t credit_writes = 0;   ///< work requests that returned space
    std::uint64_t credit_stores = 0;   ///< progress published in own memory
    std::uint64_t transfer_reads = 0;  ///< work requests that asked how far items are
    std::uint64_t data_reads = 0;      ///< work requests that fetched items
    std::uint64_t receives = 0;        ///< receives posted for data or immediates
    std::uint64_t events = 0;          ///< wake-ups sent to the producer
    std::uint64_t work_requests = 0;   ///< all of them, announcements of sleep included
    std::uint64_t sleeps = 0;
    std::uint64_t wake_ups = 0;    ///< events received
    std::uint64_t stood_back = 0;  ///< waits after a long run: see detail/stand_back.hpp
};

}  // namespace millrace::ring
