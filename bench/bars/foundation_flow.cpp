// Bar of flow queues: 64-byte items, one call per item at both ends, to one send per item on a
// Unix stream socket whose receiver takes as much as there is.
#include <cstdint>

#include "bench/framework/bars.hpp"
#include "bench/limits/limits.hpp"
#include "bench/limits/sockets.hpp"
#include "flow_rates.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t size = 64;

/// Rings as large as the limits'.
flow::Options flow_options() {
    return {.ring = {.capacity = ring_bytes_of_limits / ring::slot_bytes_of(size, 8)}};
}

const BarRegistration flow_to_socket{
    {.group = "foundation",
     .name = "64 B items through flow design 1 to a Unix stream socket",
     .limit = 12,
     .sense = Sense::at_least,
     .unit = "x",
     .measure = [](const RoundOptions& options_of_rounds) {
         Rounds rounds{options_of_rounds};
         rounds.add({"flow",
                     [] { return flow_call_rate<size, ring::design_1>(flow_options(), 4'000'000); },
                     "items/s"});
         rounds.add({"socket",
                     [] { return socket_item_rate(SocketKind::unix_stream, size, 100'000); },
                     "items/s"});
         return rounds.run().ratio("flow", "socket");
     }}};

}  // namespace
}  // namespace millrace::bench
