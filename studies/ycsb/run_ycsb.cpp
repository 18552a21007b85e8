#include "run_ycsb.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "bench/framework/program.hpp"
#include "bench/framework/report.hpp"
#include "bench/ycsb/measure_ycsb.hpp"
#include "millrace/base/error.hpp"
#include "studies/framework/study_runs.hpp"
#include "work_001_figures.hpp"

namespace millrace::bench {
namespace {

[[noreturn]] void refuse_ycsb(std::string what, std::string why, std::string remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, "run YCSB", std::move(what),
                      std::move(why), std::move(remedy)};
}

void check_ycsb(const YcsbOptions& options) {
    if (!options.server.empty() && options.over.size() != 1) {
        refuse_ycsb("--server " + options.server, "how to speak to it was not said",
                    "name one way by --over, such as --over redis");
    }
    if (!options.loads && options.server.empty()) {
        refuse_ycsb("--no-load", "a server that is started for this has no records",
                    "name a server that has them by --server");
    }
    if (!options.rates.empty() && options.clients.size() > 1) {
        refuse_ycsb("--rate with several numbers of --clients", "figures go over one of them",
                    "choose one number of clients");
    }
}

/// False, and said: the program that it needs is not here.
bool can_be_started(const YcsbWay& way, bool was_asked_for) {
    if (way.protocol == YcsbWay::Protocol::own) return true;
    const std::string program =
        way.protocol == YcsbWay::Protocol::redis ? "redis-server" : "memcached";
    try {
        require_program(program, program);
    } catch (const base::Error& error) {
        if (was_asked_for) throw;
        fmt::print(stderr, "millrace bench ycsb: without {}: {}\n", way.name, error.what());
        return false;
    }
    return true;
}

std::vector<YcsbWay> ways_of(const YcsbOptions& options) {
    std::vector<YcsbWay> ways;
    for (const std::string& name : options.over) {
        const YcsbWay* const way = find_ycsb_way(name);
        if (way == nullptr) refuse_ycsb("--over " + name, "there is no such way", "");
        if (!options.server.empty() || can_be_started(*way, true)) ways.push_back(*way);
    }
    if (!options.over.empty()) return ways;
    for (const YcsbWay& way : ycsb_ways) {
        if (can_be_started(way, false)) ways.push_back(way);
    }
    return ways;
}

/// Of one workload and one way. What failed once fails in the other figures of the same runs, too.
class YcsbRuns {
  public:
    YcsbRuns(YcsbCase chosen, YcsbWay way, std::string server, bool over_rates)
        : chosen_{std::move(chosen)},
          way_{way},
          server_{std::move(server)},
          over_rates_{over_rates} {}

    const YcsbResult& at(const std::string& mode, std::size_t x, std::size_t index) {
        Point& point = points_[{mode, x}];
        if (point.failure != nullptr) std::rethrow_exception(point.failure);
        try {
            while (point.runs.size() <= index) point.runs.push_back(measure(mode, x));
        } catch (...) {
            point.failure = std::current_exception();
            throw;
        }
        return point.runs[index];
    }

  private:
    struct Point {
        std::vector<YcsbResult> runs{};
        std::exception_ptr failure{};
    };
    YcsbResult measure(const std::string& mode, std::size_t x) const {
        YcsbCase one = chosen_;
        if (over_rates_) {
            one.offered_per_second = static_cast<double>(x);
        } else {
            one.clients = static_cast<unsigned>(x);
        }
        return server_.empty() ? measure_ycsb(one, way_, mode)
                               : measure_ycsb_of(one, way_, server_);
    }

    YcsbCase chosen_;
    YcsbWay way_;
    std::string server_;
    bool over_rates_;
    std::map<std::pair<std::string, std::size_t>, Point> points_;
};

/// A quantity of the runs: its n-th value at a point is that of the n-th run there. `place`: of the
/// runs; none: the figure's x.
template <class Quantity>
StudySeries series_of(const YcsbWay& way, const std::shared_ptr<YcsbRuns>& runs,
                      std::optional<std::size_t> place, Quantity quantity) {
    auto asked = std::make_shared<std::map<std::pair<std::string, std::size_t>, std::size_t>>();
    StudySeries made{std::string{way.name}, [=](const std::string& mode, std::size_t x) -> double {
                         const std::size_t index = (*asked)[{mode, x}]++;
                         return quantity(runs->at(mode, place.value_or(x), index), x);
                     }};
    const bool has_device =
        way.protocol == YcsbWay::Protocol::own && way.transport != connect::Transport::tcp;
    if (!has_device) made.modes = {"fast"};
    return made;
}

/// The figures of one workload.
std::vector<StudyFigure> figures_of(const YcsbCase& chosen, const YcsbOptions& options,
                                    const std::vector<YcsbWay>& ways,
                                    const std::vector<std::size_t>& xs) {
    const bool over_rates = !options.rates.empty();
    const std::string id{chosen.workload.name};
    const std::string over = over_rates ? "operations offered a second" : "clients";
    const std::string scans =
        chosen.workload.percent_of(workload::YcsbOperation::scan) != 0
            ? "; a scan is one read of several keys, as no store here has scans"
            : "";
    StudyFigure speed{id,
                      fmt::format("Workload {}: {}{}", id, chosen.workload.title, scans),
                      "operations_per_second",
                      "operations a second",
                      over,
                      xs};
    StudyFigure failed{
        id + " failed",
        fmt::format("Workload {}: operations that failed, which count nowhere else", id),
        "failed_operations",
        "operations",
        over,
        xs};
    failed.shape = StudyShape::table;
    StudyFigure load{id + " load",
                     fmt::format("Workload {}: records loaded before it, one by one", id),
                     "records_per_second",
                     "records a second",
                     over,
                     xs};
    load.shape = StudyShape::table;
    std::vector<StudyFigure> times;
    const auto add_times = [&](workload::YcsbOperation operation, std::size_t x) {
        times.push_back({fmt::format("{} {}, {}", id, name_of(operation), x),
                         fmt::format("Workload {}, {}: {}: what so many thousandths of {}s take at "
                                     "most",
                                     id, over, x, name_of(operation)),
                         "operation_us",
                         over_rates ? "us from when it was due" : "us",
                         "thousandths that take no longer",
                         {500, 900, 950, 990, 999, 1000}});
        times.back().shape = StudyShape::table;
    };
    std::vector<std::pair<workload::YcsbOperation, std::size_t>> of_times;
    for (const workload::YcsbOperation operation : workload::every_ycsb_operation) {
        if (chosen.workload.percent_of(operation) == 0) continue;
        for (const std::size_t x : xs) {
            of_times.emplace_back(operation, x);
            add_times(operation, x);
        }
    }
    for (const YcsbWay& way : ways) {
        const auto runs = std::make_shared<YcsbRuns>(chosen, way, options.server, over_rates);
        using Run = const YcsbResult&;
        const auto of = [&](StudyFigure& figure, auto quantity) {
            figure.series.push_back(series_of(way, runs, std::nullopt, quantity));
        };
        of(speed, [](Run run, std::size_t) { return run.operations_per_second; });
        of(failed, [](Run run, std::size_t) { return static_cast<double>(run.failed()); });
        of(load, [](Run run, std::size_t) { return run.load_per_second; });
        for (std::size_t i = 0; i != times.size(); ++i) {
            const auto [operation, x] = of_times[i];
            times[i].series.push_back(
                series_of(way, runs, x, [operation = operation](Run run, std::size_t thousandths) {
                    return static_cast<double>(run.times_of(operation).quantile(
                               static_cast<double>(thousandths) / 1000)) /
                           1e3;
                }));
        }
    }
    std::vector<StudyFigure> all{std::move(speed)};
    for (StudyFigure& one : times) all.push_back(std::move(one));
    all.push_back(std::move(failed));
    if (options.loads) all.push_back(std::move(load));
    return all;
}

YcsbCase case_of(const YcsbOptions& options, const workload::YcsbWorkload& workload,
                 double seconds) {
    YcsbCase made;
    made.workload = workload;
    if (options.distribution) made.workload.distribution = *options.distribution;
    made.records = options.records;
    made.fields = options.fields;
    made.field_bytes = options.field_bytes;
    made.loads = options.loads;
    made.duration = std::chrono::nanoseconds{static_cast<std::int64_t>(seconds * 1e9)};
    made.warm_up = made.duration / 4;
    return made;
}

bool is_wanted(const YcsbOptions& options, char workload) {
    return options.workloads.empty() ||
           std::find(options.workloads.begin(), options.workloads.end(), workload) !=
               options.workloads.end();
}

std::string setting_of(const YcsbOptions& options, std::size_t clients, double seconds) {
    std::string all = fmt::format(
        "{} records of {} fields of {} B; {:.3g} s of each run count; clients are threads{}. An "
        "update writes the whole record",
        options.records, options.fields, options.field_bytes, seconds,
        options.server.empty() ? " that share one core, the server has another" : "");
    if (!options.rates.empty()) {
        all +=
            fmt::format("; {} clients, whose times count from when an operation was due", clients);
    }
    if (options.distribution) all += fmt::format("; records: {}", name_of(*options.distribution));
    return all;
}

}  // namespace

Study ycsb_study(const YcsbOptions& options, bool quick) {
    check_ycsb(options);
    constexpr double quick_seconds = 0.2;
    const double seconds = quick ? std::min(quick_seconds, options.seconds) : options.seconds;
    const std::vector<YcsbWay> ways = ways_of(options);
    std::vector<std::size_t> xs = options.clients;
    if (!options.rates.empty()) {
        xs = options.rates;
    } else if (xs.empty()) {
        xs = {1, 16};
    }
    const std::size_t clients = options.clients.empty() ? 16 : options.clients.front();
    Study study{.name = "ycsb",
                .work = "work 001, chapter 5",
                .modes = {"fast"},
                .figures = {},
                .findings = {}};
    study.setting = setting_of(options, clients, seconds);
    study.seconds_per_point = seconds / 2;  // half of the figures take theirs from others' runs
    for (const workload::YcsbWorkload& workload : workload::ycsb_workloads) {
        if (!is_wanted(options, workload.name)) continue;
        YcsbCase chosen = case_of(options, workload, seconds);
        chosen.clients = static_cast<unsigned>(clients);
        for (StudyFigure& one : figures_of(chosen, options, ways, xs)) {
            study.figures.push_back(std::move(one));
        }
    }
    if (!options.server.empty()) {
        study.where = fmt::format(
            "Of a server at {}, by clients of this process: what lies between them is measured, "
            "too.",
            options.server);
        if (const char* const mode = std::getenv("MILLRACE_SOFT_MODE"); mode != nullptr) {
            study.modes = {mode};
        }
        return study;
    }
    if (!options.workloads.empty() || !options.rates.empty()) return study;
    for (StudyFigure& one : work_001_ycsb_figures(quick)) study.figures.push_back(std::move(one));
    study.findings = work_001_ycsb_findings();
    return study;
}

int run_ycsb(const YcsbOptions& options, const StudyOptions& study) {
    const Study all = ycsb_study(options, study.quick);
    // One line says that the server is not there, and none for each of the figures.
    if (!options.server.empty()) {
        (void)connect_ycsb(*find_ycsb_way(options.over.front()),
                           connect::Address::parse(options.server), false,
                           base::Deadline::after(std::chrono::seconds{2}));
    }
    return run_study(all, study);
}

}  // namespace millrace::bench
