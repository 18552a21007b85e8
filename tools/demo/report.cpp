#include "report.hpp"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command_line/output.hpp"

namespace millrace::tools::demo {
namespace {

using Figure = std::function<double(const RunResult&)>;

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double median_of(const Measured& measured, const Figure& figure) {
    std::vector<double> values;
    for (const RunResult& round : measured.rounds) values.push_back(figure(round));
    return median(std::move(values));
}

const Measured& find(const std::vector<Measured>& measured, const std::string& key) {
    return *std::find_if(measured.begin(), measured.end(),
                         [&](const Measured& one) { return one.key == key; });
}

/// Ratios are taken round by round: both contenders then saw the same mood of the machine.
double ratio_of(const Measured& one, const Measured& base, const Figure& figure) {
    std::vector<double> ratios;
    const std::size_t rounds = std::min(one.rounds.size(), base.rounds.size());
    for (std::size_t i = 0; i < rounds; ++i) {
        ratios.push_back(figure(one.rounds[i]) / figure(base.rounds[i]));
    }
    return median(std::move(ratios));
}

std::string bar(double share, unsigned width) {
    static constexpr const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const auto units = static_cast<unsigned>(std::clamp(share, 0.0, 1.0) * width * 8 + 0.5);
    std::string text;
    for (unsigned i = 0; i < units / 8; ++i) text += "█";
    text += eighths[units % 8];
    return text.empty() ? "▏" : text;
}

std::string chart_of(const std::vector<Measured>& measured, unsigned width, std::string_view title,
                     const Figure& figure, std::string_view format) {
    double most = 0;
    for (const Measured& one : measured) most = std::max(most, median_of(one, figure));
    std::string text = fmt::format("{}\n", title);
    for (const Measured& one : measured) {
        const double value = median_of(one, figure);
        text += fmt::format("  {:<26} {} {}\n", one.title, bar(most > 0 ? value / most : 0, width),
                            fmt::format(fmt::runtime(format), value));
    }
    return text;
}

const Figure items_per_second = [](const RunResult& r) { return r.items_per_second(); };
const Figure latency_median = [](const RunResult& r) { return r.latency_median_us; };

}  // namespace

std::string table(const std::vector<Measured>& measured, const std::string& base_key) {
    const Measured& base = find(measured, base_key);
    Table figures{""};
    for (const char* const heading : {"items/s", "ratio", "MB/s", "latency µs\nmedian", "\np99",
                                      "CPU s", "work req.\nper item", "sys. calls\nper item"}) {
        figures.add_column(heading);
    }
    for (const Measured& one : measured) {
        const auto figure = [&](auto member) {
            return median_of(one, [member](const RunResult& r) { return r.*member; });
        };
        figures.add_row({one.title, fmt::format("{:.0f}", median_of(one, items_per_second)),
                         fmt::format("{:.1f}x", ratio_of(one, base, items_per_second)),
                         fmt::format("{:.0f}", median_of(one,
                                                         [](const RunResult& r) {
                                                             return r.megabytes_per_second();
                                                         })),
                         fmt::format("{:.2f}", figure(&RunResult::latency_median_us)),
                         fmt::format("{:.2f}", figure(&RunResult::latency_p99_us)),
                         fmt::format("{:.2f}", figure(&RunResult::cpu_seconds)),
                         fmt::format("{:.3f}", figure(&RunResult::work_requests_per_item)),
                         fmt::format("{:.4f}", figure(&RunResult::system_calls_per_item))});
    }
    return figures.text() +
           wrapped(
               fmt::format("Medians of {} rounds; the ratio is against the {}, round by round.\n",
                           base.rounds.size(), base.title),
               0);
}

std::string chart(const std::vector<Measured>& measured) {
    constexpr std::size_t beside = 2 + 26 + 1 + 1 + 10;  // what stands around a bar
    const std::size_t width = output_width();
    const auto bars =
        static_cast<unsigned>(std::clamp<std::size_t>(width > beside ? width - beside : 0, 4, 40));
    return chart_of(measured, bars, "items per second (longer is better)", items_per_second,
                    "{:.0f}") +
           "\n" +
           chart_of(measured, bars, "median latency of one item, µs (shorter is better)",
                    latency_median, "{:.2f}");
}

std::string meaning(const Setting& setting) {
    constexpr std::size_t indent = 11;
    // Longer lines are hard to read.
    const std::size_t width = std::min<std::size_t>(output_width(), 100);
    return wrapped(fmt::format("device     {}\n"
                               "placement  {}\n"
                               "data       {}\n"
                               "records    at most {} bytes; rings and socket buffers of {} KiB a "
                               "side\n",
                               setting.device, setting.placement, setting.source,
                               setting.record_size, setting.ring_bytes / 1024),
                   indent) +
           "\n" +
           wrapped(
               fmt::format(
                   "What this shows: what moving real records between {} costs "
                   "through Millrace and through the kernel's sockets, with every record checked "
                   "(length, order, hash).\n"
                   "What it does not: {}, and nothing here predicts a NIC. ",
                   setting.hosts ? "two processes, each on a host of its own,"
                                 : "two processes of this host",
                   setting.hosts
                       ? "the two hosts are one machine, and no cable of copper or glass is "
                         "involved (docs/wire.md)"
                       : "on the soft device no network is involved") +
                   "CPU seconds are those of both processes while the records moved; a "
                   "side that waits for the other polls first and sleeps later. Latency is one "
                   "64-byte "
                   "item into an empty queue, on one clock.\n",
               0, width);
}

nlohmann::json as_json(const std::vector<Measured>& measured, const Setting& setting,
                       const std::string& base_key) {
    const Measured& base = find(measured, base_key);
    nlohmann::json json{{"device", setting.device},         {"placement", setting.placement},
                        {"source", setting.source},         {"record_size", setting.record_size},
                        {"ring_bytes", setting.ring_bytes}, {"ratio_against", base_key}};
    for (const Measured& one : measured) {
        nlohmann::json rounds = nlohmann::json::array();
        for (const RunResult& r : one.rounds) {
            rounds.push_back({{"seconds", r.seconds},
                              {"items", r.items},
                              {"bytes", r.bytes},
                              {"items_per_second", r.items_per_second()},
                              {"megabytes_per_second", r.megabytes_per_second()},
                              {"cpu_seconds", r.cpu_seconds},
                              {"work_requests_per_item", r.work_requests_per_item},
                              {"system_calls_per_item", r.system_calls_per_item},
                              {"latency_median_us", r.latency_median_us},
                              {"latency_p99_us", r.latency_p99_us}});
        }
        json["transports"].push_back(
            {{"key", one.key},
             {"title", one.title},
             {"baseline", one.baseline},
             {"items_per_second_ratio", ratio_of(one, base, items_per_second)},
             {"latency_median_ratio", ratio_of(one, base, latency_median)},
             {"rounds", rounds}});
    }
    return json;
}

}  // namespace millrace::tools::demo
