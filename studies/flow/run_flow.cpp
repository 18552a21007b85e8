// See run_flow.hpp: what is measured, in which order, and how long it still takes.
#include "run_flow.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/flow/measure_flow.hpp"
#include "bench/flow/queue_ends.hpp"
#include "bench/framework/report.hpp"
#include "figures.hpp"
#include "flow_report.hpp"
#include "measure_uncredited.hpp"
#include "measurements.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "studies/framework/kept_points.hpp"
#include "studies/framework/plots.hpp"
#include "studies/framework/progress.hpp"

namespace millrace::bench {
namespace {

constexpr std::array<std::size_t, 3> quick_sizes{64, 4096, 16384};
constexpr double quick_limit = 0.05;
constexpr std::uint64_t quick_items = 20'000;
/// Of a run besides what it measures: processes, rings, warming up.
constexpr double about_setup = 0.15;

bool is_quick(std::size_t size) {
    return std::find(quick_sizes.begin(), quick_sizes.end(), size) != quick_sizes.end();
}

std::vector<std::string> modes_of(const FlowOptions& options, bool forty) {
    if (!options.modes.empty()) return options.modes;
    return {forty ? forty_gigabits : ten_gigabits, "fast"};
}

void check(const FlowOptions& options) {
    const auto refuse = [](std::string what, const char* why, const char* remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "measure flow queues", std::move(what),
                          why, remedy};
    };
    for (const std::string& mode : options.modes) static_cast<void>(soft::cable_facts(mode));
    if (options.repeats < 1 || options.repeats > 100) {
        refuse(fmt::format("{} repeats", options.repeats), "it is out of range", "choose 1 to 100");
    }
    if (!(options.limit >= 0.01 && options.limit <= 600)) {
        refuse(fmt::format("{} s for each run", options.limit), "it is out of range",
               "choose 0.01 to 600");
    }
    if (options.items < 100 || options.items > (std::uint64_t{1} << 31)) {
        refuse(fmt::format("{} items", options.items), "it is out of range", "choose 100 to 2^31");
    }
}

bool wants(const FlowOptions& options, std::string_view id) {
    if (options.figures.empty()) return true;
    return std::any_of(
        options.figures.begin(), options.figures.end(), [&](const std::string& asked) {
            return id == "map" ? asked == "map" : asked != "map" && figure_of(asked).id == id;
        });
}

void measure(const FlowJob& job, const FlowOptions& options, Point& point) {
    const Contestant contestant = contestant_of(job.contestant);
    FlowCase chosen;
    chosen.design = contestant.design;
    chosen.item_bytes = job.item_bytes;
    chosen.receive_pool = contestant.receive_pool;
    chosen.credit_parts = contestant.credit_parts;
    chosen.completions = contestant.completions;
    chosen.mode = job.mode;
    chosen.items = options.quick ? std::min(options.items, quick_items) : options.items;
    chosen.limit = std::chrono::nanoseconds{static_cast<std::int64_t>(
        (options.quick ? std::min(options.limit, quick_limit) : options.limit) *
        (job.transfer ? 0.3 : 1) * 1e9)};
    switch (contestant.kind) {
        case ContestantKind::queue:
            if (job.transfer) {
                point.transfers_ns.push_back(measure_transfer(chosen));
            } else {
                point.streams.push_back(measure_stream(chosen));
            }
            break;
        case ContestantKind::socket:
            if (job.transfer) {
                point.transfers_ns.push_back(measure_socket_transfer(chosen));
            } else {
                point.streams.push_back(measure_socket_stream(chosen));
            }
            break;
        case ContestantKind::raw_write:
            point.transfers_ns.push_back(measure_raw_write(chosen));
            break;
        case ContestantKind::uncredited:
            point.streams.push_back(measure_uncredited(chosen, Uncredited::reliable));
            break;
        case ContestantKind::datagrams:
            point.streams.push_back(measure_uncredited(chosen, Uncredited::datagrams));
            break;
    }
}

Progress progress_over(const std::vector<FlowJob>& jobs, const FlowOptions& options) {
    const double limit = options.quick ? quick_limit : options.limit;
    std::vector<double> costs;
    costs.reserve(jobs.size());
    for (const FlowJob& job : jobs) {
        costs.push_back(job.repeats * ((job.transfer ? 0.3 : 1) * limit + about_setup));
    }
    return Progress{std::move(costs)};
}

/// What has been found of a job, for a user that looks on.
std::string found_of(const FlowJob& job, const Point& point) {
    const Quantity quantity = job.transfer ? Quantity::transfer_us : Quantity::items;
    const auto summary = point.summary(quantity);
    return summary ? fmt::format("{} {}", humane(summary->median), unit_of(quantity)) : "-";
}

std::string words_for(const FlowJob& job) {
    return fmt::format("{}, {} B, {}{}", job.contestant, job.item_bytes, job.mode,
                       job.transfer ? ", to and fro" : "");
}

KeptPoints points_of(const FlowOptions& options) {
    return KeptPoints{{.study = "flow",
                       .path = options.points,
                       .settings = {{"study", "flow"},
                                    {"repeats", options.quick ? 1 : options.repeats},
                                    {"quick", options.quick},
                                    {"limit", options.limit},
                                    {"items", options.items},
                                    {"compiler", describe_machine()["compiler"]},
                                    {"machine", machine_of_points()}},
                       .resumes = options.resume}};
}

void keep(KeptPoints& kept, const FlowJob& job, const Point& point) {
    if (!point.failures.empty()) return;
    nlohmann::json values = nlohmann::json::array();
    if (job.transfer) {
        values = point.transfers_ns;
    } else {
        for (const StreamResult& run : point.streams) values.push_back(json_of(run));
    }
    kept.add(words_for(job), values);
}

/// Fills in what an interrupted run has measured of them; the others are left to do.
std::vector<FlowJob> left_to_do(std::vector<FlowJob> jobs, const KeptPoints& kept,
                                Measurements& measurements) {
    std::erase_if(jobs, [&](const FlowJob& job) {
        const nlohmann::json* const values = kept.find(words_for(job));
        if (values == nullptr) return false;
        Point& point = measurements.at(job.mode, job.contestant, job.item_bytes);
        for (const nlohmann::json& run : *values) {
            if (job.transfer) {
                point.transfers_ns.push_back(run.get<double>());
            } else {
                point.streams.push_back(stream_of(run));
            }
        }
        return true;
    });
    return jobs;
}

}  // namespace

std::vector<FlowJob> plan(const FlowOptions& options) {
    check(options);
    for (const std::string& asked : options.figures) {
        if (asked != "map") static_cast<void>(figure_of(asked));
    }
    std::vector<FlowJob> jobs;
    const int repeats = options.quick ? 1 : options.repeats;
    const auto add = [&](FlowJob job) {
        const auto same = std::find_if(jobs.begin(), jobs.end(), [&](const FlowJob& other) {
            return other.mode == job.mode && other.contestant == job.contestant &&
                   other.item_bytes == job.item_bytes && other.transfer == job.transfer;
        });
        if (same == jobs.end()) jobs.push_back(std::move(job));
    };
    for (const Figure& figure : all_figures()) {
        if (!wants(options, figure.id)) continue;
        for (const std::string& mode : modes_of(options, figure.forty)) {
            for (const std::size_t size : sizes_of(figure)) {
                if (options.quick && !is_quick(size)) continue;
                for (const Series& series : figure.series) {
                    add({mode, std::string{series.contestant}, size,
                         figure.quantity == Quantity::transfer_us, repeats});
                }
            }
        }
    }
    if (wants(options, "map")) {
        for (const std::string& mode : modes_of(options, false)) {
            for (const std::size_t size : map_sizes) {
                if (options.quick && size != quick_sizes.front()) continue;
                for (const ring::Design design : every_point()) {
                    for (const bool transfer : {false, true}) {
                        add({mode, "point/" + point_name(design), size, transfer,
                             std::max(1, repeats / 3)});
                    }
                }
            }
        }
    }
    std::stable_sort(jobs.begin(), jobs.end(), [](const FlowJob& a, const FlowJob& b) {
        return std::tie(a.mode, a.item_bytes, a.transfer) <
               std::tie(b.mode, b.item_bytes, b.transfer);
    });
    return jobs;
}

int run_flow(const FlowOptions& options) {
    options.json.check();
    check_plots("flow", options.plots);
    std::vector<FlowJob> planned = plan(options);
    KeptPoints kept = points_of(options);
    Measurements measurements;
    const std::vector<FlowJob> jobs = left_to_do(std::move(planned), kept, measurements);
    Progress progress = progress_over(jobs, options);
    const auto start = base::Clock::now();
    // Contestants of one size alternate, repeat by repeat, so that what the machine does meanwhile
    // hits all alike.
    for (std::size_t first = 0; first < jobs.size();) {
        std::size_t next = first;
        int repeats = 0;
        while (next < jobs.size() && jobs[next].mode == jobs[first].mode &&
               jobs[next].item_bytes == jobs[first].item_bytes &&
               jobs[next].transfer == jobs[first].transfer) {
            repeats = std::max(repeats, jobs[next].repeats);
            ++next;
        }
        for (int repeat = 0; repeat < repeats; ++repeat) {
            for (std::size_t i = first; i < next; ++i) {
                const FlowJob& job = jobs[i];
                if (repeat >= job.repeats) continue;
                if (repeat == 0) progress.before(i, words_for(job));
                Point& point = measurements.at(job.mode, job.contestant, job.item_bytes);
                try {
                    measure(job, options, point);
                } catch (const std::exception& error) {
                    point.failures.emplace_back(error.what());
                }
            }
        }
        for (std::size_t i = first; i < next; ++i) {
            const FlowJob& job = jobs[i];
            const Point& point = measurements.at(job.mode, job.contestant, job.item_bytes);
            keep(kept, job, point);
            progress.told(fmt::format("{}: {}", words_for(job), found_of(job, point)));
        }
        first = next;
    }
    progress.over();
    kept.over();
    FlowReport report;
    report.options = options;
    report.seconds = static_cast<double>((base::Clock::now() - start).count()) / 1e9;
    for (const Figure& figure : all_figures()) {
        if (wants(options, figure.id)) report.figures.push_back(&figure);
    }
    report.map = wants(options, "map");
    for (const bool forty : {false, true}) {
        for (std::string& mode : modes_of(options, forty)) {
            if (std::find(report.modes.begin(), report.modes.end(), mode) == report.modes.end()) {
                report.modes.push_back(std::move(mode));
            }
        }
    }
    std::sort(report.modes.begin(), report.modes.end());
    if (!options.json.in_place_of_lines()) print(report, measurements);
    write(report, measurements);
    return measurements.failures() == 0 ? 0 : 1;
}

}  // namespace millrace::bench
