// See flow_report.hpp.
#include "flow_report.hpp"

#include <cstdio>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/flow/queue_ends.hpp"
#include "bench/framework/report.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "studies/framework/plots.hpp"
#include "thesis.hpp"

namespace millrace::bench {
namespace {

View view_of(const Measurements& measurements, const std::string& mode) {
    const auto facts = soft::cable_facts(mode);
    return {measurements, mode,
            facts.shaped ? static_cast<double>(facts.bits_per_second) / 1e6 : 0};
}

std::string size_name(std::size_t bytes) {
    return bytes >= 1024 ? fmt::format("{} KiB", bytes / 1024) : fmt::format("{} B", bytes);
}

bool measured_in(const Figure& figure, const Measurements& measurements, const std::string& mode) {
    for (const std::size_t size : sizes_of(figure)) {
        for (const Series& series : figure.series) {
            if (measurements.median(mode, series.contestant, size, figure.quantity)) return true;
        }
    }
    return false;
}

/// A cell "4.56", or with the work's number, too: "4.56 (5.1)".
std::string cell(const Figure& figure, const Series& series, std::size_t size,
                 const Measurements& measurements, const std::string& mode) {
    const auto value = measurements.median(mode, series.contestant, size, figure.quantity);
    if (!value) return "-";
    std::string text = humane(*value);
    if (figure.spread) {
        const Summary runs =
            *measurements.find(mode, series.contestant, size)->summary(figure.quantity);
        text += fmt::format(" [{} to {}]", humane(runs.least), humane(runs.most));
    }
    if (const auto theirs = printed(figure.id, series.label, size)) {
        text += fmt::format(" ({}{})", humane(*theirs),
                            agrees_with_printed(*value, *theirs) ? " agrees" : "");
    }
    return text;
}

void print_figure(const Figure& figure, const Measurements& measurements, const std::string& mode) {
    const bool table =
        printed(figure.id, figure.series.front().label, sizes_of(figure).back()).has_value();
    const int width = table || figure.spread ? 24 : 12;
    fmt::print("\n{}{}. {}, {}; {}{}\n", table ? "" : "Figure ", figure.id, figure.title,
               unit_of(figure.quantity), mode,
               table           ? "; in brackets what the work prints, `agrees`: within a quarter"
               : figure.spread ? "; in brackets the least and the most of the runs"
                               : "");
    fmt::print("{:>10}", "");
    for (const Series& series : figure.series) fmt::print("  {:>{}}", series.label, width);
    fmt::print("\n");
    for (const std::size_t size : sizes_of(figure)) {
        bool any = false;
        for (const Series& series : figure.series) {
            any = any || measurements.find(mode, series.contestant, size) != nullptr;
        }
        if (!any) continue;
        fmt::print("{:>10}", size_name(size));
        for (const Series& series : figure.series) {
            fmt::print("  {:>{}}", cell(figure, series, size, measurements, mode), width);
        }
        fmt::print("\n");
    }
}

struct Judged {
    const Finding* finding;
    StudyVerdict verdict;
};
std::vector<Judged> judged_in(const FlowReport& report, const View& view) {
    std::vector<Judged> list;
    for (const Finding& finding : all_findings()) {
        bool shown = false;
        for (const Figure* figure : report.figures) shown = shown || figure->id == finding.figure;
        if (!shown) continue;
        if (auto verdict = finding.judge(view)) list.push_back({&finding, std::move(*verdict)});
    }
    return list;
}

void print_findings(const FlowReport& report, const View& view) {
    auto list = judged_in(report, view);
    if (list.empty()) return;
    put_disagreements_first(list);
    fmt::print("\nWhat the work found, and we; {}\n", view.mode);
    for (const Judged& judged : list) {
        fmt::print("  {:<8} {:<5} {}\n           {}; measured {}\n", name_of(judged.verdict),
                   judged.finding->section, judged.finding->claim, judged.finding->rule,
                   judged.verdict.measured);
        const std::string explanation = explanation_of(judged.verdict);
        if (!explanation.empty()) fmt::print("           {}\n", explanation);
    }
}

constexpr Quantity mapped[] = {Quantity::items, Quantity::transfer_us, Quantity::requests};
constexpr std::string_view title_of(Quantity quantity) {
    switch (quantity) {
        case Quantity::items: return "items per second";
        case Quantity::transfer_us: return "transfer time, us";
        default: return "requests per item";
    }
}

void print_map(const Measurements& measurements, const std::string& mode) {
    for (const Quantity quantity : mapped) {
        fmt::print("\nAll points: {}; {}\n{:<24}", title_of(quantity), mode, "");
        for (const std::size_t size : map_sizes) fmt::print("  {:>11}", size_name(size));
        fmt::print("\n");
        for (const ring::Design design : every_point()) {
            const std::string name = point_name(design);
            fmt::print("{:<24}", name);
            for (const std::size_t size : map_sizes) {
                const auto value = measurements.median(mode, "point/" + name, size, quantity);
                if (!value) {
                    fmt::print("  {:>11}", "-");
                    continue;
                }
                // Where it stands between the best of this size and the worst.
                double best = *value;
                double worst = *value;
                for (const ring::Design other : every_point()) {
                    const auto theirs =
                        measurements.median(mode, "point/" + point_name(other), size, quantity);
                    if (!theirs) continue;
                    const bool better =
                        quantity == Quantity::items ? *theirs > best : *theirs < best;
                    if (better) best = *theirs;
                    if (quantity == Quantity::items ? *theirs < worst : *theirs > worst) {
                        worst = *theirs;
                    }
                }
                const double place =
                    best == worst ? 1 : (*value - worst) / (best - worst);  // 1: the best
                constexpr std::string_view shades[] = {" ", "░", "▒", "▓", "█"};
                fmt::print("  {:>9} {}", humane(*value),
                           shades[static_cast<std::size_t>(place * 4.999)]);
            }
            fmt::print("\n");
        }
    }
}

void print_failures(const nlohmann::json& points) {
    for (const auto& point : points) {
        if (!point.contains("failures")) continue;
        fmt::print("not measured: {}, {} B, {}: {}\n", point["contestant"].get<std::string>(),
                   point["item_bytes"].get<std::size_t>(), point["mode"].get<std::string>(),
                   point["failures"].front().get<std::string>());
    }
}

}  // namespace

void print(const FlowReport& report, const Measurements& measurements) {
    fmt::print("{}\n{}; load {}; {} runs of each point, at most {} items or {} s each\n",
               measured_where, base::describe_placement(), load_average(),
               report.options.quick ? 1 : report.options.repeats, report.options.items,
               report.options.limit);
    for (const std::string& mode : report.modes) {
        for (const Figure* figure : report.figures) {
            if (measured_in(*figure, measurements, mode)) {
                print_figure(*figure, measurements, mode);
            }
        }
        print_findings(report, view_of(measurements, mode));
        if (report.map &&
            measurements.find(mode, "point/" + point_name(every_point().front()), 64) != nullptr) {
            print_map(measurements, mode);
        }
    }
    fmt::print("\n");
    print_failures(measurements.json());
    fmt::print("measured in {:.0f} s\n", report.seconds);
}

nlohmann::json document_of(const FlowReport& report, const Measurements& measurements) {
    nlohmann::json document{{"study", "flow"},
                            {"machine", describe_machine()},
                            {"load", load_average()},
                            {"seconds", report.seconds},
                            {"repeats", report.options.quick ? 1 : report.options.repeats},
                            {"items", report.options.items},
                            {"limit_seconds", report.options.limit},
                            {"quick", report.options.quick},
                            {"points", measurements.json()},
                            {"figures", nlohmann::json::array()},
                            {"findings", nlohmann::json::array()},
                            {"maps", nlohmann::json::array()}};
    for (const std::string& mode : report.modes) {
        for (const Figure* figure : report.figures) {
            if (!measured_in(*figure, measurements, mode)) continue;
            nlohmann::json entry{{"id", figure->id},
                                 {"title", figure->title},
                                 {"mode", mode},
                                 {"quantity", key_of(figure->quantity)},
                                 {"unit", unit_of(figure->quantity)},
                                 {"series", nlohmann::json::array()}};
            for (const Series& series : figure->series) {
                nlohmann::json line{{"label", series.label},
                                    {"contestant", series.contestant},
                                    {"points", nlohmann::json::array()}};
                for (const std::size_t size : sizes_of(*figure)) {
                    const Point* point = measurements.find(mode, series.contestant, size);
                    const auto summary =
                        point == nullptr ? std::nullopt : point->summary(figure->quantity);
                    if (!summary) continue;
                    nlohmann::json value{{"item_bytes", size},
                                         {"median", summary->median},
                                         {"least", summary->least},
                                         {"most", summary->most}};
                    if (const auto theirs = printed(figure->id, series.label, size)) {
                        value["printed"] = *theirs;
                        value["agrees"] = agrees_with_printed(summary->median, *theirs);
                    }
                    line["points"].push_back(std::move(value));
                }
                entry["series"].push_back(std::move(line));
            }
            document["figures"].push_back(std::move(entry));
        }
        const View view = view_of(measurements, mode);
        for (const Judged& judged : judged_in(report, view)) {
            nlohmann::json entry{{"mode", mode},
                                 {"section", judged.finding->section},
                                 {"figure", judged.finding->figure},
                                 {"claim", judged.finding->claim},
                                 {"rule", judged.finding->rule},
                                 {"measured", judged.verdict.measured},
                                 {"verdict", name_of(judged.verdict)}};
            if (!judged.verdict.agrees && !judged.verdict.counted.empty()) {
                entry["counted"] = judged.verdict.counted;
            }
            document["findings"].push_back(std::move(entry));
        }
        if (!report.map) continue;
        for (const Quantity quantity : mapped) {
            nlohmann::json rows = nlohmann::json::array();
            for (const ring::Design design : every_point()) {
                nlohmann::json values = nlohmann::json::object();
                for (const std::size_t size : map_sizes) {
                    if (const auto value = measurements.median(mode, "point/" + point_name(design),
                                                               size, quantity)) {
                        values[std::to_string(size)] = *value;
                    }
                }
                if (!values.empty()) {
                    rows.push_back({{"design", point_name(design)}, {"values", values}});
                }
            }
            if (rows.empty()) continue;
            document["maps"].push_back({{"mode", mode},
                                        {"quantity", key_of(quantity)},
                                        {"title", title_of(quantity)},
                                        {"rows", rows}});
        }
    }
    return document;
}

void write(const FlowReport& report, const Measurements& measurements) {
    write_document(document_of(report, measurements), report.options.json, report.options.plots);
}

}  // namespace millrace::bench
