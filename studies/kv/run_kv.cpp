#include "run_kv.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "bench/kv/measure_crowd.hpp"
#include "beyond_figures.hpp"
#include "kv_findings.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/transfer.hpp"
#include "studies/framework/study_runs.hpp"

namespace millrace::bench {
namespace {

using Runs = StudyRuns<CrowdResult>;

/// A way for requests to reach the store, as curves are called.
struct Way {
    std::string label;
    connect::Transport transport = connect::Transport::rc;
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
    bool is_shown = true;  ///< its latencies one by one, too
};
/// The work's four, which send and receive.
const std::vector<Way> ways_of_work{
    {"RC", connect::Transport::rc, message::Transfer::send, message::Transfer::send},
    {"UC", connect::Transport::uc},
    {"UD", connect::Transport::ud},
    {"TCP", connect::Transport::tcp},
};
/// What HERD does (the work's section 5.1), but over RC: requests by WRITE, answers by SEND; and
/// what this store does if it is not asked otherwise.
const std::vector<Way> other_ways{
    {"HERD", connect::Transport::rc, message::Transfer::write, message::Transfer::send, false},
    {"mailboxes", connect::Transport::rc},
};

/// How a server waits, and its clients.
struct Wait {
    std::string name;
    base::WaitPolicy policy;
};
const Wait polls{"polling", base::WaitPolicy::polling()};
const Wait blocks{"blocking", base::WaitPolicy::blocking()};
const Wait waits_by_default{"default", {}};
/// Polls, and never offers its processor, as the work's threads: the system takes it from them.
const Wait spins{"spinning", {.spin = std::chrono::hours{1}, .sleep = false}};

/// Makes the figures of one server.
class Figures {
  public:
    explicit Figures(const KvStudyOptions& chosen) : chosen_{chosen} {}

    /// The runs of a way; `own`: of this library's server, whatever is measured beside it.
    [[nodiscard]] std::shared_ptr<Runs> runs(const Wait& wait, const Way& way, bool own = false) {
        std::shared_ptr<Runs>& found = runs_[{wait.name, way.label, own}];
        if (found != nullptr) return found;
        CrowdCase made = usual_case();
        if (!own) made.table = chosen_.chosen_table();
        made.wait = wait.policy;
        made.transport = way.transport;
        made.requests = way.requests;
        made.answers = way.answers;
        const bool is_threaded = chosen_.threads && !own;
        const std::string name = fmt::format("{}-{}{}", way.label, wait.name, own ? "-own" : "");
        found = std::make_shared<Runs>(
            [made, is_threaded, name, folder = chosen_.save, saved = std::map<std::string, int>{}](
                const std::string& mode, std::size_t clients) mutable {
                CrowdCase one = made;
                one.mode = mode;
                one.clients = static_cast<unsigned>(clients);
                if (is_threaded) one.server_threads = one.clients;
                if (!folder.empty()) {
                    const char* const link = mode == "fast" ? "fast" : "link";
                    const std::string run = fmt::format("{}-{}-{}", name, link, clients);
                    one.save = fmt::format("{}/{}-{}.csv", folder, run, ++saved[run]);
                }
                return measure_crowd(one);
            });
        return found;
    }

    [[nodiscard]] StudyFigure figure(std::string id, std::string title, std::string quantity,
                                     std::string unit) const {
        return StudyFigure{std::move(id),
                           std::move(title),
                           std::move(quantity),
                           std::move(unit),
                           "clients",
                           chosen_.crowds,
                           {}};
    }
    void add(StudyFigure& made, const Way& way, const Wait& wait, double CrowdResult::*value,
             const std::string& label, bool own = false) {
        made.series.push_back(curve_of(label, runs(wait, way, own), value));
        // No link of ours is between the kernel's sockets.
        if (way.transport == connect::Transport::tcp) made.series.back().modes = {"fast"};
    }
    /// Of the server that is measured, and beside one of several threads this library's own.
    [[nodiscard]] StudyFigure of_all(StudyFigure made, const Wait& wait,
                                     double CrowdResult::*value) {
        for (const Way& way : ways()) add(made, way, wait, value, way.label);
        if (!chosen_.threads) return made;
        for (const Way& way : ways()) add(made, way, wait, value, way.label + ", one thread", true);
        return made;
    }
    [[nodiscard]] StudyFigure of_waits(StudyFigure made, double CrowdResult::*value) {
        const Way& way = other_ways.back();
        for (const Wait& wait : {polls, blocks}) add(made, way, wait, value, wait.name);
        add(made, way, waits_by_default, value, "default wait");
        return made;
    }
    void add_memcached(StudyFigure& made) {
        if (memcached_ == nullptr) {
            memcached_ = std::make_shared<Runs>(
                [usual = usual_case()](const std::string& mode, std::size_t clients) {
                    CrowdCase one = usual;
                    one.mode = mode;
                    one.clients = static_cast<unsigned>(clients);
                    return measure_memcached_crowd(one);
                });
        }
        made.series.push_back(
            curve_of("memcached", memcached_, &CrowdResult::operations_per_second));
        made.series.back().modes = {"fast"};
    }

    /// Latencies one by one: a part for each crowd that is shown, a, b, c …
    void add_shown(std::vector<StudyFigure>& all, const std::string& id, const std::string& title,
                   StudyShape shape, const std::vector<std::size_t>& thousandths,
                   const Wait& wait) {
        for (std::size_t part = 0; part != chosen_.shown.size(); ++part) {
            const std::size_t clients = chosen_.shown[part];
            StudyFigure made{id + static_cast<char>('a' + part),
                             fmt::format("{}, {} clients", title, clients),
                             "latency_us",
                             "us",
                             "thousandths of all",
                             thousandths,
                             {}};
            made.shape = shape;
            for (const Way& way : ways()) {
                if (!way.is_shown) continue;
                made.series.push_back(
                    curve_at(way.label, runs(wait, way), clients, &CrowdResult::quantile_us));
                if (way.transport == connect::Transport::tcp) made.series.back().modes = {"fast"};
            }
            all.push_back(std::move(made));
        }
    }
    /// The same in numbers: a table for each way.
    void add_numbers(std::vector<StudyFigure>& all, const std::string& id, const std::string& title,
                     const Wait& wait) {
        for (const Way& way : ways()) {
            if (!way.is_shown) continue;
            StudyFigure made = figure(fmt::format("{} {}", id, way.label), title, "us", "us");
            made.xs = chosen_.shown;
            made.shape = StudyShape::table;
            if (way.transport == connect::Transport::tcp) made.modes = {"fast"};
            const auto column = [&](std::string label, auto quantity) {
                made.series.push_back({std::move(label), {}});
                auto asked = std::make_shared<std::map<std::string, std::size_t>>();
                made.series.back().measure = [quantity, asked, of = runs(wait, way)](
                                                 const std::string& mode, std::size_t clients) {
                    const std::size_t index = (*asked)[fmt::format("{} {}", mode, clients)]++;
                    return quantity(of->at(mode, clients, index));
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
            all.push_back(std::move(made));
        }
    }
    /// Table 4.3 counts each process by itself (`perf stat` on either side).
    [[nodiscard]] StudyFigure switches(const std::string& process, double CrowdResult::*value) {
        StudyFigure made = figure("table 4.3, " + process,
                                  fmt::format("Context switches of the {} for each operation, "
                                              "blocking, and by UC polling",
                                              process == "server" ? "server" : "clients' process"),
                                  "switches_per_operation", "switches");
        for (const Way& way : ways()) add(made, way, blocks, value, way.label);
        add(made, ways_of_work[1], polls, value, "UC polling");
        made.xs = chosen_.shown;
        made.shape = StudyShape::table;
        return made;
    }
    /// What the work calls polling: the system alone takes a processor from a thread.
    [[nodiscard]] StudyFigure spinning() {
        StudyFigure made = figure("4.1, spinning", "Throughput, spinning: no thread yields",
                                  "operations_per_second", "operations per second");
        made.modes = {"fast"};
        made.xs = crowds_that_spin(chosen_.crowds);
        for (const Way& way : ways_of_work) {
            add(made, way, spins, &CrowdResult::operations_per_second, way.label);
        }
        return made;
    }
    [[nodiscard]] const std::vector<Way>& ways() const {
        static const std::vector<Way> all = [] {
            std::vector<Way> made = ways_of_work;
            made.insert(made.end(), other_ways.begin(), other_ways.end());
            return made;
        }();
        return chosen_.threads ? ways_of_work : all;
    }

  private:
    [[nodiscard]] CrowdCase usual_case() const {
        CrowdCase made;
        made.get_percent = chosen_.get_percent;
        made.operations = chosen_.operations;
        return made;
    }

    KvStudyOptions chosen_;
    std::map<std::tuple<std::string, std::string, bool>, std::shared_ptr<Runs>> runs_;
    std::shared_ptr<Runs> memcached_;
};

std::string name_of_server(const KvStudyOptions& chosen) {
    if (chosen.threads) return "kv-threads";
    return chosen.chosen_table() == kv::TableKind::thesis ? "kv-thesis" : "kv";
}

std::string setting_of(const KvStudyOptions& chosen) {
    const CrowdCase usual;
    std::string made = fmt::format("{} keys of 16 B, values of {} B, {} % GETs; ", usual.keys,
                                   usual.value_bytes, chosen.get_percent);
    if (chosen.operations != 0) made += fmt::format("{} operations a run; ", chosen.operations);
    const bool is_of_work = chosen.chosen_table() == kv::TableKind::thesis;
    made += is_of_work ? "the work's table of 1,024 buckets; " : "";
    if (!chosen.threads) {
        return made + "each client in a thread, all of them on one core, the server on another";
    }
    const std::size_t cores = std::max<std::size_t>(base::available_cores().size() / 2, 1);
    return made + fmt::format(
                      "each client in a thread, and a server thread for each; {} core{} "
                      "for either side, oversubscribed from {} clients on; \"one thread\": "
                      "this library's server",
                      cores, cores == 1 ? "" : "s", cores + 1);
}

}  // namespace

Study kv_study(const KvStudyOptions& chosen) {
    Figures of{chosen};
    const std::string rate = "operations_per_second";
    const std::string a_second = "operations per second";
    constexpr auto per_second = &CrowdResult::operations_per_second;
    Study study;
    study.name = name_of_server(chosen);
    study.work = "work 002, chapter 4,";
    study.modes = {"fast", "shaped:56g,latency=1us"};
    if (chosen.threads) study.modes = {"fast"};
    study.seconds_per_point = 0.2;
    study.setting = setting_of(chosen);
    std::vector<StudyFigure>& all = study.figures;
    all.push_back(
        of.of_all(of.figure("4.1", "Throughput, polling", rate, a_second), polls, per_second));
    if (chosen.threads) all.push_back(of.spinning());
    all.push_back(
        of.of_all(of.figure("4.2", "Throughput, blocking", rate, a_second), blocks, per_second));
    const bool is_usual = !chosen.threads;
    if (is_usual) {
        of.add_memcached(all[0]);
        of.add_memcached(all[1]);
        all.push_back(
            of.of_all(of.figure("default wait",
                                "Throughput, default wait: to look for a while, then to sleep",
                                rate, a_second),
                      waits_by_default, per_second));
    }
    all.push_back(of.of_all(of.figure("4.3", "Mean latency, polling", "mean_us", "us"), polls,
                            &CrowdResult::mean_us));
    all.push_back(of.of_all(of.figure("4.6", "Mean latency, blocking", "mean_us", "us"), blocks,
                            &CrowdResult::mean_us));
    if (is_usual) {
        all.push_back(
            of.of_all(of.figure("default wait p99", "99th percentile of latency, default wait",
                                "p99_us", "us"),
                      waits_by_default, &CrowdResult::p99_us));
        all.push_back(of.of_waits(
            of.figure("waiting", "Throughput of mailboxes by how both ends wait", rate, a_second),
            per_second));
        all.push_back(of.of_waits(
            of.figure("waiting p99", "99th percentile of latency of mailboxes by the same",
                      "p99_us", "us"),
            &CrowdResult::p99_us));
    }
    all.push_back(of.of_all(of.figure("fairness", "The client that was served least, to the mean",
                                      "least_to_mean", "part of the mean"),
                            polls, &CrowdResult::least_to_mean));
    std::vector<std::size_t> parts{1, 10};
    for (std::size_t part = 25; part < 1000; part += 25) parts.push_back(part);
    parts.insert(parts.end(), {990, 995, 999});
    const std::vector<std::size_t> box{50, 250, 500, 750, 950};
    of.add_shown(all, "4.4", "Latencies, polling", StudyShape::distribution, parts, polls);
    of.add_shown(all, "4.5", "Latencies, polling", StudyShape::boxes, box, polls);
    of.add_numbers(all, "table 4.1", "Latencies, polling", polls);
    of.add_shown(all, "4.7", "Latencies, blocking", StudyShape::boxes, box, blocks);
    of.add_shown(all, "4.8", "Latencies, blocking", StudyShape::distribution, parts, blocks);
    of.add_numbers(all, "table 4.2", "Latencies, blocking", blocks);
    all.push_back(of.switches("server", &CrowdResult::server_switches));
    all.push_back(of.switches("clients", &CrowdResult::client_switches));
    study.findings = findings_of_chapter(chosen);
    if (is_usual) {
        std::vector<std::string> names;
        for (const Way& way : of.ways()) names.push_back(way.label);
        for (StudyFinding& one : findings_of_default_wait(chosen, names)) {
            study.findings.push_back(std::move(one));
        }
    }
    if (study.name == "kv") {
        for (StudyFigure& one : figures_beyond_the_work(chosen.get_percent)) {
            all.push_back(std::move(one));
        }
        for (StudyFinding& one : findings_beyond_the_work()) {
            study.findings.push_back(std::move(one));
        }
    }
    return study;
}

int run_kv(const StudyOptions& options, const KvStudyOptions& chosen) {
    if (!chosen.save.empty()) {
        std::error_code error;
        std::filesystem::create_directories(chosen.save, error);
        if (error) {
            throw base::Error{base::ErrorCode::system, "make a folder for operations", chosen.save,
                              error.message(), "choose a path that can be written"};
        }
    }
    return run_study(kv_study(chosen), options);
}

}  // namespace millrace::bench
