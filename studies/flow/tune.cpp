#include "tune.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "bench/flow/queue_ends.hpp"
#include "bench/framework/environment_scope.hpp"
#include "bench/framework/report.hpp"
#include "command_line/output.hpp"
#include "figures.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/verbs/device.hpp"
#include "studies/framework/progress.hpp"

namespace millrace::bench {
namespace {

std::string figure_words(const flow::Load& load, double figure) {
    return load.burst == 0 ? humane(figure) + " items/s"
                           : fmt::format("{} us", humane(figure / 1e3));
}

std::string load_words(const flow::Load& load) {
    const std::string rhythm = load.burst == 0   ? "never stop"
                               : load.burst == 1 ? "one at a time"
                                                 : fmt::format("{} together", load.burst);
    return fmt::format("{} B, {}{}{}", load.item_bytes, rhythm,
                       load.producer_is_busy ? ", producer busy" : "",
                       load.consumer_is_busy ? ", consumer busy" : "");
}

std::string name_of(const Racer& racer) {
    return ring::to_string(racer.design.design, racer.design.batch);
}

/// True if items of the default point are stored on that device.
bool stores(const flow::ProfileOrigin& where) {
    FlowCase chosen;
    chosen.design = ring::design_1;
    chosen.device = where.device;
    chosen.mode = where.mode.empty() ? "fast" : where.mode;
    chosen.carrier = ring::Carrier::automatic;
    chosen.capacity = 64;
    chosen.items = 1000;
    return measure_stream(chosen).producer_requests < 0.5;
}

/// Before time goes into measuring. The former profile stays until this one is measured.
void check_profile_can_be_written(const std::string& path) {
    std::error_code ignored;  // what hinders is said below
    std::filesystem::create_directories(std::filesystem::path{path}.parent_path(), ignored);
    const std::string unfinished = path + ".unfinished";
    tools::check_writable(unfinished, "write a profile of flow structures");
    (void)std::remove(unfinished.c_str());
}

/// A profile keeps what is not far behind, and the default point to compare with.
bool is_worth_a_line(const Standing& standing) {
    return standing.share > 0.5 || standing.racer->design.design == ring::design_2;
}

/// A round of every race, then the next: what the machine does for some seconds hits few rounds of
/// each.
void run_all(std::vector<Race>& races, const std::vector<flow::Load>& loads) {
    std::vector<double> costs;
    const int rounds = races.front().rounds();
    for (int round = 0; round != rounds; ++round) {
        for (const Race& race : races) costs.push_back(race.seconds_of(round));
    }
    Progress progress{std::move(costs)};
    std::size_t step = 0;
    for (int round = 0; round != rounds; ++round) {
        for (std::size_t i = 0; i != races.size(); ++i) {
            progress.before(
                step++, fmt::format("round {} of {}, {}", round + 1, rounds, load_words(loads[i])));
            races[i].run_round();
        }
    }
    progress.over();
}

}  // namespace

std::vector<flow::Load> loads_to_measure(bool quick) {
    if (quick) return {{.item_bytes = 64}, {.item_bytes = 64, .burst = 1}};
    std::vector<flow::Load> loads;
    for (const std::size_t bytes : map_sizes) {
        loads.push_back({.item_bytes = bytes});
        loads.push_back({.item_bytes = bytes, .producer_is_busy = true});
        loads.push_back({.item_bytes = bytes, .consumer_is_busy = true});
        for (const std::uint32_t burst : {1U, 16U, 256U}) {
            loads.push_back({.item_bytes = bytes, .burst = burst});
        }
    }
    return loads;
}

Race race_for(const flow::Load& load, const flow::ProfileOrigin& where) {
    constexpr std::chrono::nanoseconds none{0};
    Race race;
    race.wanted = {.item_bytes = load.item_bytes,
                   .burst = load.burst,
                   .producer_is_busy = load.producer_is_busy,
                   .consumer_is_busy = load.consumer_is_busy,
                   .spare_core = true};
    race.load = {.burst = load.burst,
                 .producer_works = load.producer_is_busy ? busy_work : none,
                 .consumer_works = load.consumer_is_busy ? busy_work : none};
    race.device = where.device;
    race.mode = where.mode;
    race.finalists = 12;
    race.racers = every_racer(race.wanted);
    for (Racer& racer : race.racers) racer.stays = racer.design.design == ring::design_2;
    return race;
}

flow::ProfileOrigin origin_of(const TuneOptions& options) {
    const auto open = [&] {
        const auto endpoint = connect::Endpoint::open(options.device);
        const verbs::Context& context = endpoint->context();
        return flow::ProfileOrigin{
            .device = std::string{context.name()},
            .mode = context.is_soft() ? verbs::soft_mode() : std::string{},
            .machine = flow::Profile::this_machine(),
            .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))};
    };
    if (options.mode.empty()) return open();
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", options.mode};
    return open();
}

int tune(const TuneOptions& options) {
    options.json.check();
    flow::ProfileOrigin origin = origin_of(options);
    const std::string path = options.output.empty()
                                 ? flow::Profile::default_path(origin.device, origin.mode)
                                 : options.output;
    check_profile_can_be_written(path);
    origin.is_stored = stores(origin);
    const std::vector<flow::Load> loads = loads_to_measure(options.quick);
    std::vector<Race> races;
    for (const flow::Load& load : loads) {
        races.push_back(race_for(load, origin));
        if (options.quick) {
            races.back().limit = std::chrono::milliseconds{1};
            races.back().last_rounds = 1;
        }
    }
    run_all(races, loads);
    std::vector<flow::ProfileLine> lines;
    tools::Table table{"items"};
    table.add_column("best point");
    table.add_column("it does");
    table.add_column("the default's\nshare of that");
    for (std::size_t i = 0; i < races.size(); ++i) {
        const flow::Load& load = loads[i];
        const std::vector<Standing> ranked = standings(races[i]);
        if (ranked.empty()) {
            throw base::Error{base::ErrorCode::system, "measure the points of flow queues",
                              load_words(load), races[i].racers.front().failure,
                              "see whether millrace doctor finds what hinders"};
        }
        const double best = ranked.front().racer->figure();
        std::string of_default = "-";
        for (const Standing& standing : ranked) {
            const double figure = load.burst == 0 ? best * standing.share : best / standing.share;
            if (is_worth_a_line(standing)) {
                lines.push_back({load, standing.racer->design, figure});
            }
            if (standing.racer->design.design == ring::design_2) {
                of_default = fmt::format("{:.2f}", standing.share);
            }
        }
        table.add_row({load_words(load), name_of(*ranked.front().racer), figure_words(load, best),
                       of_default});
    }
    const flow::Profile profile{std::move(origin), std::move(lines)};
    profile.save(path);
    if (options.json.wanted()) options.json.write(profile.text());
    if (options.json.in_place_of_lines()) return 0;
    fmt::print("{}\n{}{}, {}: {} lines, written to {}\n", measured_where, table.text(),
               profile.origin().device,
               profile.origin().is_stored ? "items stored" : "items posted", profile.lines().size(),
               path);
    return 0;
}

}  // namespace millrace::bench
