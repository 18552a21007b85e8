// Bars of filters at the producer, on a link of 10 Gb/s: what does not pass costs neither bytes nor
// time of the link.
#include <cstdint>

#include "bench/flow/measure_flow.hpp"
#include "bench/framework/bars.hpp"
#include "bench/framework/environment_scope.hpp"
#include "flow_rates.hpp"
#include "millrace/flow/filtered_producer.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t item_bytes = 256;
using SourceItem = BarItem<item_bytes>;
constexpr std::uint64_t items = 400'000;

/// Drops nine of ten.
struct EachTenth {
    bool operator()(const SourceItem& item) const noexcept { return item.words[0] % 10 == 0; }
};
using Items = flow::Filtered<SourceItem, EachTenth>;

struct FilterRun {
    double items_per_second = 0;  ///< that the producer was given
    double bytes_per_item = 0;    ///< of ring, on the link
};

/// The same consumer, which wants each tenth item, with a filter at its producer and without.
FilterRun filtered_run(bool is_filtered) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", ten_gigabits};
    flow::Options options;
    options.ring.capacity = (std::size_t{4} << 20) / ring::slot_bytes_of(item_bytes, 8);
    const Windows windows{items};
    double bytes = 0;
    const double rate = run_pair(
        {},
        [&](Pair& pair) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto producer = flow::Producer<Items>::accept(listener, patience());
            const auto deadline = patience();
            SourceItem item{};
            pair.meet();
            const double item_ns = mean_step(windows, [&](std::uint64_t number) {
                item.fill(number);
                require(producer.enqueue(item, deadline), "an item");
            });
            require(producer.flush(deadline), "the last items");
            bytes = static_cast<double>(producer.stats().ring.bytes) /
                    static_cast<double>(windows.total());
            pair.meet();
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            flow::Options asking = options;
            if (is_filtered) asking.filter = EachTenth{};
            auto consumer =
                flow::Consumer<SourceItem>::connect(address_of_first(pair), asking, patience());
            const auto deadline = patience();
            SourceItem item{};
            pair.meet();
            for (std::uint64_t wanted = 10; wanted <= windows.total(); wanted += 10) {
                do {
                    require(consumer.dequeue(item, deadline), "an item");
                } while (!EachTenth{}(item));
                require_intact(item.holds(wanted), "an item of a flow queue");
            }
            pair.meet();
        });
    return {rate, bytes};
}

const BarRegistration filter_rate{ratio_bar(
    "structures", "256 B items offered on 10 Gb/s, 90 % dropped by a filter, to dropped on arrival",
    2, Sense::at_least,
    {"at the source", [] { return filtered_run(true).items_per_second; }, "items/s"},
    {"on arrival", [] { return filtered_run(false).items_per_second; }, "items/s"})};
const BarRegistration filter_bytes{ratio_bar(
    "structures", "bytes on the link without a filter that drops 90 %, to those with it", 5,
    Sense::at_least, {"without", [] { return filtered_run(false).bytes_per_item; }, "B/item"},
    {"with", [] { return filtered_run(true).bytes_per_item; }, "B/item"})};

}  // namespace
}  // namespace millrace::bench
