#include "tune.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
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
    return load.burst == 0 ? humane(figure) + " items/s" : fmt::format("{} us", humane(figure / 1e3));
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

/// A profile keeps what is not far behind, and the default point to compare with.
bool is_worth_a_line(const flow::Load& load, const Racer& racer, double best) {
    constexpr double far_behind = 2;
    if (racer.figures.empty()) return false;
    const double figure = racer.figure();
    const bool is_far = load.burst == 0 ? figure * far_behind < best : figure > far_behind * best;
    return !is_far || racer.design.design == ring::design_2;
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
    origin.is_stored = stores(origin);
    const std::vector<flow::Load> loads = loads_to_measure(options.quick);
    std::vector<Race> races;
    for (const flow::Load& load : loads) {
        races.push_back(race_for(load, origin));
        if (options.quick) {
            races.back().limit = std::chrono::milliseconds{1};
            races.back().rounds = 1;
        }
    }
    std::vector<double> costs;
    for (const Race& race : races) costs.push_back(seconds_of(race));
    Progress progress{std::move(costs)};
    std::vector<flow::ProfileLine> lines;
    tools::Table table{"items"};
    table.add_column("best point");
    table.add_column("it does");
    table.add_column("the default\npoint does");
    for (std::size_t i = 0; i < races.size(); ++i) {
        const flow::Load& load = loads[i];
        progress.before(i, load_words(load));
        const std::vector<Racer> ranked = run(races[i], every_racer(races[i].wanted));
        if (ranked.front().figures.empty()) {
            throw base::Error{base::ErrorCode::system, "measure the points of flow queues",
                              load_words(load), ranked.front().failure,
                              "see whether millrace doctor finds what hinders"};
        }
        const double best = ranked.front().figure();
        std::string of_default = "-";
        for (const Racer& racer : ranked) {
            if (is_worth_a_line(load, racer, best)) {
                lines.push_back({load, racer.design, racer.figure()});
            }
            if (racer.design.design == ring::design_2 && !racer.figures.empty()) {
                of_default = figure_words(load, racer.figure());
            }
        }
        progress.told(fmt::format("{}: {}, {}", load_words(load), name_of(ranked.front()),
                                  figure_words(load, best)));
        table.add_row({load_words(load), name_of(ranked.front()), figure_words(load, best),
                       of_default});
    }
    progress.over();
    const flow::Profile profile{std::move(origin), std::move(lines)};
    profile.save(path);
    if (options.json.wanted()) options.json.write(profile.text());
    if (options.json.in_place_of_lines()) return 0;
    fmt::print("{}\n{}{}, {}: {} lines, written to {}\n", measured_where, table.text(),
               profile.origin().device,
               profile.origin().is_stored ? "items stored" : "items posted",
               profile.lines().size(), path);
    return 0;
}

}  // namespace millrace::bench
