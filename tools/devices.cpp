// See devices.hpp.
#include "devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line/json_output.hpp"
#include "command_line/output.hpp"
#include "millrace/base/error.hpp"
#include "millrace/verbs/device.hpp"

namespace millrace::tools {
namespace {

struct Entry {
    std::string name;
    verbs::DeviceFacts facts;
    std::string trouble;  ///< why it could not be asked; empty if it could
};

std::vector<Entry> ask_all() {
    std::vector<Entry> entries;
    for (const auto& device : verbs::devices()) {
        Entry entry;
        entry.name = device.name();
        try {
            entry.facts = device.facts();
        } catch (const base::Error& error) {
            entry.trouble = error.what();  // the others are still worth showing
        }
        entries.push_back(std::move(entry));
    }
    return entries;
}

std::string guid_text(std::uint64_t guid) {
    return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff,
                       guid >> 16 & 0xffff, guid & 0xffff);
}

nlohmann::ordered_json as_json(const Entry& entry) {
    nlohmann::ordered_json json;
    json["name"] = entry.name;
    if (!entry.trouble.empty()) {
        json["error"] = entry.trouble;
        return json;
    }
    const auto& facts = entry.facts;
    json["provider"] = facts.provider;
    json["description"] = facts.description;
    json["firmware"] = facts.firmware;
    json["guid"] = guid_text(facts.guid);
    json["port"] = facts.port;
    json["port_active"] = facts.port_active;
    json["link_layer"] = facts.link_layer;
    json["lid"] = facts.lid;
    json["active_mtu_bytes"] = facts.active_mtu;
    json["gid_index"] = facts.gid_index;
    json["gid"] = facts.gid;
    json["max_queue_pairs"] = facts.max_queue_pairs;
    json["max_work_requests"] = facts.max_work_requests;
    json["max_sge"] = facts.max_sge;
    json["max_completion_entries"] = facts.max_completion_entries;
    json["max_region_bytes"] = facts.max_region_size;
    return json;
}

std::string text_of(const Entry& entry) {
    if (!entry.trouble.empty()) {
        return fmt::format("{}\n  cannot be opened: {}\n", entry.name, entry.trouble);
    }
    const auto& facts = entry.facts;
    std::string text = fmt::format("{}  ({})\n", entry.name, facts.description);
    text += fmt::format("  port {}: {}, {}, LID {}, MTU {} bytes\n", facts.port,
                        facts.port_active ? "active" : "not active", facts.link_layer, facts.lid,
                        facts.active_mtu);
    if (facts.gid_index >= 0) {
        text += fmt::format("  GID {} at index {}\n", facts.gid, facts.gid_index);
    }
    text += fmt::format("  GUID {}, firmware {}\n", guid_text(facts.guid),
                        facts.firmware.empty() ? "unknown" : facts.firmware);
    text += fmt::format(
        "  at most {} queue pairs of {} work requests with {} pieces, {} entries per "
        "completion queue, {}\n",
        facts.max_queue_pairs, facts.max_work_requests, facts.max_sge, facts.max_completion_entries,
        facts.max_region_size == std::numeric_limits<std::uint64_t>::max()
            ? std::string{"regions of any size"}
            : fmt::format("{} bytes per region", facts.max_region_size));
    return text;
}

int show(const JsonOutput& json) {
    json.check();
    const auto entries = ask_all();
    if (!json.in_place_of_lines()) {
        for (const auto& entry : entries) print_wrapped(text_of(entry), 4);
    }
    if (json.wanted()) {
        auto list = nlohmann::ordered_json::array();
        for (const auto& entry : entries) list.push_back(as_json(entry));
        json.write(list.dump(2));
    }
    const bool usable = std::any_of(entries.begin(), entries.end(),
                                    [](const Entry& entry) { return entry.trouble.empty(); });
    if (usable) return 0;
    std::fprintf(stderr, "millrace: %s\n",
                 entries.empty() ? "there is no verbs device"
                                 : "no device can be opened: the reason is given with each");
    return 1;
}

}  // namespace

void add_devices(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "devices", "List the verbs devices of this machine; status 0 if one of them can be opened");
    auto json = std::make_shared<JsonOutput>();
    add_json(*command, *json);
    command->callback([json, &chosen] { chosen = [json] { return show(*json); }; });
}

}  // namespace millrace::tools
