#include "run_kv.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "framework/study_runs.hpp"
#include "measure_crowd.hpp"

namespace millrace::bench {
namespace {

/// Clients of a figure; the work had 1 to 70, and 32 processors for them.
const std::vector<std::size_t> crowds{1, 2, 4, 8, 16, 32, 48, 60, 70};

using Runs = StudyRuns<CrowdResult>;

std::shared_ptr<Runs> runs_with(base::WaitPolicy wait) {
    return std::make_shared<Runs>([wait](const std::string& mode, std::size_t clients) {
        CrowdCase chosen;
        chosen.clients = static_cast<unsigned>(clients);
        chosen.mode = mode;
        chosen.wait = wait;
        return measure_crowd(chosen);
    });
}

/// The best of a curve over all crowds up to `most` clients.
std::optional<double> best(const StudyView& view, const std::string& label,
                           std::size_t most = crowds.back()) {
    std::optional<double> found;
    for (const std::size_t clients : crowds) {
        const auto value = view.get("4.1", label, clients);
        if (value && clients <= most) found = std::max(found.value_or(0), *value);
    }
    return found;
}

/// What is left of a curve's best with the largest crowd.
auto left_of_best(std::string label, double low, double high) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto all = best(view, label);
        const auto last = view.get("4.1", label, crowds.back());
        if (!all || !last) return std::nullopt;
        const double part = *last / *all;
        return StudyVerdict{part >= low && part <= high, fmt::format("{:.2f}", part)};
    };
}

/// The best of one curve to the best of another.
auto best_to_best(std::string above, std::string below, double low, double high) {
    return [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto one = best(view, above);
        const auto other = best(view, below);
        if (!one || !other) return std::nullopt;
        const double ratio = *one / *other;
        return StudyVerdict{ratio >= low && ratio <= high, fmt::format("{:.2f}", ratio)};
    };
}

constexpr double any = 1e300;

}  // namespace

Study kv_study() {
    const auto polling = runs_with(base::WaitPolicy::polling());
    const auto blocking = runs_with(base::WaitPolicy::blocking());
    const auto adaptive = runs_with({});
    const auto memcached = std::make_shared<Runs>([](const std::string& mode, std::size_t clients) {
        CrowdCase chosen;
        chosen.clients = static_cast<unsigned>(clients);
        chosen.mode = mode;
        return measure_memcached_crowd(chosen);
    });
    const auto figure = [&](std::string id, std::string title, std::string quantity,
                            std::string unit, double CrowdResult::*value, bool with_memcached) {
        StudyFigure made{std::move(id),
                         std::move(title),
                         std::move(quantity),
                         std::move(unit),
                         "clients",
                         crowds,
                         {}};
        made.series = {curve_of("RC, polling", polling, value),
                       curve_of("RC, blocking", blocking, value),
                       curve_of("RC, adaptive", adaptive, value)};
        if (with_memcached) made.series.push_back(curve_of("memcached", memcached, value));
        return made;
    };
    Study study;
    study.name = "kv";
    study.work = "work 002, chapter 4,";
    study.modes = {"fast", "shaped:56g,latency=1us"};
    study.seconds_per_point = 0.25;
    study.figures = {
        figure("4.1", "Throughput (also 4.2: blocking)", "operations_per_second",
               "operations per second", &CrowdResult::operations_per_second, true),
        figure("4.3", "Mean latency (also 4.6: blocking)", "mean_us", "us", &CrowdResult::mean_us,
               true),
        figure("4.5", "95th percentile of latency (also 4.7: blocking)", "p95_us", "us",
               &CrowdResult::p95_us, true),
        figure("4.4", "99th percentile of latency (also 4.8: blocking)", "p99_us", "us",
               &CrowdResult::p99_us, true),
        figure("table 4.3", "Context switches per operation", "switches_per_operation", "switches",
               &CrowdResult::switches, false),
        figure("fairness", "The client that was served least, to the mean", "least_to_mean",
               "part of the mean", &CrowdResult::least_to_mean, true),
    };
    study.findings = {
        {"4.1.1", "4.1", "Polling loses throughput where clients are more than processors",
         "with 70 clients at most 0.8 of the best", left_of_best("RC, polling", 0, 0.8),
         "one thread serves all clients here, and who polls in vain gives its processor away",
         "one thread serves all clients here, and who polls in vain gives its processor away"},
        {"4.1.2", "4.1", "Blocking does not lose it", "with 70 clients at least 0.8 of the best",
         left_of_best("RC, blocking", 0.8, any)},
        {"4.1.2", "4.1", "At its best, blocking reaches some 23 % less than polling",
         "best of blocking to best of polling between 0.6 and 0.9",
         best_to_best("RC, blocking", "RC, polling", 0.6, 0.9),
         "an operation takes less than a microsecond here, and a sleep several"},
        {"4.1.1", "4.1", "RDMA serves more than the kernel's sockets: RC 20 % more than TCP",
         "best of polling to best of memcached over Unix sockets at least 1.15",
         best_to_best("RC, polling", "memcached", 1.15, any)},
        {"4.3", "table 4.3", "Blocking takes about two context switches for each operation",
         "with 8 clients between 1 and 4",
         [](const StudyView& view) -> std::optional<StudyVerdict> {
             const auto switches = view.get("table 4.3", "RC, blocking", 8);
             if (!switches) return std::nullopt;
             return StudyVerdict{*switches >= 1 && *switches <= 4,
                                 fmt::format("{:.2f}", *switches)};
         },
         "one thread serves many clients: it sleeps once for several requests",
         "one thread serves many clients: it sleeps once for several requests"},
        {"4.1.1", "4.1", "RC does not connect properly above 60 clients",
         "70 clients cannot be measured",
         [](const StudyView& view) -> std::optional<StudyVerdict> {
             if (!view.get("4.1", "RC, polling", 60)) return std::nullopt;
             const bool connects = view.get("4.1", "RC, polling", 70).has_value();
             return StudyVerdict{!connects, connects ? "they are served" : "they are not"};
         },
         "that was a fault of the work's server", "that was a fault of the work's server"},
    };
    return study;
}

int run_kv(const StudyOptions& options) { return run_study(kv_study(), options); }

}  // namespace millrace::bench
