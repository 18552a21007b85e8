#include "run_rpc.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/rpc/measure_rpc.hpp"
#include "bench/rpc/response_memory.hpp"
#include "combinations.hpp"
#include "measure_posting.hpp"
#include "millrace/base/placement.hpp"
#include "rpc_findings.hpp"
#include "simulated_figures.hpp"
#include "studies/framework/study_runs.hpp"

namespace millrace::bench {
namespace {

/// The work's network: InfiniBand EDR, here with a round trip of 2 us.
constexpr const char* network = "shaped:100g,latency=1us";
/// As the work: threads of a host, which share a dispatcher there.
constexpr std::size_t threads_of_host = 8;
/// The work had 90, and responders on 3 hosts.
constexpr std::size_t requesters_of_many = 24;

using Runs = StudyRuns<RpcResult>;

/// Measures `chosen` with x in one of its fields.
std::shared_ptr<Runs> over(std::size_t RpcCase::*field, RpcCase chosen) {
    return std::make_shared<Runs>([field, chosen](const std::string& mode, std::size_t x) {
        RpcCase at = chosen;
        at.mode = mode;
        at.*field = x;
        return measure_rpc(at);
    });
}

struct Curve {
    std::string label;
    std::shared_ptr<Runs> runs;
    std::vector<std::size_t> xs{};
};

/// A figure of one quantity of the runs.
StudyFigure figure(std::string id, std::string title, std::string quantity, std::string unit,
                   std::string over_what, std::vector<std::size_t> xs, double RpcResult::*value,
                   const std::vector<Curve>& curves) {
    StudyFigure made{std::move(id),
                     std::move(title),
                     std::move(quantity),
                     std::move(unit),
                     std::move(over_what),
                     std::move(xs),
                     {}};
    for (const Curve& each : curves) {
        made.series.push_back(curve_of(each.label, each.runs, value, each.xs));
    }
    return made;
}
StudyFigure bandwidths(std::string id, std::string title, std::string over_what,
                       std::vector<std::size_t> xs, const std::vector<Curve>& curves) {
    return figure(std::move(id), std::move(title), "megabytes_per_second", "MB/s",
                  std::move(over_what), std::move(xs), &RpcResult::megabytes_per_second, curves);
}

const std::vector<std::size_t> sizes{64, 256, 1024, 4096, 16384, 262'144, 4'194'304};
/// Those of the work: of figures over requesters and responders, at one of these.
const std::vector<std::size_t> studied_sizes{64, 256, 1024, 4096, 16384};
constexpr std::size_t requesters_of_sizes = 40;
constexpr std::size_t responders_of_sizes = 6;
const std::vector<std::size_t> crowds{1, 8, 16, 24, 32, 40};
const std::vector<std::size_t> shared_crowds{8, 16, 24, 32, 40};
const std::vector<std::size_t> responders{2, 4, 6};
const std::vector<std::size_t> idle{0, 20, 40, 60, 70, 80, 90, 95};

constexpr std::size_t usual_memory = std::size_t{64} << 20;
std::string of_memory(std::size_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

/// Section 4.2 and 8: how much memory the responses lie in, and on which pages.
std::vector<StudyFigure> memory_figures(std::size_t memory_bytes) {
    constexpr auto in_bytes = &RpcCase::response_bytes;
    const RpcCase chosen{.requesters = 8};
    std::vector<Curve> sizes_of_memory{{of_memory(usual_memory), over(in_bytes, chosen)}};
    std::vector<Curve> pages;
    const std::size_t here = response_bytes_here(memory_bytes);
    RpcCase large = chosen;
    large.memory_bytes = here;
    if (here != usual_memory) sizes_of_memory.push_back({of_memory(here), over(in_bytes, large)});
    large.pages = Pages::small;
    pages.push_back({"small pages", over(in_bytes, large)});
    large.pages = Pages::huge;
    pages.push_back({"huge pages", over(in_bytes, large)});
    std::vector<StudyFigure> made{
        bandwidths("section 4.2", "8 to one, WriteWrite, by the memory of all responses",
                   "response in bytes", {64, 4096, 16384}, sizes_of_memory),
        bandwidths("section 8, pages",
                   "8 to one, WriteWrite, responses of " + of_memory(here) + " by their pages",
                   "response in bytes", {64, 4096, 16384}, pages)};
    StudyFigure domains{"section 8, thread domains",
                        "WRITEs of 64 B, posted by one thread",
                        "writes_per_microsecond",
                        "million WRITEs/s",
                        "WRITEs of one call",
                        {1, 16},
                        {}};
    for (const bool is_in_one : {false, true}) {
        domains.series.push_back(
            {is_in_one ? "thread domain" : "none",
             [is_in_one](const std::string& mode, std::size_t x) {
                 return measure_posting({.mode = mode, .thread_domain = is_in_one, .at_a_time = x});
             }});
    }
    made.push_back(std::move(domains));
    return made;
}

/// Dispatchers in threads of their own, as the work draws them, where the requesters' side has
/// another core for them. On the same one as the thread that drives the requesters each response
/// waits until the system has given both their turns: some 3 ms.
bool has_cores_for_dispatchers() { return base::available_cores().size() >= 4; }
std::string dispatchers_in_words() {
    return has_cores_for_dispatchers() ? "a dispatcher for each 8, in threads of their own"
                                       : "a dispatcher for each 8, whose turns the requesters take";
}

/// N to one and N to M over the size of responses, for all combinations.
std::vector<StudyFigure> size_figures() {
    constexpr auto in_bytes = &RpcCase::response_bytes;
    std::vector<Curve> own;
    std::vector<Curve> shared;
    std::vector<Curve> own_to_many;
    std::vector<Curve> shared_to_many;
    for (const auto& [name, requests, answers] : combinations) {
        RpcCase one{.requests = requests, .answers = answers, .requesters = requesters_of_sizes};
        RpcCase many = one;
        many.requesters = requesters_of_many;
        many.responders = responders_of_sizes;
        own.push_back({name, over(in_bytes, one)});
        own_to_many.push_back({name, over(in_bytes, many)});
        one.per_dispatcher = many.per_dispatcher = threads_of_host;
        one.dispatcher_threads = many.dispatcher_threads = has_cores_for_dispatchers();
        shared.push_back({name, over(in_bytes, one)});
        shared_to_many.push_back({name, over(in_bytes, many)});
    }
    constexpr const char* x = "response in bytes";
    return {
        bandwidths("5, sizes", "40 to one, own connections", x, studied_sizes, own),
        bandwidths("6, sizes", "40 to one, a dispatcher for each 8", x, studied_sizes, shared),
        bandwidths("8, sizes", "24 to 6, own connections", x, studied_sizes, own_to_many),
        bandwidths("10, sizes", "24 to 6, a dispatcher for each 8", x, studied_sizes,
                   shared_to_many),
        figure("8, median", "24 to 6, own connections: median latency", "median_us", "us", x,
               studied_sizes, &RpcResult::median_us, own_to_many),
        figure("8, p99", "24 to 6, own connections: 99th percentile of latency", "p99_us", "us", x,
               studied_sizes, &RpcResult::p99_us, own_to_many),
        figure("10, median", "24 to 6, dispatchers: median latency", "median_us", "us", x,
               studied_sizes, &RpcResult::median_us, shared_to_many),
        figure("10, p99", "24 to 6, dispatchers: 99th percentile of latency", "p99_us", "us", x,
               studied_sizes, &RpcResult::p99_us, shared_to_many),
    };
}

std::string cores_in_words() {
    const std::size_t all = base::available_cores().size();
    const std::size_t cores = all < 4 ? 1 : all / 2;  // cores_of_side()
    return fmt::format("{} core{}", cores, cores == 1 ? "" : "s");
}

std::vector<StudyFigure> figures() {
    constexpr auto requesters = &RpcCase::requesters;
    constexpr auto to_many = &RpcCase::responders;
    const auto of_size = [](std::string label, std::size_t bytes, const char* rest = "") {
        return fmt::format("{}, {} B{}", label, bytes, rest);
    };

    std::vector<Curve> one_to_one;
    std::vector<Curve> own;
    std::vector<Curve> shared;
    std::vector<Curve> own_to_many;
    std::vector<Curve> shared_to_many;
    std::vector<Curve> ninety_in_use;
    const auto add = [&](const std::string& label, RpcCase chosen) {
        RpcCase many = chosen;
        many.requesters = requesters_of_many;
        own.push_back({label, over(requesters, chosen)});
        own_to_many.push_back({label, over(to_many, many)});
        chosen.per_dispatcher = many.per_dispatcher = threads_of_host;
        chosen.dispatcher_threads = many.dispatcher_threads = has_cores_for_dispatchers();
        shared.push_back({label, over(requesters, chosen)});
        if (chosen.response_bytes >= 4096) shared_to_many.push_back({label, over(to_many, many)});
        if (!chosen.dispatcher_threads || chosen.threads || label.rfind("WriteWrite", 0) != 0) {
            return;
        }
        // Beside them, what it takes where the requesters' thread takes the dispatchers' turns.
        chosen.dispatcher_threads = many.dispatcher_threads = false;
        shared.push_back({label + ", one thread", over(requesters, chosen)});
        if (chosen.response_bytes >= 4096) {
            shared_to_many.push_back({label + ", one thread", over(to_many, many)});
        }
    };
    for (const auto& [name, requests, answers] : combinations) {
        RpcCase chosen{.requests = requests, .answers = answers};
        one_to_one.push_back({name, over(&RpcCase::response_bytes, chosen)});
        for (const std::size_t bytes : {64U, 4096U}) {
            chosen.response_bytes = bytes;
            add(of_size(name, bytes), chosen);
        }
        ninety_in_use.push_back({name, over(requesters, chosen)});
    }
    add(of_size("WriteWrite", 16384), {.response_bytes = 16384});
    // Figure 10 has these at 16 KiB, besides WriteWrite.
    for (const auto& [name, requests, answers] : combinations) {
        if (answers != message::Transfer::send) continue;
        shared_to_many.push_back(
            {of_size(name, 16384), over(to_many, {.requests = requests,
                                                  .answers = answers,
                                                  .response_bytes = 16384,
                                                  .requesters = requesters_of_many,
                                                  .dispatcher_threads = has_cores_for_dispatchers(),
                                                  .per_dispatcher = threads_of_host})});
    }
    // Threads of both sides: as many as the machine has cores for, and more.
    std::vector<Curve> threads_to_many;
    for (const std::size_t bytes : {64U, 4096U}) {
        threads_to_many.push_back(
            {of_size("WriteWrite", bytes), over(to_many, {.response_bytes = bytes,
                                                          .requesters = requesters_of_many,
                                                          .threads = true,
                                                          .responder_threads = true})});
        threads_to_many.push_back({of_size("WriteWrite", bytes, ", requesters by one thread"),
                                   over(to_many, {.response_bytes = bytes,
                                                  .requesters = requesters_of_many,
                                                  .responder_threads = true})});
    }
    // More threads than cores.
    for (const std::size_t bytes : {64U, 4096U}) {
        add(of_size("WriteWrite", bytes, ", threads"), {.response_bytes = bytes, .threads = true});
    }
    const auto named = [](const std::vector<Curve>& curves, const std::string& label,
                          std::string as) {
        for (const Curve& each : curves) {
            if (each.label == label) return Curve{std::move(as), each.runs};
        }
        return Curve{};
    };
    const auto own_and_shared = [&](const std::string& label) {
        Curve dispatched = named(shared, label, label + ", dispatcher");
        dispatched.xs = shared_crowds;
        return std::vector<Curve>{named(own, label, label + ", own"), std::move(dispatched)};
    };
    std::vector<Curve> latencies = own_and_shared(of_size("WriteWrite", 64));
    for (Curve& each : own_and_shared(of_size("WriteWrite", 4096))) {
        latencies.push_back(std::move(each));
    }
    std::vector<Curve> cycles;
    for (const auto& each : combinations) {
        cycles.push_back(named(own, of_size(each.name, 4096), each.name));
    }
    cycles.push_back(named(shared, of_size("WriteWrite", 4096), "WriteWrite, dispatcher"));
    cycles.back().xs = shared_crowds;

    ninety_in_use.push_back(
        {"WriteWrite, dense",
         over(requesters, {.response_bytes = 4096, .polling = message::Polling::dense})});
    const RpcCase ninety{.response_bytes = 4096, .requesters = 90};
    RpcCase ninety_dense = ninety;
    ninety_dense.polling = message::Polling::dense;
    RpcCase ninety_by_send = ninety;
    ninety_by_send.answers = message::Transfer::send;
    RpcCase small = ninety;
    small.response_bytes = 64;
    RpcCase small_dense = ninety_dense;
    small_dense.response_bytes = 64;

    // Section 8, where each thing is off in turn.
    std::vector<Curve> habits;
    for (const auto& [name, requests, answers] : combinations) {
        if (requests != answers) continue;
        RpcCase chosen{.requests = requests, .answers = answers, .posts = true};
        habits.push_back({name + ", posted", over(requesters, chosen)});
        chosen.posting = {.inlines = false};
        habits.push_back({name + ", not inlined", over(requesters, chosen)});
        chosen.posting = {.signals_selectively = false};
        habits.push_back({name + ", each signaled", over(requesters, chosen)});
    }

    return {
        bandwidths("3a", "One to one", "response in bytes", sizes, one_to_one),
        figure("3b", "One to one: median latency", "median_us", "us", "response in bytes", sizes,
               &RpcResult::median_us, one_to_one),
        figure("3b, p99", "One to one: 99th percentile of latency", "p99_us", "us",
               "response in bytes", sizes, &RpcResult::p99_us, one_to_one),
        figure("4a", "Requester's cycles for each byte, polling in vain too", "cycles_per_byte",
               "cycles per byte", "response in bytes", studied_sizes,
               &RpcResult::requester_all_cycles_per_byte, one_to_one),
        figure("4b", "Responder's cycles for each byte, polling in vain too", "cycles_per_byte",
               "cycles per byte", "response in bytes", studied_sizes,
               &RpcResult::responder_all_cycles_per_byte, one_to_one),
        figure("4a, busy", "Requester's busy cycles for each byte", "cycles_per_byte",
               "cycles per byte", "response in bytes", studied_sizes,
               &RpcResult::requester_cycles_per_byte, one_to_one),
        figure("4b, busy", "Responder's busy cycles for each byte", "cycles_per_byte",
               "cycles per byte", "response in bytes", studied_sizes,
               &RpcResult::responder_cycles_per_byte, one_to_one),
        bandwidths("5", "N to one, own connections", "requesters", crowds, own),
        figure("5, median", "N to one: median latency", "median_us", "us", "requesters", crowds,
               &RpcResult::median_us, latencies),
        figure("5, p99", "N to one: 99th percentile of latency", "p99_us", "us", "requesters",
               crowds, &RpcResult::p99_us, latencies),
        bandwidths("6", "N to one, " + dispatchers_in_words(), "requesters", shared_crowds, shared),
        figure("7", "Responder's cycles for each response of 4 KiB, polling in vain too",
               "cycles_per_message", "cycles per response", "requesters", crowds,
               &RpcResult::responder_all_cycles_per_message, cycles),
        figure("7, busy", "Responder's busy cycles for each response of 4 KiB",
               "cycles_per_message", "cycles per response", "requesters", crowds,
               &RpcResult::responder_cycles_per_message, cycles),
        bandwidths("8", "24 to M, own connections", "responders", responders, own_to_many),
        bandwidths("8, threads",
                   fmt::format("24 to M, a thread for each responder; {} for either side",
                               cores_in_words()),
                   "responders", responders, threads_to_many),
        figure("table 2", "24 to M: mailboxes that are empty when looked at", "empty_percent",
               "percent", "responders", responders, &RpcResult::empty_percent,
               {named(own_to_many, of_size("WriteWrite", 4096), "WriteWrite, own"),
                named(shared_to_many, of_size("WriteWrite", 4096), "WriteWrite, dispatcher")}),
        bandwidths("9a", "Many mailboxes, all in use", "requesters", {16, 40, 90}, ninety_in_use),
        bandwidths("9b", "90 to one, of whom some do not ask", "percent that do not ask", idle,
                   {{"WriteWrite, 4096 B", over(&RpcCase::idle_percent, ninety)},
                    {"WriteSend, 4096 B", over(&RpcCase::idle_percent, ninety_by_send)},
                    {"WriteWrite, 4096 B, dense", over(&RpcCase::idle_percent, ninety_dense)},
                    {"WriteWrite, 64 B", over(&RpcCase::idle_percent, small)},
                    {"WriteWrite, 64 B, dense", over(&RpcCase::idle_percent, small_dense)}}),
        bandwidths("section 8", "N to one, 64 B: inlining and selective signaling", "requesters",
                   {1, 8, 24}, habits),
        bandwidths("10", "24 to M, " + dispatchers_in_words(), "responders", responders,
                   shared_to_many),
    };
}

}  // namespace

Study rpc_study(std::size_t memory_bytes) {
    std::vector<StudyFigure> all = figures();
    for (StudyFigure& each : size_figures()) all.push_back(std::move(each));
    for (StudyFigure& each : memory_figures(memory_bytes)) all.push_back(std::move(each));
    for (StudyFigure& each : simulated_figures()) all.push_back(std::move(each));
    std::vector<StudyFinding> found = findings_of_work();
    for (StudyFinding& each : simulated_findings()) found.push_back(std::move(each));
    if (const std::size_t here = response_bytes_here(memory_bytes); here != usual_memory) {
        const std::string memory = of_memory(here);
        const std::string usual = of_memory(usual_memory);
        found.push_back({"4.2", "section 4.2",
                         "Responses lie in several GB, made before, which costs nothing",
                         "median ratio of " + memory + " to " + usual + " between 0.9 and 1.1",
                         ratio_between("section 4.2", memory, usual, {0.9, 1.1})});
    }
    return {.name = "rpc",
            .work = "work 004,",
            .modes = {"fast", network},
            .seconds_per_point = 0.3,
            .figures = std::move(all),
            .findings = std::move(found)};
}

int run_rpc(const StudyOptions& options, std::size_t memory_bytes) {
    return run_study(rpc_study(memory_bytes), options);
}

}  // namespace millrace::bench
