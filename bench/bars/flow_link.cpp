// Bars of flow queues on a link of 10 Gb/s, and that a consumer of design 1 asks for nothing.
#include <chrono>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "bench/flow/measure_flow.hpp"
#include "bench/flow/named_designs.hpp"
#include "bench/framework/bars.hpp"

namespace millrace::bench {
namespace {

/// At each side, whatever the size of the items: 3.4 ms of the link.
constexpr std::size_t ring_bytes = std::size_t{4} << 20;

/// `value_of(run)` of so many runs.
template <class Value>
Summary of_runs(const FlowCase& chosen, const RoundOptions& options, Value&& value_of) {
    std::vector<double> values;
    for (int round = 1; round <= options.rounds; ++round) {
        if (options.progress) options.progress(round, chosen.mode);
        values.push_back(value_of(measure_stream(chosen)));
    }
    return summarize(values);
}

Bar filled_link(std::size_t size) {
    return {.group = "flow",
            .name = fmt::format("link of 10 Gb/s filled by {} B items through a data mover", size),
            .limit = 0.9,
            .sense = Sense::at_least,
            .unit = "of it",
            .measure = [=](const RoundOptions& options) {
                FlowCase chosen;
                chosen.design = data_mover;
                chosen.item_bytes = size;
                chosen.capacity = ring_bytes / size;
                chosen.mode = ten_gigabits;
                chosen.limit = std::chrono::milliseconds{300};
                return of_runs(chosen, options, [&](const StreamResult& run) {
                    return run.items_per_second() * static_cast<double>(size) * 8 / 10e9;
                });
            }};
}

const BarRegistration from_128{filled_link(128)};
const BarRegistration from_1024{filled_link(1024)};
const BarRegistration from_16384{filled_link(16384)};

const BarRegistration oblivious{
    {.group = "flow",
     .name = "requests and system calls per item of a consumer of design 1",
     .limit = 0.001,
     .sense = Sense::at_most,
     .unit = "",
     .measure = [](const RoundOptions& options) {
         FlowCase chosen;
         chosen.limit = std::chrono::seconds{5};
         return of_runs(chosen, options, [](const StreamResult& run) {
             return run.consumer_requests + run.consumer_calls;
         });
     }}};

}  // namespace
}  // namespace millrace::bench
