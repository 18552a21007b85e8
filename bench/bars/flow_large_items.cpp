// Bars of flow queues: large items, written and read in place, to the ideal ring with as many
// bytes of ring. The ideal ring's producer writes where the consumer reads, and so does ours.
#include <cstdint>

#include "bench/framework/bars.hpp"
#include "bench/limits/ideal_ring.hpp"
#include "flow_rates.hpp"

namespace millrace::bench {
namespace {

template <std::size_t Size>
Summary to_ideal_ring(const RoundOptions& options, std::size_t ring_bytes, std::uint64_t items) {
    flow::Options queue;
    queue.ring.capacity = ring_bytes / ring::slot_bytes_of(Size, 8);
    Rounds rounds{options};
    rounds.add(
        {"flow", [=] { return flow_item_rate<Size, ring::design_1>(queue, items); }, "items/s"});
    rounds.add({"ideal", [=] { return ideal_ring_rate(Size, ring_bytes, 1, items); }, "items/s"});
    return rounds.run().ratio("flow", "ideal");
}

const BarRegistration of_4_kib{{.group = "flow",
                                .name = "4 KiB items through flow design 1 to the ideal ring",
                                .limit = 0.9,
                                .sense = Sense::at_least,
                                .unit = "x",
                                .measure = [](const RoundOptions& options) {
                                    return to_ideal_ring<4096>(options, 256U << 10, 100'000);
                                }}};
const BarRegistration of_64_kib{
    {.group = "flow",
     .name = "64 KiB items in place through flow design 1 to the ideal ring",
     .limit = 0.95,
     .sense = Sense::at_least,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         return to_ideal_ring<65536>(options, 1U << 20, 8'000);
     }}};

}  // namespace
}  // namespace millrace::bench
