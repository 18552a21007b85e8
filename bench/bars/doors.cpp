// Bars of the store's doors: requests a second to redis-server's and memcached's, the time that
// answers take at a rate, memory, and idle connections. (bars/ycsb.cpp: our own client's to
// redis'.)
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/doors/measure_doors.hpp"
#include "bench/framework/bars.hpp"
#include "bench/framework/one_figure.hpp"

namespace millrace::bench {
namespace {

using kv::DoorKind;

std::vector<DoorCase> cells_of(DoorKind protocol) {
    std::vector<DoorCase> cells;
    for (const WordsOver over : {WordsOver::unix_socket, WordsOver::tcp}) {
        for (const unsigned connections : {1U, 50U}) {
            for (const unsigned pipeline : {1U, 16U}) {
                for (const bool sets : {false, true}) {
                    cells.push_back({protocol, sets, over, connections, pipeline});
                }
            }
        }
    }
    return cells;
}

using MeasureDoor = double (*)(const DoorCase& chosen, DoorOf whose);

/// What each cell's ratio is, the least first. Two bars ask for the same: it is measured once.
const std::vector<Summary>& ratios_of(DoorKind protocol, MeasureDoor measure,
                                      const RoundOptions& options) {
    static std::map<std::pair<DoorKind, MeasureDoor>, std::vector<Summary>> known;
    std::vector<Summary>& ratios = known[{protocol, measure}];
    if (!ratios.empty()) return ratios;
    for (const DoorCase& cell : cells_of(protocol)) {
        Rounds rounds{options};
        const std::string name = name_of(cell);
        rounds.add({name + ": ours", [=] { return measure(cell, DoorOf::ours); }, "1/s"});
        rounds.add({name + ": theirs", [=] { return measure(cell, DoorOf::theirs); }, "1/s"});
        ratios.push_back(rounds.run().ratio(name + ": ours", name + ": theirs"));
    }
    std::ranges::sort(ratios, {}, &Summary::median);
    return ratios;
}

/// The ratio that a part of the cells, in percent, does not fall below.
Bar cells_bar(DoorKind protocol, MeasureDoor measure, std::string name, std::size_t percent,
              double limit, Sense sense = Sense::at_least) {
    return {.group = "doors",
            .name = std::move(name),
            .limit = limit,
            .sense = sense,
            .unit = "x",
            .measure = [=](const RoundOptions& options) {
                const std::vector<Summary>& ratios = ratios_of(protocol, measure, options);
                return ratios[ratios.size() - ratios.size() * percent / 100];
            }};
}

/// Both of a protocol's bars, by one way of asking.
Bar least_of(DoorKind protocol, MeasureDoor measure, const std::string& what, Sense sense) {
    return cells_bar(protocol, measure, what + ": the least of 16 cells", 100, 1, sense);
}
Bar least_of_better_half(DoorKind protocol, MeasureDoor measure, const std::string& what,
                         Sense sense) {
    return cells_bar(protocol, measure, what + ": of the better 8 cells the least", 50, 1.5, sense);
}
const std::string by_benchmark = "redis-benchmark's GETs and SETs a second to redis-server's";
const std::string by_load = "GETs and SETs a second by a lighter load to redis-server's";
const std::string to_memcached = "gets and sets a second to memcached's";
const BarRegistration rates[] = {
    BarRegistration{
        least_of(DoorKind::resp, measure_door_by_redis_benchmark, by_benchmark, Sense::at_least)},
    BarRegistration{least_of_better_half(DoorKind::resp, measure_door_by_redis_benchmark,
                                         by_benchmark, Sense::at_least)},
    BarRegistration{least_of(DoorKind::resp, measure_door, by_load, Sense::reported)},
    BarRegistration{least_of_better_half(DoorKind::resp, measure_door, by_load, Sense::reported)},
    BarRegistration{least_of(DoorKind::memcached, measure_door, to_memcached, Sense::at_least)},
    BarRegistration{
        least_of_better_half(DoorKind::memcached, measure_door, to_memcached, Sense::reported)}};

/// Seven tenths of what redis-server makes of clients that ask as fast as they can.
double usual_rate() {
    static const double rate = 0.7 * capacity_of_redis_protocol(DoorOf::theirs);
    return rate;
}
const BarRegistration slowest{ratio_bar(
    "doors", "99.9 % of GETs at 0.7 of what redis-server can hold, to redis-server's", 1,
    Sense::at_most,
    {"ours", [] { return p999_of_redis_protocol(DoorOf::ours, usual_rate()); }, "us"},
    {"redis", [] { return p999_of_redis_protocol(DoorOf::theirs, usual_rate()); }, "us"})};

const BarRegistration memory{ratio_bar(
    "doors", "resident memory per item of 116 B beyond these, both doors open, to memcached's", 1,
    Sense::at_most, {"ours", [] { return resident_bytes_per_item(DoorOf::ours); }, "B"},
    {"memcached", [] { return resident_bytes_per_item(DoorOf::theirs); }, "B"})};

constexpr std::size_t many = 10'000;
const BarRegistration idle[] = {
    BarRegistration{one_figure_of("doors", "resident memory of each of 10,000 idle connections", 20,
                                  "KiB",
                                  [] { return measure_idle_connections(many).kibibytes_each; })},
    BarRegistration{
        one_figure_of("doors", "processor's share for 10,000 idle connections", 1, "%",
                      [] { return measure_idle_connections(many).processor_percent; })}};

}  // namespace
}  // namespace millrace::bench
