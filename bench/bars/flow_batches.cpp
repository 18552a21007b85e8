// Bars of flow queues: small items that travel in batches, to the ideal ring and to one
// send per item on a Unix stream socket whose receiver takes as much as there is.
#include <cstdint>

#include "bench/framework/bars.hpp"
#include "bench/limits/ideal_ring.hpp"
#include "bench/limits/limits.hpp"
#include "bench/limits/sockets.hpp"
#include "flow_rates.hpp"

namespace millrace::bench {
namespace {

/// The consumer moves what has gathered, and slots need no marks: as many cache lines go from core
/// to core as items fill.
constexpr auto fixed = ring::with(
    {ring::DataFlow::pull, ring::TransferNotification::pull, ring::SpaceNotification::push},
    ring::Batching::fixed);
constexpr auto dynamic = ring::with(ring::design_1, ring::Batching::dynamic);
/// Its thread runs on the core of the producer that made it.
constexpr auto mover = ring::with(ring::design_1, ring::Batching::dynamic, ring::Mover::active);

/// Rings as large as the limits'.
template <std::size_t Size, ring::Design D>
flow::Options options() {
    flow::Options queue;
    queue.ring.capacity =
        ring_bytes_of_limits / ring::slot_bytes_of(Size, Size % 8 == 0 ? 8 : 4, ring::has_marks(D));
    return queue;
}

template <std::size_t Size, ring::Design D>
Summary to_socket(const RoundOptions& options_of_rounds) {
    Rounds rounds{options_of_rounds};
    rounds.add(
        {"flow", [] { return flow_item_rate<Size, D>(options<Size, D>(), 4'000'000); }, "items/s"});
    rounds.add({"socket", [] { return socket_item_rate(SocketKind::unix_stream, Size, 100'000); },
                "items/s"});
    return rounds.run().ratio("flow", "socket");
}

const BarRegistration fixed_batches{
    {.group = "flow",
     .name = "8 B items in fixed batches of 16, pulled, to the ideal ring published every 16",
     .limit = 0.3,
     .sense = Sense::at_least,
     .unit = "x",
     .measure = [](const RoundOptions& options_of_rounds) {
         Rounds rounds{options_of_rounds};
         rounds.add({"flow",
                     [] {
                         auto queue = options<8, fixed>();
                         queue.ring.batch = 16;
                         return flow_batch_rate<8, fixed, 16>(queue, 8'000'000);
                     },
                     "items/s"});
         rounds.add({"ideal",
                     [] { return ideal_ring_rate(8, ring_bytes_of_limits, 16, 8'000'000); },
                     "items/s"});
         return rounds.run().ratio("flow", "ideal");
     }}};
const BarRegistration moved{{.group = "flow",
                             .name = "4 B items through a data mover to a Unix stream socket",
                             .limit = 20,
                             .sense = Sense::at_least,
                             .unit = "x",
                             .measure = to_socket<4, mover>}};
const BarRegistration batched{{.group = "flow",
                               .name = "64 B items in dynamic batches to a Unix stream socket",
                               .limit = 20,
                               .sense = Sense::at_least,
                               .unit = "x",
                               .measure = to_socket<64, dynamic>}};

}  // namespace
}  // namespace millrace::bench
