// What the parts of a Receiver are given when the producer has said where its memory is.
#pragma once

#include "millrace/connect/link.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring::detail {

/// Registered memory of the consumer that the producer reads and writes, and where READs land.
struct ReceiverPage {
    WakeUpPage wake;
    CounterLine transfer;  ///< pushed by the producer
    CounterLine transfer_landing;
    CounterLine taken_landing;
    CounterLine probe_landing;
};

/// All of it outlives the parts.
struct Meeting {
    connect::Link& link;
    SendWindow& window;
    PeerMemory& peer;
    const Places& theirs;
    const verbs::RegisteredBuffer& memory;  ///< of the ReceiverPage
    const Terms& terms;
    Design design;

    [[nodiscard]] ReceiverPage& page() const noexcept {
        return *reinterpret_cast<ReceiverPage*>(memory.data());
    }
};

}  // namespace millrace::ring::detail
