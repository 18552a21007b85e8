#include "work_001_figures.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "measure_lookups.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "studies/framework/study_runs.hpp"
#include "studies/works/quotations.hpp"

namespace millrace::bench {
namespace {

// --- what the work prints

/// Lookups of section 5.1.
struct LookupOfWork {
    const char* label;
    LookupWay way;
    const char* quotation;  ///< microseconds
    [[nodiscard]] double us() const { return quoted(quotation); }
};
constexpr std::array lookups_of_work{
    LookupOfWork{"TCP", LookupWay::tcp, "001.lookup.tcp"},
    LookupOfWork{"Unix", LookupWay::unix_socket, "001.lookup.unix"},
    LookupOfWork{"RDMA", LookupWay::posted, "001.lookup.rdma"},
    LookupOfWork{"shared memory", LookupWay::stored, "001.lookup.memory"},
    LookupOfWork{"bare table", LookupWay::table, "001.lookup.table"}};

/// Table 5.1: of 1 to 6 million requests a second, in microseconds.
constexpr const char* mean_of_work = "001.load.mean";
constexpr const char* median_of_work = "001.load.median";
constexpr const char* p99_of_work = "001.load.p99";
constexpr const char* most_of_work = "001.load.most";
double load_of_work(const char* name, std::size_t sixth) {
    return quoted(name, static_cast<double>(sixth));
}

// --- figures

constexpr std::size_t answer_bytes = 100;  ///< of the work
constexpr const char* ours_in_memory = "ours, posted";
constexpr const char* ours_over_link = "ours, over 40 Gb/s";
const std::vector<std::string> no_link{"fast"};

StudyFigure figure_of_lookups(std::string id, std::string title, std::string quantity,
                              std::string unit) {
    return {std::move(id),   std::move(title),     std::move(quantity),
            std::move(unit), "bytes of an answer", {8, answer_bytes, 1000}};
}

using LookupRuns = StudyRuns<LookupResult>;

std::vector<StudyFigure> figures_5_1(bool quick) {
    StudyFigure speed =
        figure_of_lookups("5.1", "Lookups one by one of YCSB's workload C, requests of 8 B",
                          "lookups_per_second", "lookups a second");
    StudyFigure switches =
        figure_of_lookups("5.1 switches", "Context switches of client and server",
                          "context_switches", "switches per lookup");
    switches.shape = StudyShape::table;
    switches.xs = {answer_bytes};
    for (const LookupOfWork& one : lookups_of_work) {
        const auto runs = std::make_shared<LookupRuns>(
            [way = one.way, quick](const std::string& mode, std::size_t bytes) {
                const bool sleeps = way == LookupWay::tcp || way == LookupWay::unix_socket;
                const std::uint64_t lookups = sleeps ? 8'000 : 200'000;
                return measure_lookups({.way = way,
                                        .mode = mode,
                                        .value_bytes = bytes,
                                        .lookups = quick ? lookups / 4 : lookups});
            });
        const bool has_device = one.way == LookupWay::posted || one.way == LookupWay::stored;
        const auto add = [&](StudyFigure& figure, auto quantity) {
            auto asked =
                std::make_shared<std::map<std::pair<std::string, std::size_t>, std::size_t>>();
            figure.series.push_back(
                {one.label,
                 [runs, quantity, asked](const std::string& mode, std::size_t x) {
                     return quantity(runs->at(mode, x, (*asked)[{mode, x}]++));
                 },
                 {},
                 has_device ? std::vector<std::string>{} : no_link});
        };
        add(speed, [](const LookupResult& run) { return 1e6 / run.us; });
        if (one.way != LookupWay::table) {
            add(switches, [](const LookupResult& run) { return run.switches; });
        }
    }
    return {std::move(speed), std::move(switches)};
}

constexpr std::size_t sixths = 6;
constexpr std::size_t clients_of_a_sixth = 10;
double us_of(std::uint64_t ns) { return static_cast<double>(ns) / 1e3; }

using LoadRuns = StudyRuns<LookupLoadResult>;

std::vector<StudyFigure> figures_5_2(bool quick) {
    const auto runs = std::make_shared<LoadRuns>([quick](const std::string& mode, std::size_t x) {
        LookupLoadCase chosen;
        chosen.mode = mode;
        chosen.clients = clients_of_a_sixth * x;
        chosen.clients_at_most = clients_of_a_sixth * sixths;
        chosen.share = static_cast<double>(x) / static_cast<double>(sixths);
        if (quick) chosen.duration = std::chrono::milliseconds{200};
        return measure_lookup_load(chosen);
    });
    StudyFigure distribution{
        "5.2",
        "How long lookups take by the load, in sixths of what the server can do",
        "lookup_us",
        "us from when a lookup was due",
        "thousandths of all lookups",
        {1,   10,  50,  100, 150, 200, 250, 300, 350, 400, 450, 500,
         550, 600, 650, 700, 750, 800, 850, 900, 950, 990, 999}};
    distribution.shape = StudyShape::distribution;
    for (std::size_t x = 1; x <= sixths; ++x) {
        distribution.series.push_back(
            curve_at(fmt::format("{}/{}", x, sixths), runs, x,
                     [](const LookupLoadResult& run, std::size_t thousandths) {
                         return us_of(run.times->quantile(static_cast<double>(thousandths) / 1000));
                     }));
    }
    StudyFigure table{"table 5.1",
                      "The same: statistics of what lookups take, with the work's",
                      "lookup_us",
                      "us; offered and made: lookups a second",
                      "sixths of what the server can do",
                      {}};
    for (std::size_t x = 1; x <= sixths; ++x) table.xs.push_back(x);
    table.shape = StudyShape::table;
    const auto add = [&](const char* label, auto quantity) {
        auto asked = std::make_shared<std::map<std::pair<std::string, std::size_t>, std::size_t>>();
        table.series.push_back({label, [=](const std::string& mode, std::size_t x) {
                                    return quantity(runs->at(mode, x, (*asked)[{mode, x}]++), x);
                                }});
    };
    using Run = const LookupLoadResult&;
    add("mean", [](Run run, std::size_t) { return run.times->mean() / 1e3; });
    add("median", [](Run run, std::size_t) { return us_of(run.times->quantile(0.5)); });
    add("99 %", [](Run run, std::size_t) { return us_of(run.times->quantile(0.99)); });
    add("max", [](Run run, std::size_t) { return us_of(run.times->most()); });
    add("offered", [](Run run, std::size_t x) {
        return run.capacity * static_cast<double>(x) / static_cast<double>(sixths);
    });
    add("made", [](Run run, std::size_t) { return run.per_second; });
    const auto of_work = [&](const char* label, const char* name) {
        table.series.push_back(
            {label, [name](const std::string&, std::size_t x) { return load_of_work(name, x); }});
    };
    of_work("work's mean", mean_of_work);
    of_work("work's median", median_of_work);
    of_work("work's 99 %", p99_of_work);
    of_work("work's max", most_of_work);
    return {std::move(distribution), std::move(table)};
}

/// The work's link, with what it measured to and fro of up to 16 B (section 3.2.2).
std::string network_of_work() {
    return fmt::format("shaped:{}g,latency={}us", quoted("001.link"), quoted("001.round_trip") / 2);
}

/// What others report of their stores, which are not the same loads, with ours beside.
StudyFigure figure_6_1(bool quick) {
    StudyFigure made{"6.1",
                     "Latencies of key-value stores, as their authors print them, with ours",
                     "lookup_us",
                     "us",
                     "bytes of an answer",
                     {answer_bytes}};
    made.shape = StudyShape::table;
    made.modes = no_link;
    for (const auto& [label, name] :
         {std::pair{"FaRM", "001.store.farm"}, std::pair{"Nessie", "001.store.nessie"},
          std::pair{"Pilaf", "001.store.pilaf"}, std::pair{"Herd", "001.store.herd"},
          std::pair{"FaSST", "001.store.fasst"}, std::pair{"the work", "001.store.own"}}) {
        made.series.push_back(
            {label, [name = name](const std::string&, std::size_t) { return quoted(name); }});
    }
    for (const auto& [label, is_over_link] :
         {std::pair{ours_in_memory, false}, std::pair{ours_over_link, true}}) {
        made.series.push_back(
            {label, [is_over_link = is_over_link, quick](const std::string& mode, std::size_t x) {
                 return measure_lookups({.way = LookupWay::posted,
                                         .mode = is_over_link ? network_of_work() : mode,
                                         .value_bytes = x,
                                         .lookups = quick ? 5'000U : 50'000U})
                     .us;
             }});
    }
    return made;
}

/// A core of the client's node, and one of the server's that is another one.
std::pair<int, int> cores_of_nodes(int client, int server) {
    const std::vector<int> of_client = base::cores_of_node(client);
    const std::vector<int> of_server = base::cores_of_node(server);
    const std::size_t second = client == server ? 1 : 0;
    if (of_client.empty() || of_server.size() <= second) {
        throw base::Error{base::ErrorCode::unsupported, "measure what the placement does",
                          fmt::format("NUMA nodes {} and {}", client, server),
                          "this process may not run on two cores of them: this machine has no two "
                          "nodes, or not for this process",
                          "measure it on a machine with two NUMA nodes"};
    }
    return {of_client.front(), of_server[second]};
}

StudyFigure figure_5_4(bool quick) {
    StudyFigure made{"5.4", "Lookups by the NUMA nodes of client and server", "lookup_us",
                     "us",  "10 times the client's node, and the server's",   {0, 1, 10, 11}};
    // One line says that there are no two nodes.
    if (base::cores_of_node(1).empty()) made.xs = {1};
    made.shape = StudyShape::table;
    made.modes = no_link;
    for (const auto& [label, way] :
         {std::pair{"RDMA", LookupWay::posted}, std::pair{"shared memory", LookupWay::stored}}) {
        made.series.push_back({label, [way = way, quick](const std::string& mode, std::size_t x) {
                                   const auto [client, server] = cores_of_nodes(
                                       static_cast<int>(x / 10), static_cast<int>(x % 10));
                                   return measure_lookups({.way = way,
                                                           .mode = mode,
                                                           .lookups = quick ? 20'000U : 200'000U,
                                                           .client_core = client,
                                                           .server_core = server})
                                       .us;
                               }});
    }
    return made;
}

// --- findings

const LookupOfWork& lookup_of_work(std::string_view label) {
    return *std::find_if(lookups_of_work.begin(), lookups_of_work.end(),
                         [label](const LookupOfWork& one) { return one.label == label; });
}

StudyFinding faster_lookups(const char* faster, const char* slower) {
    const double of_work = lookup_of_work(slower).us() / lookup_of_work(faster).us();
    const Judge judge = [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto ratio =
            view.ratios({"5.1", faster, answer_bytes}, {"5.1", slower, answer_bytes});
        if (!ratio) return std::nullopt;
        StudyVerdict verdict = judge_factor(*ratio, of_work);
        for (const char* const label : {faster, slower}) {
            if (const auto switches = view.get("5.1 switches", label, answer_bytes)) {
                verdict.counted +=
                    fmt::format("{}{} had {:.2g} context switches a lookup",
                                verdict.counted.empty() ? "" : "; ", label, *switches);
            }
        }
        return verdict;
    };
    return {"5.1", "5.1",
            fmt::format("A lookup over {} takes {:.3g} us, over {} {:.3g}", slower,
                        lookup_of_work(slower).us(), faster, lookup_of_work(faster).us()),
            fmt::format("{} to {} within a factor of {}", faster, slower, judged_tolerance), judge};
}

/// A statistic of table 5.1 at one load, by that at another.
StudyFinding growth_of(const char* label, const char* name, std::size_t at, std::size_t from,
                       std::string claim) {
    const double of_work = load_of_work(name, at) / load_of_work(name, from);
    const Judge judge = [=](const StudyView& view) -> std::optional<StudyVerdict> {
        const auto ratio = view.ratios({"table 5.1", label, at}, {"table 5.1", label, from});
        if (!ratio) return std::nullopt;
        StudyVerdict verdict = judge_factor(*ratio, of_work);
        const auto offered = view.get("table 5.1", "offered", at);
        const auto made = view.get("table 5.1", "made", at);
        if (offered && made) {
            verdict.counted =
                fmt::format("of {:.3g} lookups offered a second {:.3g} were made", *offered, *made);
        }
        return verdict;
    };
    return {"5.1", "table 5.1", std::move(claim),
            fmt::format("{} at {}/{} to that at {}/{} within a factor of {}", label, at, sixths,
                        from, sixths, judged_tolerance),
            judge};
}

std::optional<StudyVerdict> medians_stay(const StudyView& view) {
    double least = 0;
    double most = 0;
    std::string all;
    for (std::size_t x = 1; x <= sixths; ++x) {
        const auto median = view.summary("table 5.1", "median", x);
        if (!median) return std::nullopt;
        least = x == 1 ? median->median : std::min(least, median->median);
        most = std::max(most, median->median);
        all += fmt::format("{}{:.3g} ({:.3g} to {:.3g})", x == 1 ? "" : ", ", median->median,
                           median->median_low, median->median_high);
    }
    double least_printed = load_of_work(median_of_work, 1);
    double most_printed = least_printed;
    for (std::size_t x = 2; x <= sixths; ++x) {
        least_printed = std::min(least_printed, load_of_work(median_of_work, x));
        most_printed = std::max(most_printed, load_of_work(median_of_work, x));
    }
    StudyVerdict verdict;
    verdict.agrees = most / least <= judged_tolerance * most_printed / least_printed;
    verdict.measured = fmt::format("{} us: {:.3g} times, the work {:.3g}", all, most / least,
                                   most_printed / least_printed);
    return verdict;
}

std::optional<StudyVerdict> little_load_takes_longer(const StudyView& view) {
    const auto ratio = view.ratios({"table 5.1", "mean", 1}, {"table 5.1", "mean", 3});
    if (!ratio) return std::nullopt;
    // How much is not the point of it.
    const double of_work = load_of_work(mean_of_work, 1) / load_of_work(mean_of_work, 3);
    StudyVerdict verdict = judge_factor(*ratio, of_work);
    verdict.stronger = ratio->median_low > judged_tolerance * of_work;
    verdict.agrees = ratio->median_low > 1 && !verdict.stronger;
    return verdict;
}

std::optional<StudyVerdict> network_lookup(const StudyView& view) {
    const auto ours = view.summary("6.1", ours_over_link, answer_bytes);
    if (!ours) return std::nullopt;
    const double of_work = quoted("001.lookup_over_network");
    StudyVerdict verdict =
        judge_value(*ours, {of_work / judged_tolerance, of_work * judged_tolerance});
    verdict.measured += " us";
    return verdict;
}

std::optional<StudyVerdict> placement_matters(const StudyView& view) {
    const auto ratio = view.ratios({"5.4", "RDMA", 1}, {"5.4", "RDMA", 0});
    if (!ratio) return std::nullopt;
    StudyVerdict verdict = judge_factor(*ratio, quoted_gain("001.placement"));
    return verdict;
}

}  // namespace

std::vector<StudyFigure> work_001_ycsb_figures(bool quick) {
    std::vector<StudyFigure> all = figures_5_1(quick);
    for (StudyFigure& one : figures_5_2(quick)) all.push_back(std::move(one));
    all.push_back(figure_5_4(quick));
    all.push_back(figure_6_1(quick));
    return all;
}

std::vector<StudyFinding> work_001_ycsb_findings() {
    return {
        faster_lookups("Unix", "TCP"),
        faster_lookups("RDMA", "TCP"),
        faster_lookups("RDMA", "Unix"),
        faster_lookups("shared memory", "RDMA"),
        faster_lookups("bare table", "shared memory"),
        {"5.1", "table 5.1", "The median stays about the same at every load",
         fmt::format("the greatest to the least at most {} times the work's", judged_tolerance),
         medians_stay},
        {"5.1", "table 5.1", "The mean of the least load is higher than that of more load",
         "mean at 1/6 to that at 3/6 more than 1, and not more than 3/2 of the work's",
         little_load_takes_longer},
        growth_of("max", most_of_work, 5, 4, "Overload begins at 5/6: the longest grows"),
        growth_of("99 %", p99_of_work, 6, 1, "99 % take far longer in overload"),
        growth_of("max", most_of_work, 6, 1, "The longest of an overload is abysmal: over 9 ms"),
        {"5.1", "6.1", "Over the network a lookup takes 2.3 us, on average",
         fmt::format("over a link of 40 Gb/s, 1.7 us to and fro, within a factor of {}",
                     judged_tolerance),
         network_lookup},
        {"5.2", "5.4", "The best placement on NUMA nodes is over 40 % faster than the worst",
         fmt::format("server on the other node to one on the same within a factor of {}",
                     judged_tolerance),
         placement_matters},
    };
}

}  // namespace millrace::bench
