// How the two sides of a measurement of flow queues find each other, and what they ask for.
#pragma once

#include <chrono>
#include <cstdint>

#include <fmt/format.h>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "measure_flow.hpp"
#include "millrace/base/error.hpp"
#include "millrace/flow/listener.hpp"
#include "queue_ends.hpp"

namespace millrace::bench {

/// Ends what has failed.
[[nodiscard]] inline base::Deadline patience_of(const FlowCase& chosen) {
    return base::Deadline::after(chosen.limit + std::chrono::seconds{30});
}

[[nodiscard]] inline flow::Options options_of(const FlowCase& chosen) {
    flow::Options options;
    options.ring.capacity = chosen.capacity;
    options.ring.receive_pool = chosen.receive_pool;
    options.ring.credit_parts = chosen.credit_parts;
    options.ring.completions = chosen.completions;
    options.ring.batch = chosen.batch;
    options.ring.carrier = chosen.carrier;
    return options;
}

/// First side: listens and tells the second where.
[[nodiscard]] inline flow::Listener listen_for_second(Pair& pair, flow::Options options) {
    auto listener = flow::Listener::listen("127.0.0.1:0", std::move(options));
    pair.set_value(0, listener.address().port());
    pair.meet();
    return listener;
}
/// Throws base::Error for a size or design that is not built.
[[nodiscard]] inline const EndMakers& makers_for(const FlowCase& chosen) {
    const EndMakers* makers = ends_of(chosen.design, chosen.item_bytes);
    if (makers == nullptr) {
        throw base::Error{
            base::ErrorCode::invalid_argument, "measure a flow queue",
            fmt::format("items of {} bytes", chosen.item_bytes),
            "this design is not built for that size",
            "choose one of figure_sizes, or of map_sizes (bench/flow/queue_ends.hpp)"};
    }
    return *makers;
}

}  // namespace millrace::bench
