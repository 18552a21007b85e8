// Bars of flow queues: small items by one call each at both ends, in the default design, to the
// ideal ring that publishes each (with the consumer that suits that best) and to Boost's queue
// between two threads.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "bench/framework/bars.hpp"
#include "bench/limits/boost_queue.hpp"
#include "bench/limits/ideal_ring.hpp"
#include "bench/limits/limits.hpp"
#include "flow_rates.hpp"

namespace millrace::bench {
namespace {

/// Through rings as large as the limits'.
template <std::size_t Size>
double rate_of_calls(RingConsumer consumer) {
    flow::Options options;
    options.ring.capacity = ring_bytes_of_limits / ring::slot_bytes_of(Size, 8);
    return flow_call_rate<Size, ring::design_2>(options, 4'000'000, consumer);
}

/// How many times as many items as the other's.
Bar item_rate_bar(std::string name, double limit, std::function<double()> flow, Contender other) {
    return {.group = "flow",
            .name = std::move(name),
            .limit = limit,
            .sense = Sense::at_least,
            .unit = "x",
            .measure = [flow, other](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({"flow", flow, "items/s"});
                rounds.add(other);
                return rounds.run().ratio("flow", other.name);
            }};
}

/// To the ideal ring. Both consumers are patient: it is the number of items that is asked for.
template <std::size_t Size>
Bar items_to_ideal(std::string name, double limit) {
    return item_rate_bar(std::move(name), limit,
                         [] { return rate_of_calls<Size>(RingConsumer::patient); },
                         {"ideal",
                          [] {
                              return ideal_ring_rate(Size, ring_bytes_of_limits, 1, 4'000'000,
                                                     RingConsumer::patient);
                          },
                          "items/s"});
}

const BarRegistration items_to_boost{item_rate_bar(
    "8 B items, one call each, to boost's spsc_queue, threads", 3,
    [] { return rate_of_calls<8>(RingConsumer::prompt); },
    {"boost", [] { return boost_item_rate(ring_bytes_of_limits, 4'000'000); }, "items/s"})};
const BarRegistration of_8{
    items_to_ideal<8>("8 B items, one call each, to the ideal ring published each", 0.2)};
const BarRegistration of_64{
    items_to_ideal<64>("64 B items, one call each, to the ideal ring published each", 0.5)};

}  // namespace
}  // namespace millrace::bench
