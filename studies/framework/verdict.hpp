// What a study says of a finding: it agrees, it is stronger here, or it differs. Both sides of a
// claim count: a factor of 436 does not agree with one of 30. Never why: a reason that was written
// before the run explains nothing, so a verdict names what this run counted, or no reason.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/framework/statistics.hpp"

namespace millrace::bench {

struct StudyVerdict {
    bool agrees = false;
    std::string measured{};  ///< the numbers it was judged by
    /// What the work found is more so here than the work says. Does not agree, then.
    bool stronger = false;
    /// What this run counted that bears on a verdict which does not agree. May be empty.
    std::string counted{};
};
/// "agrees", "stronger", "differs".
[[nodiscard]] std::string_view name_of(const StudyVerdict& verdict) noexcept;
/// The line below a verdict that does not agree: "not explained", and what was counted.
[[nodiscard]] std::string explanation_of(const StudyVerdict& verdict);

/// As "1.2 (1.1 to 1.4 in 5 runs)": the median, and where that of endless runs lies.
[[nodiscard]] std::string told(const Summary& summary);

inline constexpr double unbounded = std::numeric_limits<double>::infinity();
/// What a claim allows.
struct Range {
    double low = 0;
    double high = unbounded;
};

/// Of a value: agrees if the interval of its median meets the range.
[[nodiscard]] StudyVerdict judge_value(const Summary& value, Range allowed);
/// Of a ratio: the same, and beyond the range on the side away from 1 it is stronger. A range with
/// 1 in its inside claims that two things are alike: what lies beyond that differs.
[[nodiscard]] StudyVerdict judge_ratio(const Summary& ratio, Range allowed);
/// Of a factor that the work found, above 1: agrees if the interval of the measured ratio's median
/// meets what lies between 2/3 and 3/2 of the work's; stronger above that, differs below.
[[nodiscard]] StudyVerdict judge_factor(const Summary& ratio, double of_work);
inline constexpr double judged_tolerance = 1.5;

/// 0: differs; 1: stronger; 2: agrees.
[[nodiscard]] int agreement_of(const StudyVerdict& verdict) noexcept;
/// For who reads them in order: what differs comes first, then what is stronger, then what agrees.
/// A claim that begins with "..." goes on from the one before it, and stays there. `Judged` has a
/// verdict, and a finding that it points to.
template <class Judged>
void put_disagreements_first(std::vector<Judged>& list) {
    std::vector<std::vector<Judged>> groups;
    for (Judged& each : list) {
        if (groups.empty() || !each.finding->claim.starts_with("...")) groups.emplace_back();
        groups.back().push_back(std::move(each));
    }
    const auto least = [](const std::vector<Judged>& group) {
        int found = 2;
        for (const Judged& each : group) found = std::min(found, agreement_of(each.verdict));
        return found;
    };
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const auto& one, const auto& other) { return least(one) < least(other); });
    list.clear();
    for (std::vector<Judged>& group : groups) {
        for (Judged& each : group) list.push_back(std::move(each));
    }
}

/// Of several points, each with its runs: the median over the points of each run, summed up over
/// the runs. A point that lacks a run is left out of that one.
[[nodiscard]] Summary summarize_by_run(const std::vector<std::vector<double>>& points);
/// One point's runs by another's, run by run. Runs whose divisor is 0 are left out.
[[nodiscard]] std::vector<double> divided(const std::vector<double>& above,
                                          const std::vector<double>& below);

}  // namespace millrace::bench
