// Bar of flow queues: 64-byte items, one call per item at both ends, beside one send per item on a
// Unix stream socket whose receiver takes as much as there is.
#include <array>
#include <cstdint>

#include "framework/bars.hpp"
#include "framework/meeting.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "limits/limits.hpp"
#include "limits/sockets.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t size = 64;
using Item = std::array<std::uint64_t, size / 8>;
using Producer = flow::Producer<Item, ring::design_1>;
using Consumer = flow::Consumer<Item, ring::design_1>;

/// Rings as large as the limits'.
flow::Options options() {
    return {.capacity = ring_bytes_of_limits / ring::slot_bytes_of(sizeof(Item), alignof(Item))};
}

double flow_rate(std::uint64_t items) {
    const Windows windows{items};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options());
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto producer = Producer::accept(listener, patience());
            const auto deadline = patience();
            Item item{};
            pair.meet();
            const double item_ns = median_step(windows, [&](std::uint64_t number) {
                item.fill(number);
                require(producer.enqueue(item, deadline), "an item");
            });
            // Items that found no space at the consumer wait in the producer's ring for this.
            require(producer.flush(deadline), "the last items");
            pair.meet();
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            auto consumer = Consumer::connect(address_of_first(pair), options(), patience());
            const auto deadline = patience();
            Item item{};
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                require(consumer.dequeue(item, deadline), "an item");
                std::uint64_t differing = 0;
                for (const std::uint64_t word : item) differing |= word ^ number;
                require_intact(differing == 0, "an item of a flow queue");
            }
            pair.meet();
        });
}

const BarRegistration to_socket{
    {.group = "foundation",
     .name = "64 B items through flow design 1 to a Unix stream socket",
     .limit = 12,
     .sense = Sense::at_least,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"flow", [] { return flow_rate(4'000'000); }, "items/s"});
         rounds.add({"socket",
                     [] { return socket_item_rate(SocketKind::unix_stream, size, 100'000); },
                     "items/s"});
         return rounds.run().ratio("flow", "socket");
     }}};

}  // namespace
}  // namespace millrace::bench
