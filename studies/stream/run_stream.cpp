#include "run_stream.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/limits/sockets.hpp"
#include "bench/stream/measure_stream.hpp"
#include "millrace/soft/cable_facts.hpp"

namespace millrace::bench {
namespace {

/// The work's first test: 54 Gb/s InfiniBand; its latency is ours to guess.
constexpr const char* network = "shaped:54g,latency=1us";
/// Its second: 10 Gb/s with 48 ms to and fro.
constexpr const char* distance = "shaped:10g,latency=24ms";

/// Whom the figures of modes compare: the work's two baselines, its dynamic protocol as published,
/// and ours.
struct Contestant {
    const char* name;
    stream::Mode mode;
    stream::Protocol protocol = stream::Protocol::extended;
};
constexpr const char* of_work = "published";
constexpr std::array contestants{
    Contestant{"direct", stream::Mode::direct}, Contestant{"indirect", stream::Mode::indirect},
    Contestant{of_work, stream::Mode::dynamic, stream::Protocol::published},
    Contestant{"dynamic", stream::Mode::dynamic}};

enum class Value { gigabits, cpu, sender_cpu, receiver_cpu, percent, transfers };

double value_of(const StreamFlow& flow, Value value) {
    switch (value) {
        case Value::gigabits: return 8 * flow.bytes_per_second / 1e9;
        case Value::cpu: return flow.cpu_seconds_per_gigabyte;
        case Value::sender_cpu: return flow.sender_cpu_percent;
        case Value::receiver_cpu: return flow.receiver_cpu_percent;
        case Value::percent: return flow.percent_direct;
        case Value::transfers: return flow.percent_direct_transfers;
    }
    return 0;
}

const char* quantity_of(Value value) {
    switch (value) {
        case Value::gigabits: return "gigabits_per_second";
        case Value::cpu: return "cpu_seconds_per_gigabyte";
        case Value::sender_cpu: return "sender_cpu_percent";
        case Value::receiver_cpu: return "receiver_cpu_percent";
        case Value::percent: return "percent_direct";
        case Value::transfers: return "percent_direct_transfers";
    }
    return "";
}

const char* unit_of(Value value) {
    switch (value) {
        case Value::gigabits: return "Gb/s";
        case Value::cpu: return "CPU seconds per GB";
        case Value::sender_cpu:
        case Value::receiver_cpu: return "percent of a core";
        case Value::percent: return "percent of the sends";
        case Value::transfers: return "percent of the WRITEs";
    }
    return "";
}

/// `vary(case, x)` makes the case of a point.
template <class Vary>
StudySeries curve(std::string label, StreamCase chosen, Value value, Vary vary) {
    return {.label = std::move(label),
            .measure = [chosen, value, vary](const std::string& mode, std::size_t x) {
                StreamCase at = chosen;
                at.device_mode = mode;
                vary(at, x);
                return value_of(measure_stream(at), value);
            }};
}

void by_size(StreamCase& at, std::size_t x) { at.bytes = x; }
void by_sends(StreamCase& at, std::size_t x) { at.sends = static_cast<std::uint32_t>(x); }

/// Of the kernel, which knows no modelled link: one send call for each message, and as many bytes
/// as are there for each receive call.
StudySeries socket_curve(SocketKind kind) {
    return {.label = std::string{name_of(kind)},
            .measure =
                [kind](const std::string&, std::size_t bytes) {
                    const std::uint64_t items =
                        std::clamp<std::uint64_t>((std::uint64_t{256} << 20) / bytes, 16, 20'000);
                    return 8 * static_cast<double>(bytes) * socket_item_rate(kind, bytes, items) /
                           1e9;
                },
            .modes = {"fast"}};
}

const std::vector<std::size_t> sizes{4 << 10, 16 << 10, 64 << 10, 256 << 10,
                                     1 << 20, 4 << 20,  16 << 20};
const std::vector<std::size_t> distant_sizes{64 << 10, 256 << 10, 1 << 20, 4 << 20};

/// Half as many sends as receives: advertisements are there in time. A receive is full when it
/// completes, so that all modes go through as much memory: otherwise those that are filled from
/// the ring end with what is there, and use the beginning of each buffer only.
const StreamCase ahead{.sends = 4, .receives = 8, .wait_all = true};

StreamCase of(const Contestant& one, StreamCase chosen) {
    chosen.mode = one.mode;
    chosen.protocol = one.protocol;
    return chosen;
}

/// A curve for each contestant, over sizes.
StudyFigure of_modes(std::string id, std::string title, Value value) {
    StudyFigure shown{.id = std::move(id),
                      .title = std::move(title),
                      .quantity = quantity_of(value),
                      .unit = unit_of(value),
                      .over = "bytes of a send and a receive",
                      .xs = sizes,
                      .modes = {"fast", network}};
    for (const Contestant& one : contestants) {
        shown.series.push_back(curve(one.name, of(one, ahead), value, by_size));
    }
    return shown;
}

StudyFigure throughput() {
    StudyFigure shown = of_modes("throughput", "Half as many sends as receives", Value::gigabits);
    shown.series.push_back(socket_curve(SocketKind::tcp_loopback));
    shown.series.push_back(socket_curve(SocketKind::unix_stream));
    return shown;
}

StudyFigure processor() {
    return of_modes("cpu", "Processor time of both ends, half as many sends as receives",
                    Value::cpu);
}

StudyFigure usage(std::string id, std::string of_end, Value value) {
    return of_modes(std::move(id),
                    fmt::format("CPU usage of the {}, half as many sends as receives", of_end),
                    value);
}

StudyFigure directness() {
    return of_modes("percent_by_size",
                    "Sent straight into receives, half as many sends as receives", Value::percent);
}

StudyFigure over_sends(std::string id, std::string title, Value value) {
    StudyFigure shown{.id = std::move(id),
                      .title = std::move(title),
                      .quantity = quantity_of(value),
                      .unit = unit_of(value),
                      .over = "sends at a time",
                      .xs = {1, 2, 4, 8, 16, 32, 64},
                      .modes = {"fast", network}};
    for (const std::size_t bytes :
         {std::size_t{16} << 10, std::size_t{128} << 10, std::size_t{1} << 20}) {
        for (const Contestant& one : contestants) {
            if (one.mode != stream::Mode::dynamic) continue;
            const std::string size = fmt::format("{} KiB", bytes >> 10);
            shown.series.push_back(
                curve(one.protocol == stream::Protocol::published ? size + ", published" : size,
                      of(one, {.bytes = bytes, .receives = 32}), value, by_sends));
        }
    }
    return shown;
}

/// What does not fill the link comes once each round trip: of 48 ms, eight and a half.
constexpr std::chrono::milliseconds several_bursts{408};

StudyFigure over_distance() {
    StudyFigure shown{.id = "distance",
                      .title = "48 ms to and fro, 32 sends and 32 receives",
                      .quantity = "gigabits_per_second",
                      .unit = "Gb/s",
                      .over = "bytes of a send and a receive",
                      .xs = distant_sizes,
                      .modes = {distance}};
    for (const Contestant& one : contestants) {
        // The ring that the library chooses holds what is under way: 10 Gb/s times 48 ms.
        shown.series.push_back(curve(one.name,
                                     of(one, {.sends = 32,
                                              .receives = 32,
                                              .wait_all = true,
                                              .seconds = 0.7,
                                              .window = several_bursts}),
                                     Value::gigabits, by_size));
    }
    return shown;
}

StudyFigure round_trips() {
    StudyFigure shown{.id = "latency",
                      .title = "Round trips of small messages",
                      .quantity = "round_trip_us",
                      .unit = "us to and fro",
                      .over = "bytes",
                      .xs = {8, 64, 512, 4096, 32768},
                      .modes = {"fast", network}};
    for (const Contestant& one : contestants) {
        shown.series.push_back(
            {.label = one.name, .measure = [one](const std::string& device, std::size_t bytes) {
                 StreamCase at = of(one, {});
                 at.bytes = bytes;
                 at.device_mode = device;
                 const bool link = soft::cable_facts(device).shaped;
                 return measure_stream_echo(at, link ? 4'000 : 20'000) / 1e3;
             }});
    }
    for (const SocketKind kind : {SocketKind::tcp_loopback, SocketKind::unix_stream}) {
        shown.series.push_back(
            {.label = std::string{name_of(kind)},
             .measure =
                 [kind](const std::string&, std::size_t bytes) {
                     return socket_round_trip(kind, SocketWait::spinning, bytes, 4'000) / 1e3;
                 },
             .modes = {"fast"}});
    }
    return shown;
}

StudyFigure misaligned() {
    StudyFigure shown{.id = "misaligned",
                      .title = "Buffers of 64 KiB that begin beside a page's begin",
                      .quantity = "gigabits_per_second",
                      .unit = "Gb/s",
                      .over = "bytes beside",
                      .xs = {0, 1, 8, 64, 1000},
                      .modes = {"fast", network}};
    for (const Contestant& one : contestants) {
        StreamCase chosen = of(one, ahead);
        chosen.bytes = 64 << 10;
        shown.series.push_back(curve(one.name, chosen, Value::gigabits,
                                     [](StreamCase& at, std::size_t x) { at.offset = x; }));
    }
    return shown;
}

/// Of `label` to the better of both baselines, where it is worst.
Judge never_worse(std::string figure, std::string label, std::vector<std::size_t> xs,
                  double share) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        std::optional<Summary> worst;
        std::size_t where = 0;
        for (const std::size_t x : xs) {
            const auto direct = view.get(figure, "direct", x);
            const auto indirect = view.get(figure, "indirect", x);
            if (!direct || !indirect) continue;
            const char* const better = *direct > *indirect ? "direct" : "indirect";
            const auto ratio = view.ratios({figure, label, x}, {figure, better, x});
            if (!ratio || (worst && ratio->median >= worst->median)) continue;
            worst = ratio;
            where = x;
        }
        if (!worst) return std::nullopt;
        StudyVerdict verdict = judge_value(*worst, {share});
        verdict.measured += fmt::format(" at {}", where);
        return verdict;
    };
}

/// Of a curve at some points: all of them have to be in the range.
Judge value_between(std::string figure, std::string label, std::vector<std::size_t> xs,
                    Range allowed) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        StudyVerdict all{.agrees = true};
        for (const std::size_t x : xs) {
            const auto value = view.summary(figure, label, x);
            if (!value) continue;
            const StudyVerdict one = judge_value(*value, allowed);
            all.agrees = all.agrees && one.agrees;
            all.measured +=
                fmt::format("{}{} at {}", all.measured.empty() ? "" : ", ", one.measured, x);
        }
        return all.measured.empty() ? std::nullopt : std::optional{all};
    };
}

std::vector<StudyFinding> findings() {
    return {
        {"Motivation", "throughput", "The dynamic protocol has the best of both others",
         "dynamic at least 0.95 of the better one at every size",
         never_worse("throughput", "dynamic", sizes, 0.95)},
        {"Motivation", "throughput", "... as it is published",
         "published at least 0.95 of the better one at every size",
         never_worse("throughput", of_work, sizes, 0.95)},
        {"Motivation", "distance", "... over a distance, too",
         "dynamic at least 0.95 of the better one at every size",
         never_worse("distance", "dynamic", distant_sizes, 0.95)},
        {"Motivation", "distance", "... over a distance, as it is published",
         "published at least 0.95 of the better one at every size",
         never_worse("distance", of_work, distant_sizes, 0.95)},
        {"Overview", "throughput", "No copy at the receiver is faster for large messages",
         "median ratio of direct to indirect from 256 KiB on above 1",
         ratio_between("throughput", "direct", "indirect", {1.0}, 256 << 10)},
        {"Overview", "cpu", "... and takes less of the processors",
         "median ratio of direct to indirect from 256 KiB on below 1",
         ratio_between("cpu", "direct", "indirect", {0, 1.0}, 256 << 10)},
        {"Evaluation", "percent",
         "Fewer sends than receives go straight into the receiver's memory",
         "of 1 MiB, at least 90 % with up to 16 sends and 32 receives",
         value_between("percent", "1024 KiB", {1, 2, 4, 8, 16}, {90, 100})},
        {"Evaluation", "percent", "... as it is published", "the same of published",
         value_between("percent", "1024 KiB, published", {1, 2, 4, 8, 16}, {90, 100})},
        {"Evaluation", "percent", "More sends than receives often go through the ring",
         "of 16 KiB, at most 50 % with 64 sends and 32 receives",
         value_between("percent", "16 KiB", {64}, {0, 50})},
        {"Evaluation", "percent", "... as it is published", "the same of published",
         value_between("percent", "16 KiB, published", {64}, {0, 50})},
        {"Background", "misaligned", "Misaligned buffers cost much",
         "median ratio of direct at odd addresses to aligned ones below 0.8",
         point_to_point({"misaligned", "direct", 1}, {"misaligned", "direct", 0}, {0, 0.8})},
    };
}

/// Of a curve of mode dynamic.
std::optional<stream::Protocol> protocol_of(const std::string& label) {
    if (label.ends_with(of_work)) return stream::Protocol::published;
    if (label == "dynamic" || label.ends_with(" KiB")) return stream::Protocol::extended;
    return std::nullopt;
}

}  // namespace

Study stream_study(std::optional<stream::Protocol> only) {
    Study study{
        .name = "stream",
        .work = "work 003",
        .modes = {"fast", network, distance},
        .seconds_per_point = 0.25,
        .figures = {throughput(), processor(), usage("cpu_sender", "sender", Value::sender_cpu),
                    usage("cpu_receiver", "receiver", Value::receiver_cpu), directness(),
                    over_sends("sends", "32 receives, mode dynamic", Value::gigabits),
                    over_sends("percent", "Sent straight into receives: 32 receives, mode dynamic",
                               Value::percent),
                    over_sends("percent_of_writes",
                               "WRITEs straight into receives: 32 receives, mode dynamic",
                               Value::transfers),
                    over_distance(), round_trips(), misaligned()},
        .findings = findings()};
    if (!only) return study;
    for (StudyFigure& each : study.figures) {
        std::erase_if(each.series, [&](const StudySeries& one) {
            const auto protocol = protocol_of(one.label);
            return protocol && *protocol != *only;
        });
    }
    return study;
}

int run_stream(const StudyOptions& options, std::optional<stream::Protocol> only) {
    return run_study(stream_study(only), options);
}

}  // namespace millrace::bench
