// The registry of bars and the command that checks them.
#include "bars.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command_line/output.hpp"
#include "millrace/base/error.hpp"
#include "report.hpp"

namespace millrace::bench {
namespace {

std::vector<Bar>& registry() {
    static std::vector<Bar> bars;
    return bars;
}

/// A line for a bar: one, as scripts read it, unless a terminal is narrower.
void print_line(const std::string& line) {
    constexpr std::size_t indent = 12;  // where the names of bars are
    const auto width = tools::terminal_width();
    fmt::print("{}\n", width ? tools::wrapped(line, indent, *width) : line);
}

/// By the medians. Where nothing is promised, the least is told.
bool is_worse(const Summary& one, const Summary& other, Sense sense) noexcept {
    return sense == Sense::at_most ? one.median > other.median : one.median < other.median;
}

bool keeps(const Summary& measured, double limit, Sense sense) noexcept {
    switch (sense) {
        case Sense::at_most: return measured.median <= limit;
        case Sense::at_least: return measured.median >= limit;
        case Sense::reported: break;
    }
    return true;
}

Results rounds_of(const BarPoint& point, const RoundOptions& options) {
    Rounds rounds{options};
    for (const Contender& contender : point.ours) rounds.add(contender);
    for (const Contender& contender : point.others) rounds.add(contender);
    return rounds.run();
}

Summary worst_ratio(const BarPoint& point, const Results& results, Sense sense) {
    std::optional<Summary> worst;
    for (const Contender& our : point.ours) {
        for (const Contender& other : point.others) {
            const Summary ratio = results.ratio(our.name, other.name);
            if (!worst.has_value() || is_worse(ratio, *worst, sense)) worst = ratio;
        }
    }
    return worst.value_or(Summary{});
}

/// Whether more rounds might tell otherwise. That one of many points is short has to be surer than
/// that it holds: by luck one in ten of all that hold would be short.
bool is_open(const Summary& measured, double limit, Sense sense) noexcept {
    if (keeps(measured, limit, sense)) {
        return measured.median_low < limit && limit < measured.median_high;
    }
    return measured.median_least < limit && limit < measured.median_most;
}

Summary worst_ratio(const BarPoint& point, double limit, Sense sense, const RoundOptions& options) {
    Results results = rounds_of(point, options);
    Summary worst = worst_ratio(point, results, sense);
    RoundOptions more = options;
    more.rounds = 2 * options.rounds;
    // A few rounds that all fall short are not enough to say so.
    bool goes_on = !keeps(worst, limit, sense) || is_open(worst, limit, sense);
    constexpr int most_times = 7;
    for (int times = 0; goes_on && times < most_times; ++times) {
        results.add(rounds_of(point, more));
        worst = worst_ratio(point, results, sense);
        goes_on = is_open(worst, limit, sense);
    }
    return worst;
}

}  // namespace

Bar ratio_bar(std::string group, std::string name, double limit, Sense sense, Contender above,
              Contender below) {
    return {.group = std::move(group),
            .name = std::move(name),
            .limit = limit,
            .sense = sense,
            .unit = "x",
            .measure = [above = std::move(above),
                        below = std::move(below)](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add(above);
                rounds.add(below);
                return rounds.run().ratio(above.name, below.name);
            }};
}

Bar worst_ratio_bar(std::string group, std::string name, double limit, Sense sense,
                    std::vector<BarPoint> points) {
    return {.group = std::move(group),
            .name = std::move(name),
            .limit = limit,
            .sense = sense,
            .unit = "x",
            .measure = [points = std::move(points), limit, sense](const RoundOptions& options) {
                std::optional<Summary> worst;
                for (const BarPoint& point : points) {
                    const Summary here = worst_ratio(point, limit, sense, options);
                    if (!worst.has_value() || is_worse(here, *worst, sense)) worst = here;
                }
                return worst.value_or(Summary{});
            }};
}

bool holds(const Bar& bar, const Summary& measured) noexcept {
    return measured.rounds != 0 && keeps(measured, bar.limit, bar.sense);
}

BarRegistration::BarRegistration(Bar bar) { registry().push_back(std::move(bar)); }

std::vector<Bar> registered_bars() {
    auto bars = registry();
    std::stable_sort(bars.begin(), bars.end(),
                     [](const Bar& a, const Bar& b) { return a.group < b.group; });
    return bars;
}

int run_bars(const BarOptions& options) { return run_bars(options, registered_bars()); }

int run_bars(const BarOptions& options, const std::vector<Bar>& bars) {
    options.json.check();
    const bool lines = !options.json.in_place_of_lines();
    const bool terminal = isatty(STDERR_FILENO) != 0;
    nlohmann::json document{{"machine", describe_machine()}, {"bars", nlohmann::json::array()}};
    int found = 0;
    int kept = 0;
    int unmeasured = 0;
    int reported = 0;
    for (const auto& bar : bars) {
        if (!options.only.empty() && bar.group != options.only) continue;
        if (bar.name.find(options.name) == std::string::npos) continue;
        ++found;
        Summary measured;
        std::string failure;
        std::string figures;
        auto contenders = nlohmann::json::object();
        RoundOptions rounds{.rounds = options.rounds};
        if (terminal) {
            rounds.progress = [&](int round, const std::string& contender) {
                fmt::print(stderr, "\r\033[K{}: round {} of {}, {}", bar.name, round,
                           options.rounds, contender);
                std::fflush(stderr);
            };
        }
        rounds.finished = [&](const Results& results) {
            // A bar of many points has rounds for each.
            figures += table_of(results);
            auto these = json_of(results);
            if (contenders.empty()) {
                contenders = std::move(these);
            } else {
                for (auto& each : these["measurements"]) contenders["measurements"].push_back(each);
            }
        };
        bool missing = false;  // what it needs is not on this machine
        try {
            measured = bar.measure(rounds);
        } catch (const base::Error& error) {
            missing = error.code() == base::ErrorCode::not_found;
            failure = missing ? error.remedy() : error.what();
        } catch (const std::exception& error) {
            failure = error.what();
        }
        if (terminal) fmt::print(stderr, "\r\033[K");
        std::fflush(stderr);
        const bool good = failure.empty() && holds(bar, measured);
        const bool is_promise = bar.sense != Sense::reported;
        kept += good && is_promise ? 1 : 0;
        reported += good && !is_promise ? 1 : 0;
        unmeasured += missing ? 1 : 0;
        const auto* verdict = !good        ? missing ? "not measured" : "short"
                              : is_promise ? "ok"
                                           : "reported";
        const auto* relation = bar.sense == Sense::at_most ? "at most" : "at least";
        const auto promise =
            is_promise ? fmt::format("{} {}  ", relation, humane(bar.limit)) : std::string{};
        if (lines && failure.empty()) {
            print_line(fmt::format(
                "{:<11} {:<64} {:>8} {:<8} ({} to {}, {} rounds, {} discarded)  {}{}", bar.group,
                bar.name, humane(measured.median), bar.unit, humane(measured.low),
                humane(measured.high), measured.rounds, measured.discarded, promise, verdict));
        } else if (lines) {
            print_line(fmt::format("{:<11} {:<64} cannot be measured: {}  {}{}", bar.group,
                                   bar.name, failure, promise, verdict));
        }
        if (lines && options.figures) fmt::print("{}\n", figures);
        std::fflush(stdout);
        auto entry = json_of(measured);
        entry["group"] = bar.group;
        entry["name"] = bar.name;
        entry["unit"] = bar.unit;
        if (is_promise) entry["limit"] = bar.limit;
        entry["sense"] = is_promise ? relation : "reported";
        entry["verdict"] = verdict;
        if (!failure.empty()) entry["failure"] = failure;
        entry["rounds_of"] = std::move(contenders);
        document["bars"].push_back(std::move(entry));
    }
    if (options.json.wanted()) options.json.write(document.dump(2));
    if (found == 0) {
        fmt::print(stderr, "millrace bench bars: no bar is registered{}{}{}{}\n",
                   options.only.empty() ? "" : " in the group ", options.only,
                   options.name.empty() ? "" : " whose name contains ", options.name);
        return 2;
    }
    const int promised = found - reported;
    if (lines) print_line(std::string{measured_where});
    if (lines && unmeasured == 0) fmt::print("{} of {} bars hold\n", kept, promised);
    if (lines && unmeasured != 0) {
        fmt::print("{} of {} bars hold, {} not measured\n", kept, promised, unmeasured);
    }
    return kept + unmeasured == promised && kept + reported != 0 ? 0 : 1;
}

}  // namespace millrace::bench
