// The designs that the figures of work 000, chapter 6, compare: built for every item size.
#pragma once

#include "millrace/ring/design.hpp"

namespace millrace::bench {

/// Section 6.1: the counter of transferred items is pushed, or pulled by the consumer.
inline constexpr ring::Design transfer_push{ring::DataFlow::push1, ring::TransferNotification::push,
                                            ring::SpaceNotification::pull};
inline constexpr ring::Design transfer_pull{ring::DataFlow::push1, ring::TransferNotification::pull,
                                            ring::SpaceNotification::pull};
/// Section 6.2: two-sided data.
inline constexpr ring::Design data_push2{ring::DataFlow::push2, ring::TransferNotification::event,
                                         ring::SpaceNotification::pull};
/// Section 6.3: the consumer pushes space, by WRITE (this is ring::design_2) or by SEND.
inline constexpr ring::Design space_push2{
    ring::DataFlow::push1, ring::TransferNotification::watermark, ring::SpaceNotification::push2};
/// Section 6.4: the queue of section 5.1 with batches, sent by the enqueuing thread or by a data
/// mover.
inline constexpr ring::Design batching = ring::with(ring::design_1, ring::Batching::dynamic);
inline constexpr ring::Design data_mover =
    ring::with(ring::design_1, ring::Batching::dynamic, ring::Mover::active);

}  // namespace millrace::bench

/// DO(design) for the flows of each of them, and for ring::design_1, which they are compared with.
#define MILLRACE_NAMED_DESIGNS(DO)       \
    DO(::millrace::ring::design_1)       \
    DO(::millrace::ring::design_2)       \
    DO(::millrace::bench::transfer_push) \
    DO(::millrace::bench::transfer_pull) \
    DO(::millrace::bench::data_push2)    \
    DO(::millrace::bench::space_push2)
