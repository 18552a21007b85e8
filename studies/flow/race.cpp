#include "race.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

#include "bench/framework/statistics.hpp"
#include "figures.hpp"

namespace millrace::bench {
namespace {

constexpr double far_behind = 2;
constexpr std::size_t finalists = 8;
constexpr int heats = 2;  ///< after the first round, before the finalists are alone

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
    }
}

void sort_by_figure(const Race& race, std::vector<Racer*>& racers) {
    std::stable_sort(racers.begin(), racers.end(), [&](const Racer* one, const Racer* other) {
        return is_better(race.load, one->figure(), other->figure());
    });
}

/// The best `most` of them that are not far behind, and those that stay.
std::vector<Racer*> leading(const Race& race, std::vector<Racer*> racers, std::size_t most) {
    std::erase_if(racers, [](const Racer* racer) { return racer->figures.empty(); });
    if (racers.empty()) return racers;
    sort_by_figure(race, racers);
    const double best = racers.front()->figure();
    std::size_t place = 0;
    std::erase_if(racers, [&](const Racer* racer) {
        const double figure = racer->figure();
        const bool is_far = race.load.burst == 0 ? figure * far_behind < best
                                                 : figure > far_behind * best;
        return (place++ >= most || is_far) && !racer->stays;
    });
    return racers;
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

double seconds_of(const Race& race) {
    constexpr double setup = 0.012;  // processes, rings
    const double each = std::chrono::duration<double>{race.limit}.count() + setup;
    const double all = static_cast<double>(every_racer(race.wanted).size());
    return each * (all + heats * all / 3 + static_cast<double>(finalists) * race.rounds);
}

std::vector<Racer> run(const Race& race, std::vector<Racer> racers) {
    std::vector<Racer*> running;
    running.reserve(racers.size());
    for (Racer& racer : racers) running.push_back(&racer);
    for (int round = 0; round <= heats; ++round) {
        for (Racer* const racer : running) measure_racer(race, *racer);
        running = leading(race, std::move(running), racers.size());
    }
    running = leading(race, std::move(running), finalists);
    // What made a finalist of it was luck in part: the last rounds count alone.
    for (Racer* const racer : running) racer->figures.clear();
    for (int round = 0; round != race.rounds; ++round) {
        for (Racer* const racer : running) {
            if (racer->failure.empty()) measure_racer(race, *racer);
        }
    }
    std::vector<Racer> ranked;
    const auto take = [&](auto&& wanted) {
        std::vector<Racer*> some;
        for (Racer& racer : racers) {
            if (!racer.figures.empty() && wanted(&racer)) some.push_back(&racer);
        }
        sort_by_figure(race, some);
        for (Racer* const racer : some) ranked.push_back(*racer);
    };
    const auto is_finalist = [&](const Racer* racer) {
        return std::find(running.begin(), running.end(), racer) != running.end();
    };
    take(is_finalist);
    take([&](const Racer* racer) { return !is_finalist(racer); });
    for (const Racer& racer : racers) {
        if (racer.figures.empty()) ranked.push_back(racer);
    }
    return ranked;
}

}  // namespace millrace::bench
