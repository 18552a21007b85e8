#include "run_kv.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/kv/measure_crowd.hpp"
#include "beyond_figures.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/transfer.hpp"
#include "studies/framework/study_runs.hpp"

namespace millrace::bench {
namespace {

/// Clients of a figure; the work had 1 to 70, and 32 processors for them.
const std::vector<std::size_t> crowds{1, 2, 4, 8, 16, 32, 48, 60, 70};

using Runs = StudyRuns<CrowdResult>;

/// Those whose latencies the work shows one by one.
const std::vector<std::size_t> shown_crowds{5, 32, 60};

/// A way for requests to reach the store, as curves are called.
struct Way {
    std::string label;
    connect::Transport transport = connect::Transport::rc;
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
    bool is_shown = true;  ///< its latencies one by one, too
};
/// The work's four, which send and receive; what HERD does (the work's section 5.1), but over RC:
/// requests by WRITE, answers by SEND; and what this store does if it is not asked otherwise.
const std::vector<Way> ways{
    {"RC", connect::Transport::rc, message::Transfer::send, message::Transfer::send},
    {"UC", connect::Transport::uc},
    {"UD", connect::Transport::ud},
    {"TCP", connect::Transport::tcp},
    {"HERD", connect::Transport::rc, message::Transfer::write, message::Transfer::send, false},
    {"mailboxes", connect::Transport::rc},
};
const std::string kernel_alone = "TCP";

std::shared_ptr<Runs> runs_with(base::WaitPolicy wait, const Way& way, unsigned get_percent) {
    return std::make_shared<Runs>([=](const std::string& mode, std::size_t clients) {
        CrowdCase chosen;
        chosen.get_percent = get_percent;
        chosen.clients = static_cast<unsigned>(clients);
        chosen.mode = mode;
        chosen.wait = wait;
        chosen.transport = way.transport;
        chosen.requests = way.requests;
        chosen.answers = way.answers;
        return measure_crowd(chosen);
    });
}

/// Where a curve is best.
std::optional<StudyView::Key> best_of(const StudyView& view, const std::string& figure,
                                      const std::string& label) {
    std::optional<StudyView::Key> found;
    double most = 0;
    for (const std::size_t clients : crowds) {
        const auto value = view.get(figure, label, clients);
        if (!value || (found && *value <= most)) continue;
        found = {figure, label, clients};
        most = *value;
    }
    return found;
}

/// The runs of one point by those of another. Nothing, unless both are there.
std::optional<StudyVerdict> judge_points(const StudyView& view,
                                         const std::optional<StudyView::Key>& above,
                                         const std::optional<StudyView::Key>& below,
                                         Range allowed) {
    return above && below ? point_to_point(*above, *below, allowed)(view) : std::nullopt;
}

/// What is left of a curve's best with the largest crowd.
Judge left_of_best(std::string figure, std::string label, Range allowed) {
    return [=](const StudyView& view) {
        return judge_points(view, StudyView::Key{figure, label, crowds.back()},
                            best_of(view, figure, label), allowed);
    };
}

/// The best of one curve to the best of another.
Judge best_to_best(std::pair<std::string, std::string> above,
                   std::pair<std::string, std::string> below, Range allowed) {
    return [=](const StudyView& view) {
        return judge_points(view, best_of(view, above.first, above.second),
                            best_of(view, below.first, below.second), allowed);
    };
}

/// The work could not measure a way with the largest crowd. `seen`: what says that this was tried.
Judge cannot_be_measured(StudyView::Key point, StudyView::Key seen) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto has = [&view](const StudyView::Key& key) {
            return std::apply([&view](const auto&... of) { return view.get(of...); }, key)
                .has_value();
        };
        if (!has(seen)) return std::nullopt;
        return StudyVerdict{.agrees = !has(point),
                            .measured = has(point) ? "they are served" : "they are not"};
    };
}

/// Of a way's `default wait` to the better of the others, where it is worst.
Judge default_to_better(std::string label) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        std::optional<Summary> least;
        for (const std::size_t clients : crowds) {
            const auto polling = view.get("4.1", label, clients);
            const auto blocking = view.get("4.2", label, clients);
            if (!polling || !blocking) continue;
            const auto part = view.ratios({"default wait", label, clients},
                                          {*polling > *blocking ? "4.1" : "4.2", label, clients});
            if (part && (!least || part->median < least->median)) least = part;
        }
        return least ? std::optional{judge_value(*least, {0.9})} : std::nullopt;
    };
}

}  // namespace

Study kv_study(unsigned get_percent) {
    using Waits = std::vector<std::shared_ptr<Runs>>;  // by way
    const auto waits_with = [&](base::WaitPolicy wait) {
        Waits made;
        for (const Way& way : ways) made.push_back(runs_with(wait, way, get_percent));
        return made;
    };
    const Waits polling = waits_with(base::WaitPolicy::polling());
    const Waits blocking = waits_with(base::WaitPolicy::blocking());
    const Waits by_default = waits_with({});
    const auto memcached =
        std::make_shared<Runs>([=](const std::string& mode, std::size_t clients) {
            CrowdCase chosen;
            chosen.get_percent = get_percent;
            chosen.clients = static_cast<unsigned>(clients);
            chosen.mode = mode;
            return measure_memcached_crowd(chosen);
        });
    const auto figure = [](std::string id, std::string title, std::string quantity,
                           std::string unit) {
        return StudyFigure{std::move(id),
                           std::move(title),
                           std::move(quantity),
                           std::move(unit),
                           "clients",
                           crowds,
                           {}};
    };
    const auto of_all = [&](StudyFigure made, const Waits& waits, double CrowdResult::*value,
                            bool with_memcached = false) {
        for (std::size_t i = 0; i != ways.size(); ++i) {
            made.series.push_back(curve_of(ways[i].label, waits[i], value));
            // No link of ours is between the kernel's sockets.
            if (ways[i].label == kernel_alone) made.series.back().modes = {"fast"};
        }
        if (with_memcached) {
            made.series.push_back(curve_of("memcached", memcached, value));
            made.series.back().modes = {"fast"};
        }
        return made;
    };
    const auto of_waits = [&](StudyFigure made, double CrowdResult::*value) {
        made.series = {curve_of("polling", polling.back(), value),
                       curve_of("blocking", blocking.back(), value),
                       curve_of("default wait", by_default.back(), value)};
        return made;
    };
    Study study;
    study.name = "kv";
    study.work = "work 002, chapter 4,";
    study.modes = {"fast", "shaped:56g,latency=1us"};
    study.seconds_per_point = 0.2;
    const CrowdCase usual;
    study.setting = fmt::format(
        "{} keys of 16 B, values of {} B, {} % GETs; each client in a thread, all of "
        "them on one core, the server on another",
        usual.keys, usual.value_bytes, get_percent);
    study.figures = {
        of_all(
            figure("4.1", "Throughput, polling", "operations_per_second", "operations per second"),
            polling, &CrowdResult::operations_per_second, true),
        of_all(
            figure("4.2", "Throughput, blocking", "operations_per_second", "operations per second"),
            blocking, &CrowdResult::operations_per_second, true),
        of_all(
            figure("default wait", "Throughput, default wait: to look for a while, then to sleep",
                   "operations_per_second", "operations per second"),
            by_default, &CrowdResult::operations_per_second, true),
        of_all(figure("4.3", "Mean latency, polling", "mean_us", "us"), polling,
               &CrowdResult::mean_us),
        of_all(figure("4.6", "Mean latency, blocking", "mean_us", "us"), blocking,
               &CrowdResult::mean_us),
        of_all(
            figure("default wait p99", "99th percentile of latency, default wait", "p99_us", "us"),
            by_default, &CrowdResult::p99_us),
        of_waits(figure("waiting", "Throughput of mailboxes by how both ends wait",
                        "operations_per_second", "operations per second"),
                 &CrowdResult::operations_per_second),
        of_waits(figure("waiting p99", "99th percentile of latency of mailboxes by the same",
                        "p99_us", "us"),
                 &CrowdResult::p99_us),
        of_all(figure("fairness", "The client that was served least, to the mean", "least_to_mean",
                      "part of the mean"),
               polling, &CrowdResult::least_to_mean),
    };
    // Each in three parts, a to c, by the crowd.
    const auto of_shown = [&](const std::string& id, const std::string& title, StudyShape shape,
                              const std::vector<std::size_t>& thousandths, const Waits& waits) {
        for (std::size_t part = 0; part != shown_crowds.size(); ++part) {
            StudyFigure made{id + static_cast<char>('a' + part),
                             fmt::format("{}, {} clients", title, shown_crowds[part]),
                             "latency_us",
                             "us",
                             "thousandths of all",
                             thousandths,
                             {}};
            made.shape = shape;
            for (std::size_t i = 0; i != ways.size(); ++i) {
                if (!ways[i].is_shown) continue;
                made.series.push_back(curve_at(ways[i].label, waits[i], shown_crowds[part],
                                               &CrowdResult::quantile_us));
                if (ways[i].label == kernel_alone) made.series.back().modes = {"fast"};
            }
            study.figures.push_back(std::move(made));
        }
    };
    const auto in_numbers = [&](const std::string& id, const std::string& title,
                                const Waits& waits) {
        for (std::size_t i = 0; i != ways.size(); ++i) {
            if (!ways[i].is_shown) continue;
            StudyFigure made = figure(fmt::format("{} {}", id, ways[i].label), title, "us", "us");
            made.xs = shown_crowds;
            made.shape = StudyShape::table;
            if (ways[i].label == kernel_alone) made.modes = {"fast"};
            const auto column = [&](std::string label, auto quantity) {
                made.series.push_back({std::move(label), {}});
                auto runs = waits[i];
                auto asked = std::make_shared<std::map<std::string, std::size_t>>();
                made.series.back().measure = [=](const std::string& mode, std::size_t clients) {
                    const std::size_t index = (*asked)[fmt::format("{} {}", mode, clients)]++;
                    return quantity(runs->at(mode, clients, index));
                };
            };
            const auto quantile = [](std::size_t thousandths) {
                return
                    [thousandths](const CrowdResult& run) { return run.quantile_us(thousandths); };
            };
            column("median", quantile(500));
            column("interquartile", [](const CrowdResult& run) { return run.interquartile_us(); });
            column("95 %", quantile(950));
            column("99 %", quantile(990));
            column("deviation", [](const CrowdResult& run) { return run.deviation_us(); });
            study.figures.push_back(std::move(made));
        }
    };
    std::vector<std::size_t> parts{1, 10};
    for (std::size_t part = 25; part < 1000; part += 25) parts.push_back(part);
    parts.insert(parts.end(), {990, 995, 999});
    const std::vector<std::size_t> box{50, 250, 500, 750, 950};
    of_shown("4.4", "Latencies, polling", StudyShape::distribution, parts, polling);
    of_shown("4.5", "Latencies, polling", StudyShape::boxes, box, polling);
    in_numbers("table 4.1", "Latencies, polling", polling);
    of_shown("4.7", "Latencies, blocking", StudyShape::boxes, box, blocking);
    of_shown("4.8", "Latencies, blocking", StudyShape::distribution, parts, blocking);
    in_numbers("table 4.2", "Latencies, blocking", blocking);
    StudyFigure switching =
        of_all(figure("table 4.3", "Context switches per operation, blocking, and by UC polling",
                      "switches_per_operation", "switches"),
               blocking, &CrowdResult::switches);
    for (std::size_t i = 0; i != ways.size(); ++i) {
        if (ways[i].label != "UC") continue;
        switching.series.push_back(curve_of("UC polling", polling[i], &CrowdResult::switches));
    }
    switching.xs = shown_crowds;
    switching.shape = StudyShape::table;
    study.figures.push_back(std::move(switching));
    for (StudyFigure& one : figures_beyond_the_work(get_percent)) {
        study.figures.push_back(std::move(one));
    }
    study.findings = {
        {"4.1.1", "4.1", "UC serves 79 % more than TCP",
         "best of UC to best of TCP between 1.3 and 2.5",
         best_to_best({"4.1", "UC"}, {"4.1", "TCP"}, {1.3, 2.5})},
        {"4.1.1", "4.1", "UD serves nearly as much as UC: 73 % more than TCP",
         "best of UD to best of UC between 0.8 and 1.1",
         best_to_best({"4.1", "UD"}, {"4.1", "UC"}, {0.8, 1.1})},
        {"4.1.1", "4.1", "RC serves 20 % more than TCP, and UC half as much again as RC",
         "best of UC to best of RC between 1.2 and 1.8",
         best_to_best({"4.1", "UC"}, {"4.1", "RC"}, {1.2, 1.8})},
        {"4.1.1", "4.1", "Polling loses throughput where clients are more than processors",
         "UC with 70 clients at most 0.8 of its best", left_of_best("4.1", "UC", {0, 0.8})},
        {"4.1.1", "4.1", "RC does not connect properly above 60 clients",
         "70 clients cannot be measured",
         cannot_be_measured({"4.1", "RC", crowds.back()}, {"4.1", "RC", crowds.front()})},
        {"4.1.2", "4.2", "Blocking does not lose throughput where clients are many",
         "UC with 70 clients at least 0.8 of its best", left_of_best("4.2", "UC", {0.8})},
        {"4.1.2", "4.2", "At its best, blocking reaches 23 % less than polling",
         "best of UC blocking to best of UC polling between 0.6 and 0.9",
         best_to_best({"4.2", "UC"}, {"4.1", "UC"}, {0.6, 0.9})},
        {"4.1.2", "4.2", "UD cannot be measured when it blocks", "no value with 70 clients",
         cannot_be_measured({"4.2", "UD", crowds.back()}, {"4.2", "UC", crowds.back()})},
        {"4.3", "table 4.3", "Blocking takes about two context switches for each operation",
         "UC with 5 clients between 1 and 4",
         [](const StudyView& view) -> std::optional<StudyVerdict> {
             const auto switches = view.summary("table 4.3", "UC", 5);
             return switches ? std::optional{judge_value(*switches, {1, 4})} : std::nullopt;
         }},
        {"4.2.1", "table 4.1 UC",
         "Polling, the outliers grow where clients are more than processors: 99 % of UC takes "
         "1,296 us with 60 clients, 122 with 32",
         "99 % of UC with 60 clients to that with 32 within a factor of 1.5",
         point_near_point({"table 4.1 UC", "99 %", 60}, {"table 4.1 UC", "99 %", 32},
                          1'296.0 / 122)},
        {"4.2.2", "table 4.2 UC",
         "With 60 clients blocking has fewer outliers than polling: 99 % of UC takes a quarter",
         "99 % of UC polling to blocking, 60 clients, within a factor of 1.5",
         point_near_point({"table 4.1 UC", "99 %", 60}, {"table 4.2 UC", "99 %", 60}, 4)},
        {"4.2.2", "table 4.2 UC",
         "With 5 clients blocking takes longer: the median of UC 1.4 times",
         "median of UC blocking to polling, 5 clients, between 1.1 and 2.1",
         point_to_point({"table 4.2 UC", "median", 5}, {"table 4.1 UC", "median", 5}, {1.1, 2.1})},
        {"5.1", "4.1", "SEND/SEND does as well as HERD's WRITE/SEND, if messages are inlined",
         "best of RC to best of HERD between 0.8 and 1.25",
         best_to_best({"4.1", "RC"}, {"4.1", "HERD"}, {0.8, 1.25})},
    };
    for (const Way& way : ways) {
        study.findings.push_back(
            {"6", "default wait",
             fmt::format("(beyond the work) over {}, the default wait is as good as the better of "
                         "both",
                         way.label),
             "at least 0.9 of it with every crowd", default_to_better(way.label)});
    }
    for (StudyFinding& one : findings_beyond_the_work()) study.findings.push_back(std::move(one));
    return study;
}

int run_kv(const StudyOptions& options, unsigned get_percent) {
    return run_study(kv_study(get_percent), options);
}

}  // namespace millrace::bench
