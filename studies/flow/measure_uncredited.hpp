// A producer that SENDs without knowing whether the consumer has posted a receive, as the Push-2
// queue of work 000, section 6.2, whose items are dropped and sent again where its pool of receives
// is too small. The library's own queues cannot: they send what they have credit for.
#pragma once

#include <cstdint>

#include "bench/flow/measure_flow.hpp"

namespace millrace::bench {

enum class Uncredited : std::uint8_t {
    reliable,   ///< RC: what finds no receive is sent again (RNR)
    datagrams,  ///< UD: it is lost
};

/// Of the case: item_bytes (with datagrams 1024 at most), receive_pool, mode, items and limit.
/// Items that arrived; `retried` and `dropped` are per item sent. Throws base::Error.
[[nodiscard]] StreamResult measure_uncredited(const FlowCase& chosen, Uncredited way);

}  // namespace millrace::bench
