// See doctor.hpp.
#include "doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "command_line/json_output.hpp"
#include "command_line/output.hpp"
#include "doctor/checks.hpp"

namespace millrace::tools {
namespace {

using doctor::Finding;
using doctor::Verdict;

std::string_view name_of(Verdict verdict) noexcept {
    return verdict == Verdict::ok ? "ok" : verdict == Verdict::warn ? "warn" : "fail";
}

int examine(const JsonOutput& json) {
    json.check();
    std::vector<Finding> findings = doctor::check_devices();
    for (auto* check : {&doctor::check_wire, &doctor::check_limits, &doctor::check_processes}) {
        for (Finding& finding : check()) findings.push_back(std::move(finding));
    }
    const auto count = [&](Verdict verdict) {
        return std::count_if(findings.begin(), findings.end(),
                             [&](const Finding& one) { return one.verdict == verdict; });
    };
    const auto failed = count(Verdict::fail);
    if (!json.in_place_of_lines()) {
        constexpr std::size_t indent = 25;
        for (const Finding& one : findings) {
            std::string text =
                fmt::format("{:<5} {:<18} {}\n", name_of(one.verdict), one.name, one.found);
            if (!one.means.empty()) text += fmt::format("{:24} {}\n", "", one.means);
            if (!one.remedy.empty()) text += fmt::format("{:24} to do: {}\n", "", one.remedy);
            print_wrapped(text, indent);
        }
        fmt::print("{} ok, {} to know, {} failed\n", count(Verdict::ok), count(Verdict::warn),
                   failed);
    }
    if (json.wanted()) {
        auto list = nlohmann::ordered_json::array();
        for (const Finding& one : findings) {
            list.push_back({{"check", one.name},
                            {"verdict", name_of(one.verdict)},
                            {"found", one.found},
                            {"means", one.means},
                            {"remedy", one.remedy}});
        }
        json.write(list.dump(2));
    }
    return failed == 0 ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand(
        "doctor",
        "Look for settings of this machine that hinder RDMA programs; status 0 if none "
        "makes them fail");
    auto json = std::make_shared<JsonOutput>();
    add_json(*command, *json);
    command->callback([json, &chosen] { chosen = [json] { return examine(*json); }; });
}

}  // namespace millrace::tools
