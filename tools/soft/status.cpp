#include "status.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "command_line/output.hpp"
#include "millrace/cm/survey.hpp"
#include "soft/seen.hpp"

namespace millrace::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_lines = 16;  ///< of queue pairs and of regions, in the table

Json as_json(const soft::Participant& one) {
    Json json{{"fabric", one.fabric},
              {"node", one.node},
              {"user", one.user_name},
              {"user_id", one.user},
              {"readable", one.readable}};
    if (!one.readable) return json;
    json["pid"] = one.pid;
    json["program"] = one.program;
    json["control_memory_bytes"] = one.memory_bytes;
    json["completion_channels"] = one.completion_channels;
    json["queue_pairs"] = Json::array();
    for (const auto& qp : one.queue_pairs) {
        json["queue_pairs"].push_back({{"number", qp.number},
                                       {"type", qp.type},
                                       {"state", qp.state},
                                       {"peer", qp.peer ? Json(*qp.peer) : Json(nullptr)},
                                       {"pending_sends", qp.pending_sends},
                                       {"posted_receives", qp.posted_receives},
                                       {"pool", qp.pool ? Json(*qp.pool) : Json(nullptr)}});
    }
    json["regions"] = Json::array();
    for (const auto& region : one.regions) {
        json["regions"].push_back({{"rkey", region.rkey},
                                   {"address", region.address},
                                   {"bytes", region.bytes},
                                   {"access", region.access},
                                   {"shared", region.shared}});
    }
    json["counters"] = Json::array();
    for (const auto& page : one.statistics) {
        Json counters = Json::object();
        for (const auto& [name, value] : page.counters) counters[name] = value;
        Json gauges = Json::object();
        for (const auto& [name, value] : page.gauges) gauges[name] = value;
        Json histograms = Json::object();
        for (const auto& values : page.histograms) {
            histograms[values.name] = {{"count", values.count}, {"mean", values.mean},
                                       {"least", values.least}, {"median", values.median},
                                       {"p90", values.p90},     {"p99", values.p99},
                                       {"p99.9", values.p999},  {"most", values.most}};
        }
        json["counters"].push_back({{"title", page.title},
                                    {"values", std::move(counters)},
                                    {"gauges", std::move(gauges)},
                                    {"histograms", std::move(histograms)}});
    }
    return json;
}

std::string plural(std::uint64_t count, std::string_view thing) {
    return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string left_out(std::size_t count) {
    if (count <= most_lines) return {};
    return fmt::format("    and {} more (--json lists all)\n", count - most_lines);
}

std::string text_of(const soft::Participant& one,
                    const std::map<std::uint32_t, std::string>& owners) {
    if (!one.readable) {
        return fmt::format(
            "  node {} of user {}: this user may not look inside, or it is another build's\n",
            one.node, one.user_name);
    }
    std::uint64_t bytes = 0, shared = 0;
    for (const auto& region : one.regions) {
        bytes += region.bytes;
        shared += region.shared ? 1 : 0;
    }
    std::string text = fmt::format("  node {}: {} (pid {}) of user {}\n", one.node, one.program,
                                   one.pid, one.user_name);
    text += fmt::format(
        "    {}, {} of {} bytes ({} shared), {}, {} KiB of control memory\n",
        plural(one.queue_pairs.size(), "queue pair"), plural(one.regions.size(), "region"), bytes,
        shared, plural(one.completion_channels, "completion channel"), one.memory_bytes / 1024);
    const bool has_wire = std::ranges::any_of(
        one.statistics,
        [](const base::StatisticsPage::Snapshot& page) { return page.title.starts_with("wire "); });
    for (std::size_t i = 0; i < std::min(one.queue_pairs.size(), most_lines); ++i) {
        const auto& qp = one.queue_pairs[i];
        std::string peer = qp.type == "UD" ? "any peer" : "no peer";
        if (qp.peer) {
            const auto owner = owners.find(*qp.peer >> 12);
            peer = fmt::format("peer {:#x} ({})", *qp.peer,
                               owner != owners.end() ? owner->second
                               : has_wire            ? "elsewhere, or gone"
                                                     : "gone");
        }
        text += fmt::format("    queue pair {:#x}  {:<3} {:<5}  {}, {}{}, {}\n", qp.number, qp.type,
                            qp.state, peer, plural(qp.posted_receives, "posted receive"),
                            qp.pool ? fmt::format(" in pool {}", *qp.pool) : std::string{},
                            plural(qp.pending_sends, "pending send"));
    }
    text += left_out(one.queue_pairs.size());
    for (std::size_t i = 0; i < std::min(one.regions.size(), most_lines); ++i) {
        const auto& region = one.regions[i];
        text += fmt::format("    region {:#x}  {} bytes at {:#x}, {}\n", region.rkey, region.bytes,
                            region.address,
                            region.shared ? "mapped by peers" : "reached by process_vm");
    }
    text += left_out(one.regions.size());
    for (const auto& page : one.statistics) {
        std::string counts;
        for (const auto* const values : {&page.counters, &page.gauges}) {
            for (const auto& [name, value] : *values) {
                if (value != 0)
                    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", name, value);
            }
        }
        for (const auto& values : page.histograms) {
            if (values.count == 0) continue;
            counts += fmt::format("{}{} {} (half of them up to {}, 99 % up to {}, all up to {})",
                                  counts.empty() ? "" : ", ", values.count, values.name,
                                  values.median, values.p99, values.most);
        }
        if (counts.empty()) counts = "nothing counted yet";
        text += fmt::format("    {}: {}\n", page.title, counts);
    }
    return text;
}

/// A line for ids of the same name, as all are that one listener has accepted.
void print_ids(const std::vector<cm::TakenPort>& ports) {
    std::map<std::string, std::size_t> lines;
    for (const auto& port : ports) {
        const char* const state = port.connected   ? "is connected"
                                  : port.listening ? "listens"
                                                   : "is bound";
        ++lines[fmt::format("{} {} {}, fabric {}, user {}", port.space, port.address(), state,
                            port.fabric, port.user)];
    }
    if (!lines.empty()) fmt::print("rdma_cm\n");
    for (const auto& [line, ids] : lines) {
        fmt::print("  {}{}\n", line, ids == 1 ? "" : fmt::format(", {} ids", ids));
    }
}

/// Of rdma_cm, on fabrics that are asked for.
std::vector<cm::TakenPort> seen_ports(const std::string& fabric) {
    auto ports = cm::taken_ports();
    std::erase_if(ports,
                  [&](const auto& port) { return !fabric.empty() && port.fabric != fabric; });
    return ports;
}

}  // namespace

int show_status(const std::string& fabric, const JsonOutput& json) {
    json.check();
    const soft::Survey survey = seen(fabric);
    const std::vector<cm::TakenPort> ports = seen_ports(fabric);
    if (json.wanted()) {
        Json all{{"participants", Json::array()}, {"rdma_cm", Json::array()}};
        for (const auto& port : ports) {
            all["rdma_cm"].push_back({{"fabric", port.fabric},
                                      {"user_id", port.user},
                                      {"space", port.space},
                                      {"address", port.address()},
                                      {"listening", port.listening},
                                      {"connected", port.connected}});
        }
        for (const auto& one : survey.participants) all["participants"].push_back(as_json(one));
        json.write(all.dump(2));
        if (json.in_place_of_lines()) return 0;
    }
    if (survey.participants.empty()) {
        fmt::print("no program has the soft device open{}\n",
                   fabric.empty() ? std::string{} : fmt::format(" on fabric '{}'", fabric));
    }
    std::string last;
    for (const auto& one : survey.participants) {
        if (one.fabric != last) fmt::print("fabric {}\n", one.fabric);
        last = one.fabric;
        std::map<std::uint32_t, std::string> owners;
        for (const auto& other : survey.participants) {
            if (other.fabric != one.fabric || other.user != one.user) continue;
            owners[other.node] = other.pid != 0 ? fmt::format("pid {}", other.pid)
                                                : fmt::format("node {}", other.node);
        }
        print_wrapped(text_of(one, owners), 6);
    }
    print_ids(ports);
    return 0;
}

}  // namespace millrace::tools
