// Whether choose() is right: workloads by a seed, and all points racing at each.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/flow/queue_ends.hpp"
#include "bench/framework/report.hpp"
#include "bench/framework/statistics.hpp"
#include "command_line/output.hpp"
#include "figures.hpp"
#include "millrace/base/error.hpp"
#include "millrace/flow/advice.hpp"
#include "millrace/ring/design_name.hpp"
#include "studies/framework/progress.hpp"
#include "tune.hpp"

namespace millrace::bench {
namespace {

/// Numbers that are the same everywhere: the standard's distributions differ between libraries.
class Dice {
  public:
    explicit Dice(std::uint64_t seed) : engine_{seed} {}
    std::uint64_t below(std::uint64_t count) { return engine_() % count; }
    bool one_in(std::uint64_t count) { return below(count) == 0; }
    /// From `least` to `most`, as many below as above the middle of their logarithms.
    double between(double least, double most) {
        const double part = static_cast<double>(engine_() >> 11U) * 0x1.0p-53;
        return least * std::pow(most / least, part);
    }

  private:
    std::mt19937_64 engine_;
};

/// Of the best one's figure.
constexpr double enough = 0.9;

struct JudgedAdvice {
    Workload workload{};
    std::string advised{};
    std::string by_rules{};
    std::string best{};
    double best_figure = 0;
    double share = 0;
    double share_by_rules = 0;
    double share_of_default = 0;
};

double share_of(const std::vector<Standing>& ranked, ring::Design design) {
    const auto found = std::find_if(ranked.begin(), ranked.end(), [&](const Standing& standing) {
        return standing.racer->design.design == design;
    });
    return found == ranked.end() ? 0 : found->share;
}

JudgedAdvice judge_one(const Workload& workload, const flow::Profile& profile, Race race) {
    const flow::Advice advice = flow::choose(workload.wanted, profile);
    const flow::Advice by_rules = flow::choose(workload.wanted);
    JudgedAdvice judged{.workload = workload,
                        .advised = ring::to_string(*advice.design),
                        .by_rules = ring::to_string(*by_rules.design)};
    for (Racer& racer : race.racers) {
        const ring::Design design = racer.design.design;
        racer.stays =
            design == *advice.design || design == *by_rules.design || design == ring::design_2;
    }
    for (int round = 0; round != race.rounds(); ++round) race.run_round();
    const std::vector<Standing> ranked = standings(race);
    if (ranked.empty()) return judged;
    judged.best = ring::to_string(ranked.front().racer->design.design);
    judged.best_figure = ranked.front().racer->figure();
    judged.share = share_of(ranked, *advice.design);
    judged.share_by_rules = share_of(ranked, *by_rules.design);
    judged.share_of_default = share_of(ranked, ring::design_2);
    return judged;
}

std::string best_words(const JudgedAdvice& judged) {
    return judged.workload.load.burst == 0 ? humane(judged.best_figure) + " items/s"
                                           : fmt::format("{} us", humane(judged.best_figure / 1e3));
}

nlohmann::json json_of(const JudgedAdvice& judged) {
    return {{"workload", flow::to_string(judged.workload.wanted)},
            {"producer_works_ns", judged.workload.load.producer_works.count()},
            {"consumer_works_ns", judged.workload.load.consumer_works.count()},
            {"best", judged.best},
            {"best_figure", judged.best_figure},
            {"unit", judged.workload.load.burst == 0 ? "items/s" : "ns"},
            {"advised", judged.advised},
            {"share", judged.share},
            {"advised_by_rules", judged.by_rules},
            {"share_by_rules", judged.share_by_rules},
            {"share_of_default", judged.share_of_default}};
}

}  // namespace

std::vector<Workload> draw_workloads(int count, std::uint64_t seed) {
    Dice dice{seed};
    std::vector<Workload> drawn;
    for (int i = 0; i < count; ++i) {
        Workload one;
        one.wanted.item_bytes = whole_sizes[dice.below(std::size(whole_sizes))];
        // Half never stop, a quarter come one at a time, a quarter together.
        const std::uint64_t rhythm = dice.below(4);
        if (rhythm == 2) one.wanted.burst = 1;
        if (rhythm == 3) one.wanted.burst = static_cast<std::uint32_t>(dice.between(2, 513));
        one.wanted.aim = one.wanted.burst == 0 ? flow::Aim::throughput : flow::Aim::latency;
        one.wanted.producer_is_busy = dice.one_in(2);
        one.wanted.consumer_is_busy = dice.one_in(2);
        one.wanted.spare_core = dice.one_in(2);
        const auto works = [&](bool is_busy) {
            const double drawn_ns = dice.between(100, 2000);  // drawn in any case
            return std::chrono::nanoseconds{is_busy ? static_cast<std::int64_t>(drawn_ns) : 0};
        };
        one.load.burst = one.wanted.burst;
        one.load.producer_works = works(one.wanted.producer_is_busy);
        one.load.consumer_works = works(one.wanted.consumer_is_busy);
        drawn.push_back(one);
    }
    return drawn;
}

int judge(const TuneOptions& options) {
    options.json.check();
    const flow::ProfileOrigin origin = origin_of(options);
    const flow::Profile profile = flow::Profile::load(
        options.output.empty() ? flow::Profile::default_path(origin.device, origin.mode)
                               : options.output);
    const std::uint64_t seed = options.seed.value_or(std::random_device{}());
    std::vector<Workload> workloads = draw_workloads(options.judged.value_or(20), seed);
    std::vector<double> costs;
    std::vector<Race> races;
    for (const Workload& workload : workloads) {
        Race race{.wanted = workload.wanted,
                  .load = workload.load,
                  .device = origin.device,
                  .mode = origin.mode,
                  .last_rounds = 11,
                  .racers = every_racer(workload.wanted)};
        if (options.quick) {
            race.limit = std::chrono::milliseconds{1};
            race.last_rounds = 1;
        }
        costs.push_back(0);
        for (int round = 0; round != race.rounds(); ++round) costs.back() += race.seconds_of(round);
        races.push_back(std::move(race));
    }
    Progress progress{std::move(costs)};
    tools::Table table{"items"};
    for (const char* const heading :
         {"best point", "it does", "advised", "share", "by rules", "share", "default's\nshare"}) {
        table.add_column(heading);
    }
    auto list = nlohmann::json::array();
    int good = 0;
    int good_by_rules = 0;
    int good_by_default = 0;
    for (std::size_t i = 0; i < workloads.size(); ++i) {
        progress.before(i, flow::to_string(workloads[i].wanted));
        const JudgedAdvice judged = judge_one(workloads[i], profile, std::move(races[i]));
        good += judged.share >= enough ? 1 : 0;
        good_by_rules += judged.share_by_rules >= enough ? 1 : 0;
        good_by_default += judged.share_of_default >= enough ? 1 : 0;
        const auto& load = workloads[i].load;
        table.add_row(
            {fmt::format("{} B, burst {}, works {}/{} ns{}", workloads[i].wanted.item_bytes,
                         load.burst, load.producer_works.count(), load.consumer_works.count(),
                         workloads[i].wanted.spare_core ? ", mover" : ""),
             judged.best, best_words(judged), judged.advised, fmt::format("{:.2f}", judged.share),
             judged.by_rules, fmt::format("{:.2f}", judged.share_by_rules),
             fmt::format("{:.2f}", judged.share_of_default)});
        list.push_back(json_of(judged));
    }
    progress.over();
    const auto count = static_cast<int>(workloads.size());
    if (options.json.wanted()) {
        options.json.write(nlohmann::json{
            {"seed", seed},
            {"machine", describe_machine()},
            {"device", origin.device},
            {"mode", origin.mode},
            {"enough", enough},
            {"good", good},
            {"good_by_rules", good_by_rules},
            {"workloads",
             std::move(list)}}.dump(1));
    }
    if (!options.json.in_place_of_lines()) {
        fmt::print(
            "{}\n{}Seed {}: at least {:.0f} % of the best point's figure in {} of {} workloads by "
            "the profile, in {} by the built-in rules, in {} by the default point\n",
            measured_where, table.text(), seed, 100 * enough, good, count, good_by_rules,
            good_by_default);
    }
    return good == count ? 0 : 1;
}

}  // namespace millrace::bench
