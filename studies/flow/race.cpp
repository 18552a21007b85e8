#include "race.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <utility>

#include "bench/framework/statistics.hpp"
#include "figures.hpp"

namespace millrace::bench {
namespace {

constexpr double far_behind = 2;
constexpr double hopeless = 4;  ///< after one measurement, which may have been disturbed

FlowCase case_of(const Race& race, const ring::NamedDesign& design) {
    const flow::Options options = flow::options_for(race.wanted, design);
    FlowCase chosen;
    chosen.design = design.design;
    chosen.item_bytes = race.wanted.item_bytes;
    chosen.capacity = options.ring.capacity.value();
    chosen.receive_pool = options.ring.receive_pool;
    chosen.batch = options.ring.batch;
    chosen.mode = race.mode.empty() ? "fast" : race.mode;  // which means nothing elsewhere
    chosen.device = race.device;
    chosen.carrier = ring::Carrier::automatic;
    chosen.limit = race.limit;
    return chosen;
}

void measure_racer(const Race& race, Racer& racer) {
    try {
        racer.figures.push_back(measure_load(case_of(race, racer.design), race.load));
    } catch (const std::exception& error) {
        racer.failure = error.what();
        racer.figures.clear();
        racer.runs = false;
    }
}

std::vector<Racer*> running(Race& race) {
    std::vector<Racer*> list;
    for (Racer& racer : race.racers) {
        if (racer.runs) list.push_back(&racer);
    }
    std::stable_sort(list.begin(), list.end(), [&](const Racer* one, const Racer* other) {
        return race.is_better(one->figure(), other->figure());
    });
    return list;
}

/// Those beyond `most`, or behind the best by that factor, leave.
void let_go(Race& race, std::size_t most, double behind) {
    const std::vector<Racer*> list = running(race);
    for (std::size_t place = 0; place != list.size(); ++place) {
        const double figure = list[place]->figure();
        const double best = list.front()->figure();
        const bool is_behind =
            race.load.burst == 0 ? figure * behind < best : figure > behind * best;
        list[place]->runs = list[place]->stays || (place < most && !is_behind);
    }
}

/// The median of the rounds' ratios, of how much better `one` is; above 1: it is.
double advantage(const Race& race, const Racer& one, const Racer& other) {
    std::vector<double> ratios;
    const std::size_t rounds = std::min(one.figures.size(), other.figures.size());
    for (std::size_t i = 0; i != rounds; ++i) {
        const double ratio = one.figures[i] / other.figures[i];
        ratios.push_back(race.load.burst == 0 ? ratio : 1 / ratio);
    }
    return quantile(std::move(ratios), 0.5);
}

}  // namespace

double Racer::figure() const { return quantile(figures, 0.5); }

std::vector<Racer> every_racer(const flow::Requirements& wanted) {
    std::vector<Racer> racers;
    const auto add = [&](ring::Design design) { racers.push_back({.design = {design, {}}}); };
    for (const ring::Design point : every_point()) {
        add(point);
        add(ring::with(point, ring::Batching::dynamic));
        if (wanted.burst == 0) add(ring::with(point, ring::Batching::fixed));
        if (wanted.spare_core) {
            add(ring::with(point, ring::Batching::dynamic, ring::Mover::active));
        }
    }
    return racers;
}

double Race::seconds_of(int one) const {
    constexpr double setup = 0.006;  // processes, rings
    const auto all = static_cast<double>(racers.size());
    const double running_then = one == 0      ? all
                                : one < heats ? all / 2
                                              : std::min(all, static_cast<double>(finalists));
    return running_then * (std::chrono::duration<double>{limit}.count() + setup);
}

void Race::run_round() {
    for (Racer* const racer : running(*this)) measure_racer(*this, *racer);
    ++round;
    if (round < heats) let_go(*this, racers.size(), round == 1 ? hopeless : far_behind);
    if (round == heats) {
        let_go(*this, finalists, far_behind);
        // What made a finalist of it was luck in part: the last rounds count alone.
        for (Racer& racer : racers) {
            if (racer.runs && last_rounds != 0) racer.figures.clear();
        }
    }
}

std::vector<Standing> standings(const Race& race) {
    std::vector<Standing> list;
    std::size_t finalists = 0;
    for (const bool final : {true, false}) {
        for (const Racer& racer : race.racers) {
            if (racer.runs == final && !racer.figures.empty()) list.push_back({&racer, 0});
        }
        if (final) finalists = list.size();
    }
    if (list.empty()) return list;
    // By the typical ratio to the finalists' median of the same round.
    const auto finals = list.begin() + static_cast<std::ptrdiff_t>(finalists);
    const auto by_figure = [&](const Standing& one, const Standing& other) {
        return race.is_better(one.racer->figure(), other.racer->figure());
    };
    std::sort(list.begin(), finals, by_figure);
    std::sort(finals, list.end(), by_figure);
    if (finalists > 1) {
        const Racer& middle = *list[finalists / 2].racer;
        for (auto at = list.begin(); at != finals; ++at) {
            at->share = advantage(race, *at->racer, middle);
        }
        std::stable_sort(list.begin(), finals, [](const Standing& one, const Standing& other) {
            return one.share > other.share;
        });
    }
    const Racer& best = *list.front().racer;
    for (auto at = list.begin(); at != finals; ++at) {
        at->share = at == list.begin() ? 1 : advantage(race, *at->racer, best);
    }
    for (auto at = finals; at != list.end(); ++at) {
        const double ratio = at->racer->figure() / best.figure();
        at->share = std::min(1.0, race.load.burst == 0 ? ratio : 1 / ratio);
    }
    return list;
}

}  // namespace millrace::bench
