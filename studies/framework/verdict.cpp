// See verdict.hpp.
#include "verdict.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace millrace::bench {

std::string_view name_of(const StudyVerdict& verdict) noexcept {
    return verdict.agrees ? "agrees" : verdict.stronger ? "stronger" : "differs";
}

std::string explanation_of(const StudyVerdict& verdict) {
    if (verdict.agrees) return {};
    return verdict.counted.empty() ? "not explained" : "not explained; " + verdict.counted;
}

std::string told(const Summary& summary) {
    return fmt::format("{:.3g} ({:.3g} to {:.3g} in {} run{})", summary.median, summary.median_low,
                       summary.median_high, summary.rounds, summary.rounds == 1 ? "" : "s");
}

StudyVerdict judge_value(const Summary& value, Range allowed) {
    return {.agrees = value.median_high >= allowed.low && value.median_low <= allowed.high,
            .measured = told(value)};
}

StudyVerdict judge_ratio(const Summary& ratio, Range allowed) {
    StudyVerdict verdict = judge_value(ratio, allowed);
    verdict.stronger = (allowed.low >= 1 && ratio.median_low > allowed.high) ||
                       (allowed.high <= 1 && ratio.median_high < allowed.low);
    return verdict;
}

StudyVerdict judge_factor(const Summary& ratio, double of_work) {
    StudyVerdict verdict =
        judge_value(ratio, {of_work / judged_tolerance, of_work * judged_tolerance});
    verdict.stronger = ratio.median_low > of_work * judged_tolerance;
    verdict.measured += fmt::format(", the work {:.3g}", of_work);
    return verdict;
}

int agreement_of(const StudyVerdict& verdict) noexcept {
    return verdict.agrees ? 2 : verdict.stronger ? 1 : 0;
}

Summary summarize_by_run(const std::vector<std::vector<double>>& points) {
    std::vector<double> medians;
    for (std::size_t run = 0;; ++run) {
        std::vector<double> values;
        for (const std::vector<double>& runs : points) {
            if (run < runs.size()) values.push_back(runs[run]);
        }
        if (values.empty()) break;
        medians.push_back(quantile(std::move(values), 0.5));
    }
    return summarize(medians);
}

std::vector<double> divided(const std::vector<double>& above, const std::vector<double>& below) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i != std::min(above.size(), below.size()); ++i) {
        if (below[i] != 0) ratios.push_back(above[i] / below[i]);
    }
    return ratios;
}

}  // namespace millrace::bench
