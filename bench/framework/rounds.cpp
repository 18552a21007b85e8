// Contenders that alternate, round by round.
#include "rounds.hpp"

#include <algorithm>
#include <cstdint>

#include "bench/limits/cache_line.hpp"
#include "millrace/base/error.hpp"

namespace millrace::bench {
namespace {

/// A short ping-pong; the less disturbed half of it tells how the cores stand to each other now.
double look_at_cores() {
    constexpr std::uint64_t short_look = 5'000;
    double least = cache_line_round_trip(short_look);
    for (int i = 0; i < 2; ++i) least = std::min(least, cache_line_round_trip(short_look));
    return least;
}

}  // namespace

std::vector<bool> rounds_that_count(const std::vector<double>& cache_line, double outlier) {
    const double median = quantile(cache_line, 0.5);
    std::vector<bool> counts;
    counts.reserve(cache_line.size());
    for (const double time : cache_line) {
        counts.push_back(time <= median * outlier && time >= median / outlier);
    }
    return counts;
}

Results Rounds::run() {
    std::map<std::string, std::vector<double>> values;
    std::vector<double> cache_line;
    std::vector<bool> counts;
    const int wanted = std::max(options_.rounds, 1);
    const int most = wanted * std::max(options_.patience, 1);
    for (int round = 1; round <= most; ++round) {
        const double before = look_at_cores();
        for (const auto& contender : contenders_) {
            if (options_.progress) options_.progress(round, contender.name);
            values[contender.name].push_back(contender.run());
        }
        const double after = look_at_cores();
        cache_line.push_back((before + after) / 2);
        if (round < wanted) continue;
        counts = rounds_that_count(cache_line, options_.outlier);
        if (std::count(counts.begin(), counts.end(), true) >= wanted) break;
    }
    Results results;
    results.contenders_ = contenders_;
    for (std::size_t i = 0; i < cache_line.size(); ++i) {
        if (!counts[i]) {
            ++results.discarded_;
            continue;
        }
        results.cache_line_.push_back(cache_line[i]);
        for (const auto& contender : contenders_) {
            results.values_[contender.name].push_back(values[contender.name][i]);
        }
    }
    if (options_.finished) options_.finished(results);
    return results;
}

const std::vector<double>& Results::values(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) {
        throw base::Error{base::ErrorCode::not_found, "look up a measurement", name,
                          "no contender has that name", ""};
    }
    return found->second;
}

Summary Results::summary(const std::string& name) const {
    return summarize(values(name), discarded_);
}

Summary Results::ratio(const std::string& above, const std::string& below) const {
    const auto& numerators = values(above);
    const auto& denominators = values(below);
    std::vector<double> ratios;
    ratios.reserve(numerators.size());
    for (std::size_t i = 0; i < numerators.size(); ++i) {
        ratios.push_back(numerators[i] / denominators[i]);
    }
    return summarize(ratios, discarded_);
}

void Results::add(const Results& more) {
    for (auto& [name, values] : values_) {
        const auto& theirs = more.values(name);
        values.insert(values.end(), theirs.begin(), theirs.end());
    }
    cache_line_.insert(cache_line_.end(), more.cache_line_.begin(), more.cache_line_.end());
    discarded_ += more.discarded_;
}

Summary Results::cache_line() const { return summarize(cache_line_, discarded_); }

}  // namespace millrace::bench
