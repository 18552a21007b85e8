// Which of the points that a profile knows is the best for a load.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/flow/profile.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::flow {
namespace {

/// What is as good within what runs differ by is left to the simpler one.
constexpr double alike = 1.05;
/// Of the best at its load: what a point counts as that a profile leaves out, as `millrace tune`
/// leaves out what is slower than that.
constexpr double left_out = 2;

/// The simplest first: without threads, without batches, the default point.
std::array<std::size_t, 3> complexity(const ring::NamedDesign& named) {
#define MILLRACE_LISTED(D) D,
    static constexpr std::array points{MILLRACE_EVERY_DESIGN(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
    const ring::Design flows = ring::flows_of(named.design);
    const auto at = std::find(points.begin(), points.end(), flows) - points.begin();
    const std::size_t place = flows == ring::design_2   ? 0
                              : flows == ring::design_1 ? 1
                                                        : static_cast<std::size_t>(at) + 2;
    return {static_cast<std::size_t>(named.design.mover == ring::Mover::active),
            named.design.batching == ring::Batching::none      ? 0U
            : named.design.batching == ring::Batching::dynamic ? 1U
                                                               : 2U,
            place};
}

/// Two neighbours among what was measured, and how much the upper one counts.
struct Between {
    std::size_t lower = 0;
    std::size_t upper = 0;
    double part = 0;
};
Between between(std::vector<std::size_t> measured, std::size_t asked) {
    std::sort(measured.begin(), measured.end());
    const auto upper = std::lower_bound(measured.begin(), measured.end(), asked);
    if (upper == measured.end()) return {measured.back(), measured.back(), 0};
    if (upper == measured.begin() || *upper == asked) return {*upper, *upper, 0};
    const std::size_t lower = *std::prev(upper);
    const auto log = [](std::size_t value) { return std::log2(static_cast<double>(value)); };
    return {lower, *upper, (log(asked) - log(lower)) / (log(*upper) - log(lower))};
}

/// What one item, or one burst, takes.
double cost_of(const ProfileLine& line) {
    return line.load.burst == 0 ? 1e9 / line.figure : line.figure;
}

int unlike(const Load& one, const Load& other) {
    return (one.burst == 0) != (other.burst == 0)
               ? std::numeric_limits<int>::max()
               : (one.producer_is_busy != other.producer_is_busy) +
                     (one.consumer_is_busy != other.consumer_is_busy);
}

bool may_be_taken(const ring::NamedDesign& named, const Load& load, bool spare_core) {
    // The last items of a fixed batch wait for a flush.
    if (named.design.batching == ring::Batching::fixed && load.burst != 0) return false;
    return spare_core || named.design.mover == ring::Mover::passive;
}

std::string words_of(const Load& load, double cost) {
    const std::string what =
        load.burst == 0 ? fmt::format("{:.3g} million items a second", 1e3 / cost)
        : load.burst == 1
            ? fmt::format("{:.3g} us until an item is taken", cost / 1e3)
            : fmt::format("{:.3g} us until {} items are taken", cost / 1e3, load.burst);
    return fmt::format("{} of {} B", what, load.item_bytes);
}

}  // namespace

PointChoice choose_point(const Profile& profile, const Load& load, bool spare_core,
                         ring::Design usual) {
    // The lines of the kind of load that is most like this one.
    int least = std::numeric_limits<int>::max();
    for (const ProfileLine& line : profile.lines())
        least = std::min(least, unlike(line.load, load));
    if (least == std::numeric_limits<int>::max()) return {};
    std::vector<const ProfileLine*> lines;
    std::vector<std::size_t> sizes;
    std::vector<std::size_t> bursts;
    const Load* kind = nullptr;
    for (const ProfileLine& line : profile.lines()) {
        if (unlike(line.load, load) != least) continue;
        // Of two kinds that are as unlike, one.
        if (kind == nullptr) kind = &line.load;
        if (line.load.producer_is_busy != kind->producer_is_busy ||
            line.load.consumer_is_busy != kind->consumer_is_busy) {
            continue;
        }
        lines.push_back(&line);
        sizes.push_back(line.load.item_bytes);
        bursts.push_back(line.load.burst);
    }
    const Between size = between(std::move(sizes), load.item_bytes);
    const Between burst = between(std::move(bursts), load.burst);

    // At each corner: of every point, how many times the best's cost.
    struct Seen {
        ring::NamedDesign design{};
        double cost = 0;
    };
    struct Score {
        double log_ratio = 0;
        double weight = 0;  ///< of the corners that know it
        double log_cost = 0;
    };
    std::map<std::string, std::pair<ring::NamedDesign, Score>> scores;
    double all_weights = 0;
    for (const std::size_t bytes : {size.lower, size.upper}) {
        for (const std::size_t together : {burst.lower, burst.upper}) {
            const double of_size = size.lower == size.upper ? 0.5
                                   : bytes == size.upper    ? size.part
                                                            : 1 - size.part;
            const double of_burst = burst.lower == burst.upper ? 0.5
                                    : together == burst.upper  ? burst.part
                                                               : 1 - burst.part;
            const double weight = of_size * of_burst;
            std::vector<Seen> seen;
            double best = std::numeric_limits<double>::infinity();
            for (const ProfileLine* const line : lines) {
                if (line->load.item_bytes != bytes || line->load.burst != together ||
                    !may_be_taken(line->design, load, spare_core)) {
                    continue;
                }
                seen.push_back({line->design, cost_of(*line)});
                best = std::min(best, seen.back().cost);
            }
            if (seen.empty()) continue;
            all_weights += weight;
            for (const Seen& one : seen) {
                auto& [design, score] =
                    scores[ring::to_string(one.design.design, one.design.batch)];
                design = one.design;
                score.log_ratio += weight * std::log(one.cost / best);
                score.log_cost += weight * std::log(one.cost);
                score.weight += weight;
            }
        }
    }
    if (scores.empty()) return {};
    const std::pair<ring::NamedDesign, Score>* best = nullptr;
    for (auto& [name, entry] : scores) {
        Score& score = entry.second;
        score.log_ratio += (all_weights - score.weight) * std::log(left_out);
        if (best == nullptr || score.log_ratio < best->second.log_ratio) best = &entry;
    }
    const auto* chosen = best;
    const auto rank = [&](const ring::NamedDesign& named) {
        return std::pair{named.design != usual, complexity(named)};
    };
    for (const auto& [name, entry] : scores) {
        if (entry.second.log_ratio <= best->second.log_ratio + std::log(alike) &&
            rank(entry.first) < rank(chosen->first)) {
            chosen = &entry;
        }
    }
    const double cost = std::exp(chosen->second.log_cost / chosen->second.weight);
    PointChoice choice{chosen->first, fmt::format("Measured on {}, {}: {}, the best of {} points",
                                                  profile.origin().device, profile.origin().date,
                                                  words_of(load, cost), scores.size())};
    if (chosen != best) choice.reason += ", within 5 % of the very best";
    choice.reason += ".";
    return choice;
}

}  // namespace millrace::flow
