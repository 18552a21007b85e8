// Bars of flow structures with many ends, to the queue of one producer and one consumer that
// they are made of.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/framework/bars.hpp"
#include "bench/limits/limits.hpp"
#include "flow_rates.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"

namespace millrace::bench {
namespace {

using Item = BarItem<64>;
constexpr std::uint64_t items_of_a_window = 1'000'000;

flow::Options queue() {
    flow::Options options;
    options.ring.capacity = ring_bytes_of_limits / ring::slot_bytes_of(64, 8);
    return options;
}

/// Items per second of a FanIn to which one thread sends by `active` of `producers` queues in turn.
double fan_in_rate(std::size_t producers, std::size_t active) {
    const Windows windows{items_of_a_window};
    return run_pair(
        {.deadline = std::chrono::milliseconds{60'000}},
        [&](Pair& pair) {
            auto in =
                flow::FanIn<Item>::listen("127.0.0.1:0", {.queue = queue(), .max_producers = 4096});
            pair.set_value(0, in.address().port());
            pair.meet();
            const auto deadline = patience();
            Item item{};
            // Each says first that it is there.
            for (std::size_t i = 0; i != producers; ++i) {
                require(in.dequeue(item, deadline), "a first item");
            }
            pair.meet();
            std::vector<std::uint64_t> next(producers + 1, 0);
            const double item_ns = median_step(windows, [&](std::uint64_t) {
                base::Status status = in.try_dequeue(item);
                if (status != base::Status::ok) [[unlikely]]
                    status = in.dequeue(item, deadline);
                require(status, "an item that comes in time");
                require_intact(item.holds(++next[in.last().number]), "an item of a fan-in");
            });
            pair.meet();
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            const connect::Address address = address_of_first(pair);
            const auto deadline = patience();
            std::vector<flow::Producer<Item>> out;
            Item item{};
            for (std::size_t i = 0; i != producers; ++i) {
                out.push_back(flow::Producer<Item>::connect(address, queue(), deadline));
                require(out.back().enqueue(item, deadline), "a first item");
            }
            pair.meet();
            for (std::uint64_t i = 0; i != windows.total(); ++i) {
                item.fill(i / active + 1);
                require(out[i % active].enqueue(item, deadline), "an item");
            }
            for (auto& one : out) require(one.flush(deadline), "the last items");
            pair.meet();
        });
}

/// The same of the queue of one producer, to one consumer.
double queue_rate() { return flow_call_rate<64, ring::design_2>(queue(), items_of_a_window); }

const BarRegistration of_16{
    ratio_bar("structures", "64 B items of 16 producers at a fan-in, to those of one queue", 0.7,
              Sense::at_least, {"fan-in", [] { return fan_in_rate(16, 16); }, "items/s"},
              {"queue", queue_rate, "items/s"})};
const BarRegistration one_of_256{
    ratio_bar("structures", "64 B items of 4 among 256 producers, to those of 4 alone", 0.3,
              Sense::at_least, {"among 256", [] { return fan_in_rate(256, 4); }, "items/s"},
              {"alone", [] { return fan_in_rate(4, 4); }, "items/s"})};

}  // namespace
}  // namespace millrace::bench
