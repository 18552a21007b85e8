#include "run_link.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/framework/report.hpp"
#include "measure_link.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/soft/cable_facts.hpp"

namespace millrace::bench {
namespace {

constexpr double allowed = 5.0;  ///< percent
constexpr std::int64_t judged_above_ns = 10'000;

struct Line {
    std::string mode;
    std::string what;
    std::string unit;
    double set;
    Summary measured;
    bool judged;  ///< the setting's latency is large enough

    [[nodiscard]] double error() const { return (measured.median - set) / set * 100; }
    [[nodiscard]] bool holds() const { return !judged || std::abs(error()) <= allowed; }
};

[[nodiscard]] Line one_way(const std::string& mode, std::size_t bytes, Mover mover, bool brief) {
    const auto facts = soft::cable_facts(mode);
    const double seconds = static_cast<double>(facts.latency_ns) * 2e-9 + 20e-6;
    const auto count = static_cast<std::uint64_t>(
        std::clamp((brief ? 0.05 : 0.5) / seconds, 5.0, brief ? 200.0 : 2000.0));
    const OneWay result = measure_one_way(mode, bytes, mover, count);
    return {mode,
            fmt::format("one way, {} B, {}", bytes,
                        mover == Mover::ends ? "both poll" : "nobody calls verbs"),
            "us",
            result.set,
            result.us,
            mover == Mover::ends && facts.latency_ns > judged_above_ns};
}

[[nodiscard]] Line bandwidth(const std::string& mode, std::size_t bytes, bool brief) {
    const auto facts = soft::cable_facts(mode);
    const auto total = static_cast<std::uint64_t>(static_cast<double>(facts.bits_per_second) / 8 *
                                                  (brief ? 0.02 : 0.1));
    const Bandwidth result =
        measure_bandwidth(mode, bytes, std::max<std::uint64_t>(total, 4 * bytes), brief ? 1 : 5);
    return {mode,
            fmt::format("bandwidth, {} B", bytes),
            "Gb/s",
            result.set,
            result.gigabits,
            facts.latency_ns > judged_above_ns};
}

void print(const Line& line) {
    fmt::print("{:<28} {:<36} {:>9} {:>10} {:<5} {:>+7.1f} %  ({} to {}) {}\n", line.mode,
               line.what, humane(line.set), humane(line.measured.median), line.unit, line.error(),
               humane(line.measured.low), humane(line.measured.high),
               !line.judged ? "" : (line.holds() ? "ok" : "OFF"));
    std::fflush(stdout);
}

}  // namespace

int run_link(const LinkOptions& options) {
    std::vector<std::string> latencies{options.mode};
    std::vector<std::string> rates{options.mode};
    if (options.mode.empty()) {
        latencies = {"shaped:10g,latency=1us",  "shaped:10g,latency=5us",
                     "shaped:10g,latency=10us", "shaped:10g,latency=20us",
                     "shaped:10g,latency=50us", "shaped:10g,latency=1ms",
                     "shaped:10g,latency=24ms"};
        rates = {"shaped:1g,latency=20us", "shaped:10g,latency=20us", "shaped:40g,latency=20us",
                 "shaped:10g,latency=24ms"};
        if (options.brief) {
            latencies = {"shaped:10g,latency=1us", "shaped:10g,latency=50us"};
            rates = {"shaped:10g,latency=20us"};
        }
    }
    options.json.check();
    const bool table = !options.json.in_place_of_lines();
    if (table) {
        fmt::print("{}\n{}\n{:<28} {:<36} {:>9} {:>10}       {:>7}\n", measured_where,
                   base::describe_placement(), "mode", "what", "set", "measured", "error");
    }
    std::vector<Line> lines;
    const auto add = [&](Line line) {
        if (table) print(line);
        lines.push_back(std::move(line));
    };
    for (const auto& mode : latencies) {
        add(one_way(mode, 8, Mover::ends, options.brief));
        add(one_way(mode, 4096, Mover::ends, options.brief));
        add(one_way(mode, 8, Mover::engine, options.brief));
    }
    for (const auto& mode : rates) {
        if (soft::cable_facts(mode).bits_per_second == 0) continue;
        add(bandwidth(mode, 4096, options.brief));
        add(bandwidth(mode, 65536, options.brief));
    }
    const bool all =
        std::all_of(lines.begin(), lines.end(), [](const Line& l) { return l.holds(); });
    if (options.json.wanted()) {
        nlohmann::json measurements = nlohmann::json::array();
        for (const Line& line : lines) {
            measurements.push_back({{"mode", line.mode},
                                    {"what", line.what},
                                    {"unit", line.unit},
                                    {"set", line.set},
                                    {"measured", json_of(line.measured)},
                                    {"error_percent", line.error()},
                                    {"judged", line.judged},
                                    {"holds", line.holds()}});
        }
        const nlohmann::json document{{"measurements", measurements},
                                      {"machine", describe_machine()}};
        options.json.write(document.dump(2));
    }
    return all ? 0 : 1;
}

}  // namespace millrace::bench
