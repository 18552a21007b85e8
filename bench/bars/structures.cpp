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
#include "millrace/flow/shared_fan_in.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "use_of_ends.hpp"

namespace millrace::bench {
namespace {

using Item = BarItem<64>;
constexpr std::uint64_t items_of_a_window = 1'000'000;

flow::Options queue() {
    flow::Options options;
    options.ring.capacity = ring_bytes_of_limits / ring::slot_bytes_of(64, 8);
    return options;
}

/// A ring for each producer.
struct RingEach {
    using In = flow::FanIn<Item>;
    using Out = flow::Producer<Item>;
    static In listen() {
        return In::listen("127.0.0.1:0", {.queue = queue(), .max_producers = 4096});
    }
    static Out connect(const connect::Address& address, const base::Deadline& deadline) {
        return Out::connect(address, queue(), deadline);
    }
};
/// One for all of them, of as many bytes as each of those has.
struct OneRing {
    using In = flow::SharedFanIn<Item>;
    using Out = flow::SharedProducer<Item>;
    static In listen() {
        return In::listen("127.0.0.1:0",
                          {.capacity = queue().ring.capacity, .max_producers = 4096});
    }
    static Out connect(const connect::Address& address, const base::Deadline& deadline) {
        return Out::connect(address, {}, deadline);
    }
};

/// What many producers in a process are to their consumer: nanoseconds of an item, where one thread
/// sends by `active` of them in turn, and MiB of the consumer's process.
struct ManyToOne {
    double item_ns = 0;
    double mebibytes = 0;
};

template <class Rings>
ManyToOne many_to_one(std::size_t producers, std::size_t active) {
    const Windows windows{items_of_a_window};
    double mebibytes = 0;
    producers = std::min(producers, allowed(producers));
    const double item_ns = run_pair(
        {.deadline = std::chrono::milliseconds{60'000}},
        [&](Pair& pair) {
            const double before = use_of_this_process().resident;
            auto in = Rings::listen();
            pair.set_value(0, in.address().port());
            pair.meet();
            const auto deadline = patience();
            Item item{};
            // Each says first that it is there.
            for (std::size_t i = 0; i != producers; ++i) {
                require(in.dequeue(item, deadline), "a first item");
            }
            mebibytes = (use_of_this_process().resident - before) / 1024;
            pair.meet();
            std::vector<std::uint64_t> next(producers + 1, 0);
            const double one_ns = median_step(windows, [&](std::uint64_t) {
                base::Status status = in.try_dequeue(item);
                if (status != base::Status::ok) [[unlikely]]
                    status = in.dequeue(item, deadline);
                require(status, "an item that comes in time");
                require_intact(item.holds(++next[in.last().number]), "an item of a fan-in");
            });
            pair.meet();
            return one_ns;
        },
        [&](Pair& pair) {
            const connect::Address address = address_of_first(pair);
            const auto deadline = patience();
            std::vector<typename Rings::Out> out;
            Item item{};
            for (std::size_t i = 0; i != producers; ++i) {
                out.push_back(Rings::connect(address, deadline));
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
    return {item_ns, mebibytes};
}

/// Items per second.
double fan_in_rate(std::size_t producers, std::size_t active) {
    return 1e9 / many_to_one<RingEach>(producers, active).item_ns;
}

/// The same of the queue of one producer, to one consumer.
double queue_rate() { return flow_call_rate<64, ring::design_2>(queue(), items_of_a_window); }

const BarRegistration of_16{
    ratio_bar("structures", "64 B items of 16 producers at a fan-in, to those of one queue", 0.7,
              Sense::at_least, {"fan-in", [] { return fan_in_rate(16, 16); }, "items/s"},
              {"queue", queue_rate, "items/s"})};
const BarRegistration one_ring{ratio_bar(
    "structures", "64 B items of 16 among 1,024 producers of one ring, to those of 16 rings", 1.5,
    Sense::at_most, {"one ring", [] { return many_to_one<OneRing>(1024, 16).item_ns; }, "ns"},
    {"16 rings", [] { return many_to_one<RingEach>(16, 16).item_ns; }, "ns"})};
const BarRegistration memory_of_one_ring{ratio_bar(
    "structures", "memory of 1,024 producers of one ring, to that of 1,024 rings", 0.05,
    Sense::at_most, {"one ring", [] { return many_to_one<OneRing>(1024, 16).mebibytes; }, "MiB"},
    {"1,024 rings", [] { return many_to_one<RingEach>(1024, 16).mebibytes; }, "MiB"})};
const BarRegistration one_of_256{
    ratio_bar("structures", "64 B items of 4 among 256 producers, to those of 4 alone", 0.3,
              Sense::at_least, {"among 256", [] { return fan_in_rate(256, 4); }, "items/s"},
              {"alone", [] { return fan_in_rate(4, 4); }, "items/s"})};

}  // namespace
}  // namespace millrace::bench
