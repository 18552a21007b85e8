#include "run_message.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/limits/hand_over.hpp"
#include "bench/limits/sockets.hpp"
#include "bench/message/measure_clients.hpp"
#include "bench/message/measure_message.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "studies/framework/study_runs.hpp"
#include "studies/works/quotations.hpp"

namespace millrace::bench {
namespace {

using message::Polling;
using message::Receives;
using message::ScanKernel;
using message::Transfer;

/// The work's link, with what it measured to and fro of up to 16 B (section 3.2.2).
std::string network() {
    return fmt::format("shaped:{}g,latency={}us", quoted("001.link"), quoted("001.round_trip") / 2);
}

[[nodiscard]] bool takes_time(const std::string& mode) { return soft::cable_facts(mode).shaped; }
[[nodiscard]] std::uint64_t calls_in(const std::string& mode) {
    return takes_time(mode) ? 4'000 : 20'000;
}
[[nodiscard]] std::uint64_t requests_in(const std::string& mode) {
    return takes_time(mode) ? 40'000 : 200'000;
}
const std::vector<std::string> fast_alone{"fast"};

Ways over_socket(bool unix_domain) {
    return {.transport = connect::Transport::tcp, .unix_domain = unix_domain};
}

/// For a server with Polling::shared.
constexpr Ways shared_buffer{.requests = Transfer::shared, .answers = Transfer::send};

// --- curves

using Set = void (*)(CallSetting& call, std::size_t x);
constexpr Set bytes_of = [](CallSetting& call, std::size_t x) { call.bytes = x; };
constexpr Set clients_of = [](CallSetting& call, std::size_t x) { call.connected = x; };

/// Microseconds of a call.
StudySeries calls(std::string label, CallSetting chosen, Set set,
                  std::vector<std::string> modes = {}) {
    return {.label = std::move(label),
            .measure =
                [=](const std::string& mode, std::size_t x) {
                    CallSetting at = chosen;
                    set(at, x);
                    at.mode = mode;
                    at.calls = calls_in(mode);
                    if (is_by_socket(at.ways)) at.calls /= 4;
                    return call_of_one(at) / 1e3;
                },
            .modes = std::move(modes)};
}

using SetLoad = void (*)(LoadSetting& load, std::size_t x);
constexpr SetLoad all_clients = [](LoadSetting& load, std::size_t x) {
    load.connected = load.active = x;
};
constexpr SetLoad windows = [](LoadSetting& load, std::size_t x) {
    load.window = static_cast<std::uint32_t>(x);
};

double load_at(LoadSetting at, SetLoad set, const std::string& mode, std::size_t x) {
    set(at, x);
    at.mode = mode;
    at.requests = requests_in(mode);
    if (is_by_socket(at.ways)) at.requests /= 4;
    return load_of_many(at).per_second;
}
/// Requests a second.
StudySeries loads(std::string label, LoadSetting chosen, SetLoad set,
                  std::vector<std::string> modes = {}) {
    return {.label = std::move(label),
            .measure = [=](const std::string& mode,
                           std::size_t x) { return load_at(chosen, set, mode, x); },
            .modes = std::move(modes)};
}
/// Microseconds that each of them waits: each has one request at a time, so it is the number of
/// clients by their requests a second.
StudySeries waits(std::string label, LoadSetting chosen) {
    return {.label = std::move(label), .measure = [=](const std::string& mode, std::size_t x) {
                return static_cast<double>(x) / load_at(chosen, all_clients, mode, x) * 1e6;
            }};
}
StudySeries socket_loads(std::string label, SetLoad set) {
    return {.label = std::move(label),
            .measure =
                [=](const std::string&, std::size_t x) {
                    LoadSetting at;
                    set(at, x);
                    return load_over_sockets(at.connected, at.window,
                                             at.window == 1 ? 50'000 : 200'000);
                },
            .modes = fast_alone};
}
StudySeries echoes_over(std::string label, SocketKind kind) {
    return {.label = std::move(label),
            .measure =
                [=](const std::string& mode, std::size_t bytes) {
                    return socket_round_trip(kind, SocketWait::blocking, bytes,
                                             calls_in(mode) / 4) /
                           1e3;
                },
            .modes = fast_alone};
}

// --- figures

StudyFigure figure(std::string id, std::string title, std::string quantity, std::string unit,
                   std::string over, std::vector<std::size_t> xs, std::vector<StudySeries> series,
                   std::vector<std::string> modes = {}, StudyShape shape = StudyShape::curves) {
    return {.id = std::move(id),
            .title = std::move(title),
            .quantity = std::move(quantity),
            .unit = std::move(unit),
            .over = std::move(over),
            .xs = std::move(xs),
            .series = std::move(series),
            .modes = std::move(modes),
            .shape = shape};
}

StudyFigure figure_4_2() {
    const CallSetting rings{};
    return figure(
        "4.2", "One client's call by message size", "round_trip_us", "us to and fro",
        "message size in bytes", {64, 256, 1024, 4096, 16384},
        {calls("flag", rings, bytes_of),
         calls("dense", {.polling = Polling::dense}, bytes_of),
         calls("shared", {.polling = Polling::shared, .ways = shared_buffer}, bytes_of),
         {.label = "ideal hand-over",
          .measure =
              [](const std::string& mode, std::size_t bytes) {
                  return message_round_trip(bytes, calls_in(mode)) / 1e3;
              },
          .modes = fast_alone},
         echoes_over("Unix socket", SocketKind::unix_stream),
         echoes_over("TCP on the loopback", SocketKind::tcp_loopback),
         calls("session over a Unix socket",
               {.polling = Polling::automatic, .ways = over_socket(true)}, bytes_of, fast_alone),
         calls("session over TCP", {.polling = Polling::automatic, .ways = over_socket(false)},
               bytes_of, fast_alone)});
}

StudyFigure figure_4_3() {
    return figure("4.3", "As many echoing servers as clients, each pair a channel and two threads",
                  "echoes_per_second", "echoes a second", "pairs", {1, 2, 4, 8, 16},
                  {{.label = "channels", .measure = [](const std::string& mode, std::size_t x) {
                        return echoes_of_pairs(x, mode);
                    }}});
}

/// The kernels that this processor has.
std::vector<ScanKernel> kernels_here() {
    std::vector<ScanKernel> here;
    for (const ScanKernel kernel : message::every_scan_kernel) {
        if (message::is_available(kernel)) here.push_back(kernel);
    }
    return here;
}

StudyFigure figure_4_6() {
    std::vector<StudySeries> series{calls("each client, one by one", {}, clients_of)};
    for (const ScanKernel kernel : kernels_here()) {
        series.push_back(calls(fmt::format("bytes, {}", name_of(kernel)),
                               {.polling = Polling::dense, .scan = kernel}, clients_of));
    }
    // The work's offsets: here words of 8 bytes, 8 of each client, by the same kernels.
    for (const ScanKernel kernel : kernels_here()) {
        series.push_back(calls(fmt::format("offsets, {}", name_of(kernel)),
                               {.polling = Polling::shared, .ways = shared_buffer, .scan = kernel},
                               clients_of));
    }
    return figure("4.6", "A call of one among many clients, by what looks for messages",
                  "round_trip_us", "us to and fro", "connected clients", {1, 16, 64, 256, 1024},
                  std::move(series));
}

StudyFigure figure_4_6_scans() {
    std::vector<StudySeries> series;
    for (const ScanKernel kernel : kernels_here()) {
        series.push_back({.label = fmt::format("bytes, {}", name_of(kernel)),
                          .measure = [kernel](const std::string&, std::size_t x) {
                              return scan_of_empty(kernel, x);
                          }});
    }
    for (const OffsetScan scan : every_offset_scan) {
        if (!is_available(scan)) continue;
        series.push_back({.label = fmt::format("offsets, {}", name_of(scan)),
                          .measure = [scan](const std::string&, std::size_t x) {
                              return scan_of_empty_offsets(scan, x);
                          }});
    }
    return figure("4.6, scans", "A scan in which nobody has written", "scan_ns", "ns", "clients",
                  {16, 64, 256, 1024, 2048}, std::move(series), fast_alone);
}

std::size_t saturating_clients() {
    return static_cast<std::size_t>(quoted("001.saturating_clients"));
}
std::size_t overloading_clients() {
    return static_cast<std::size_t>(quoted("001.overloading_clients"));
}
/// 10 and 14, of which the work speaks, among them.
const std::vector<std::size_t> crowds{1, 2, 4, 8, 10, 14, 16, 32, 64};

StudyFigure figure_4_8() {
    return figure(
        "4.8", "One server's thread, clients with one request each", "requests_per_second",
        "requests a second", "clients", crowds,
        {loads("flag", {}, all_clients), loads("dense", {.polling = Polling::dense}, all_clients),
         loads("shared", {.polling = Polling::shared, .ways = shared_buffer}, all_clients),
         socket_loads("Unix sockets and epoll", all_clients),
         loads("session over Unix sockets",
               {.polling = Polling::automatic, .ways = over_socket(true)}, all_clients,
               fast_alone)});
}
StudyFigure figure_4_8_latency() {
    return figure("4.8, latency", "The same: how long each waits, on average", "mean_us", "us",
                  "clients", crowds,
                  {waits("flag", {}), waits("dense", {.polling = Polling::dense})});
}

using CrowdRuns = StudyRuns<CrowdOfCalls>;

/// Clients in threads or processes of their own: requests a second and latencies of the same runs.
std::vector<StudyFigure> figures_4_8_crowds() {
    struct Crowd {
        const char* label;
        CrowdSetting setting;
    };
    const Crowd all[] = {{"flag, threads", {}},
                         {"dense, threads", {.polling = Polling::dense}},
                         {"flag, processes", {.processes = true}},
                         {"dense, processes", {.polling = Polling::dense, .processes = true}}};
    const std::string clients = "clients, all of them on one core: more than 1 are oversubscribed";
    StudyFigure speed = figure("4.8, crowd", "One server's thread, clients of their own",
                               "requests_per_second", "requests a second", clients, crowds, {});
    StudyFigure mean = figure("4.8, crowd, mean", "The same runs: mean latency", "mean_us", "us",
                              clients, crowds, {});
    StudyFigure p99 = figure("4.8, crowd, p99", "The same runs: 99 % take no longer", "p99_us",
                             "us", clients, crowds, {});
    for (const auto& [label, setting] : all) {
        const auto runs = std::make_shared<CrowdRuns>(
            [setting = setting](const std::string& mode, std::size_t x) {
                CrowdSetting at = setting;
                at.mode = mode;
                at.clients = x;
                return calls_of_crowd(at);
            });
        speed.series.push_back(curve_of(label, runs, &CrowdOfCalls::per_second));
        mean.series.push_back(curve_of(label, runs, &CrowdOfCalls::mean_us));
        p99.series.push_back(curve_of(label, runs, &CrowdOfCalls::p99_us));
    }
    return {std::move(speed), std::move(mean), std::move(p99)};
}

StudyFigure figure_4_9() {
    return figure(
        "4.9", "A call in place, and copied at both ends", "round_trip_us", "us to and fro",
        "message size in bytes", {64, 512, 4096},
        {calls("in place", {}, bytes_of), calls("copied", {.zero_copy = false}, bytes_of)});
}

/// What the work's clients cannot do.
StudyFigure windows_of_16() {
    return figure("windows", "16 clients, several requests each", "requests_per_second",
                  "requests a second", "requests of each without an answer", {1, 4, 16},
                  {loads("flag", {}, windows), loads("dense", {.polling = Polling::dense}, windows),
                   loads("flag, 16 of 512", {.connected = 512}, windows, fast_alone),
                   loads("dense, 16 of 512", {.polling = Polling::dense, .connected = 512}, windows,
                         fast_alone),
                   socket_loads("Unix sockets and epoll", windows)});
}

/// Work 004, figures 3 to 6: which verbs carry requests and answers; and work 002's transports.
struct Named {
    const char* name;
    Polling polling;
    Ways ways;
};
const std::vector<Named>& every_way() {
    static const std::vector<Named> all{
        {"write/write", Polling::flag, {}},
        {"write/send", Polling::flag, {Transfer::write, Transfer::send}},
        {"send/write", Polling::flag, {Transfer::send, Transfer::write}},
        {"send/send", Polling::flag, {Transfer::send, Transfer::send}},
        {"send/write, shared receives",
         Polling::dense,
         {Transfer::send, Transfer::write, Receives::shared}},
        {"send/send, shared receives",
         Polling::dense,
         {Transfer::send, Transfer::send, Receives::shared}},
        {"shared/send", Polling::shared, shared_buffer},
        {"by UC", Polling::automatic, {.transport = connect::Transport::uc}},
        {"by UD", Polling::automatic, {.transport = connect::Transport::ud}}};
    return all;
}
StudyFigure calls_by_way() {
    std::vector<StudySeries> series;
    for (const Named& way : every_way()) {
        series.push_back(calls(way.name, {.polling = way.polling, .ways = way.ways}, bytes_of));
    }
    return figure("ways", "One client's call by how it travels", "round_trip_us", "us to and fro",
                  "message size in bytes", {64}, std::move(series), {}, StudyShape::table);
}
StudyFigure loads_by_way() {
    std::vector<StudySeries> series;
    for (const Named& way : every_way()) {
        series.push_back(loads(way.name, {.polling = way.polling, .ways = way.ways}, windows));
    }
    return figure("ways, load", "16 clients, 16 requests each, by how they travel",
                  "requests_per_second", "requests a second", "requests of each without an answer",
                  {16}, std::move(series), {}, StudyShape::table);
}

// --- findings

/// Of a curve: its value at `above`, by that at `below`.
Judge along(const std::string& id, const std::string& label, std::size_t above, std::size_t below,
            Range allowed) {
    return point_to_point({id, label, above}, {id, label, below}, allowed);
}
/// Of a curve, where it is highest.
Judge most_of(std::string id, std::string label, Range allowed) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        std::optional<Summary> most;
        for (const std::size_t x : crowds) {
            const auto value = view.summary(id, label, x);
            if (value && (!most || value->median > most->median)) most = value;
        }
        return most ? std::optional{judge_value(*most, allowed)} : std::nullopt;
    };
}

/// As figure 4.6 calls it.
std::string best_bytes() { return fmt::format("bytes, {}", name_of(message::best_scan_kernel())); }

std::vector<StudyFinding> findings() {
    return {
        {"4.1.5", "4.2", "Shared memory is 30 times as fast as Unix sockets",
         "ratio of Unix socket to flag at 64 B within a factor of 1.5",
         ratio_near("4.2", "Unix socket", "flag", quoted("001.memory_to_unix"), 64, 64)},
        {"4.1.5", "4.2", "RDMA is 13 times as fast as TCP",
         "ratio of TCP on the loopback to flag at 64 B within a factor of 1.5",
         ratio_near("4.2", "TCP on the loopback", "flag", quoted("001.rdma_to_tcp"), 64, 64)},
        {"4.1.5", "4.2", "Direct memory access scales linearly with message size",
         "flag at 16 KiB to flag at 4 KiB between 2 and 5",
         along("4.2", "flag", 16384, 4096, {2, 5})},
        {"4.1.5", "4.3",
         "Throughput rises until connections have the processors filled, and drops beyond",
         "echoes a second of 16 pairs to 1 pair below 1, where one pair fills two processors",
         along("4.3", "channels", 16, 1, {0, 1})},
        {"4.2.3", "4.6", "Of calls, polling vectors of bytes is faster than looking at each client",
         "median ratio of each client to bytes by the fastest kernel, from 256 clients on, above 1",
         ratio_between("4.6", "each client, one by one", best_bytes(), {1}, 256)},
        {"4.2.3", "4.6, scans", "Polling bytes is some 5 % faster than polling offsets",
         "median ratio of offsets to bytes, both scalar, between 1.02 and 1.15",
         ratio_between("4.6, scans", "offsets, scalar", "bytes, scalar", {1.02, 1.15}, 256)},
        {"4.2.3", "4.6, scans", "Vectors of 16 B make polling bytes faster",
         "median ratio of scalar to sse2 above 1",
         ratio_between("4.6, scans", "bytes, scalar", "bytes, sse2", {1}, 256)},
        {"4.2.3", "4.6, scans", "... and do nothing for offsets",
         "median ratio of scalar to vectors between 0.9 and 1.1",
         ratio_between("4.6, scans", "offsets, scalar", "offsets, sse2", {0.9, 1.1}, 256)},
        {"4.2.3", "4.6", "Of calls, polling bytes is some 5 % faster than polling offsets",
         "median ratio of offsets to bytes, both scalar, from 256 clients on, between 1.02 and "
         "1.15",
         ratio_between("4.6", "offsets, scalar", "bytes, scalar", {1.02, 1.15}, 256)},
        {"4.2.3", "4.6", "... and vectors of 16 B make polling bytes faster, a little",
         "median ratio of scalar to sse2 from 256 clients on between 1 and 1.5",
         ratio_between("4.6", "bytes, scalar", "bytes, sse2", {1, 1.5}, 256)},
        {"4.2.4", "4.8, crowd", "It is saturated with 10 clients, of clients in processes",
         "requests a second of 32 clients to 10 between 0.7 and 1.2",
         along("4.8, crowd", "flag, processes", 32, saturating_clients(), {0.7, 1.2})},
        {"4.2.4", "4.8, crowd, mean", "With 14 clients latencies have more than doubled: processes",
         "mean of 14 clients to 1 at least 2",
         along("4.8, crowd, mean", "flag, processes", overloading_clients(), 1,
               {quoted("001.overload")})},
        {"4.2.4", "4.8", "One thread answers up to 4 million requests a second",
         "the most of flag at least 4 million",
         most_of("4.8", "flag", {quoted("001.most_requests") * 1e6})},
        {"4.2.4", "4.8", "It is saturated with 10 clients",
         "requests a second of 32 clients to 10 between 0.7 and 1.2",
         along("4.8", "flag", 32, saturating_clients(), {0.7, 1.2})},
        {"4.2.4", "4.8, latency", "With 14 clients latencies have more than doubled",
         "mean of 14 clients to 1 at least 2",
         along("4.8, latency", "flag", overloading_clients(), 1, {quoted("001.overload")})},
        {"4.4", "4.9", "Zero copy is some 5 % faster",
         "ratio of copied to in place at 64 B between 1 and 1.15",
         ratio_between("4.9", "copied", "in place", {1, 1.15}, 64, 64)},
    };
}

Study make_study() {
    std::vector<StudyFigure> all{figure_4_2(),       figure_4_3(), figure_4_6(),
                                 figure_4_6_scans(), figure_4_8(), figure_4_8_latency()};
    for (StudyFigure& one : figures_4_8_crowds()) all.push_back(std::move(one));
    for (auto* const make : {figure_4_9, windows_of_16, calls_by_way, loads_by_way}) {
        all.push_back(make());
    }
    Study study{.name = "message",
                .work = "work 001, chapter 4",
                .modes = {"fast", network()},
                .seconds_per_point = 0.4,
                .figures = std::move(all),
                .findings = findings(),
                .setting = "messages of 64 B, unless they are the abscissa"};
    return study;
}

}  // namespace

const Study& message_study() {
    static const Study study = make_study();
    return study;
}

int run_message(const StudyOptions& options) { return run_study(message_study(), options); }

}  // namespace millrace::bench
