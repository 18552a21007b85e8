// Measurements as a table and as JSON.
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>

#include <sys/utsname.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "pair.hpp"

namespace millrace::bench {

std::string humane(double value) {
    const double size = std::abs(value);
    if (size >= 1e9) return fmt::format("{:.4g} G", value / 1e9);
    if (size >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
    if (size >= 100) return fmt::format("{:.0f}", value);
    return fmt::format("{:.3g}", value);
}

std::string table_of(const Results& results) {
    std::size_t width = 0;
    for (const auto& contender : results.contenders()) {
        width = std::max(width, contender.name.size());
    }
    std::string text;
    for (const auto& contender : results.contenders()) {
        const Summary summary = results.summary(contender.name);
        text += fmt::format("{:<{}}  {:>9} {:<8} {:>9} to {}\n", contender.name, width,
                            humane(summary.median), contender.unit, humane(summary.low),
                            humane(summary.high));
    }
    const Summary line = results.cache_line();
    text += fmt::format(
        "median of {} rounds and its quartiles; {} rounds discarded; cache line "
        "{} ns ({} to {})\n",
        line.rounds, line.discarded, humane(line.median), humane(line.least), humane(line.most));
    return text;
}

nlohmann::json json_of(const Summary& summary) {
    return {{"median", summary.median},      {"low", summary.low},   {"high", summary.high},
            {"least", summary.least},        {"most", summary.most}, {"rounds", summary.rounds},
            {"discarded", summary.discarded}};
}

nlohmann::json json_of(const Results& results) {
    nlohmann::json document;
    document["cache_line_ns"] = json_of(results.cache_line());
    document["discarded"] = results.discarded();
    auto& list = document["measurements"] = nlohmann::json::array();
    for (const auto& contender : results.contenders()) {
        auto entry = json_of(results.summary(contender.name));
        entry["name"] = contender.name;
        entry["unit"] = contender.unit;
        entry["values"] = results.values(contender.name);
        list.push_back(std::move(entry));
    }
    return document;
}

nlohmann::json describe_machine() {
    utsname system{};
    ::uname(&system);
    nlohmann::json machine{
        {"measured", measured_where},
        {"date", fmt::format("{:%F}", fmt::gmtime(std::time(nullptr)))},
        {"placement", base::describe_placement()},
        {"kernel", fmt::format("{} {}", system.sysname, system.release)},
        {"architecture", system.machine},
        {"compiler", __VERSION__},
        {"clock", base::Clock::uses_processor_counter() ? "processor counter" : "system clock"},
    };
    try {
        const Cores cores = two_cores();
        machine["cores"] = {cores.first, cores.second};
    } catch (const base::Error&) {
        machine["cores"] = nullptr;  // a single one: pairs cannot be measured
    }
    return machine;
}

}  // namespace millrace::bench
