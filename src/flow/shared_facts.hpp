// What the two ends of a shared ring tell each other when they meet, and where words lie in the
// producer's page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/connect/link.hpp"
#include "millrace/end/counter.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/flow/shared_ring.hpp"

namespace millrace::flow::detail {

/// Of a producer, in its own memory.
struct SharedProducerPage {
    end::WakeUpPage wake;
    end::CounterLine answer;    ///< of a compare-and-swap
    end::CounterLine consumed;  ///< READ from the ring
    SharedNotice notice;        ///< WRITTEN by the consumer
};

/// Addresses are the sender's own.
struct SharedFacts {
    std::uint64_t role = 0;  ///< 1: consumer
    std::uint64_t size = 0;
    std::uint64_t alignment = 0;
    std::uint64_t name = 0;  ///< a hash of what an item is called
    std::uint64_t page = 0;
    std::uint32_t page_rkey = 0;
    std::uint32_t far_fences = 0;
    std::uint64_t label = 0;  ///< a producer's
    // A consumer's.
    std::uint64_t ring = 0;
    std::uint32_t ring_rkey = 0;
    std::uint32_t owner = 0;
    std::uint64_t slots = 0;
    std::uint64_t first = 0;
    std::uint64_t secret = 0;
    std::uint64_t patience = 0;  ///< ns
};
static_assert(sizeof(SharedFacts) == 104);

/// After the goodbye's position, where the consumer has given a producer up.
inline constexpr std::uint64_t shared_expelled = 1;

/// Their own, or else the one that all share.
[[nodiscard]] SharedOptions with_endpoint(SharedOptions options);
/// Of options that have one.
[[nodiscard]] connect::LinkOptions shared_link_options(const SharedOptions& options);
inline constexpr const char* shared_attempt = "set up a shared ring";

}  // namespace millrace::flow::detail
