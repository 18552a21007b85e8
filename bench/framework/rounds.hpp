// Contenders that alternate, round by round, so that what the machine does meanwhile hits all of
// them alike; and ratios taken within a round.
//
//     Rounds rounds{{.rounds = 11}};
//     rounds.add({"ours", [] { return ...; }});
//     rounds.add({"ideal", [] { return ...; }});
//     const Results results = rounds.run();
//     results.ratio("ours", "ideal").median
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "statistics.hpp"

namespace millrace::bench {

/// One of several that are compared. `run` sets up, warms up, measures and gives one figure.
struct Contender {
    std::string name;
    std::function<double()> run;
    std::string unit{};  ///< of the figure, for tables: "ns", "items/s", "GB/s"
};

struct RoundOptions {
    int rounds = 11;  ///< that must count; at least 1
    /// Rounds are repeated for those discarded, up to this many times `rounds` in all.
    int patience = 3;
    /// A round is an outlier when its cache-line time is off the median by more than this factor,
    /// either way: the cores were shared or throttled, or had become siblings.
    double outlier = 1.5;
    /// Called before each round with its number and the contender that is about to run.
    std::function<void(int, const std::string&)> progress{};
    /// Called with what the rounds gave, for a caller that wants more than a ratio.
    std::function<void(const class Results&)> finished{};
};

/// What the rounds gave. Only rounds that count are in it.
class Results {
  public:
    [[nodiscard]] const std::vector<Contender>& contenders() const noexcept { return contenders_; }
    /// The figures of one contender, one a round. Throws base::Error for an unknown name.
    [[nodiscard]] const std::vector<double>& values(const std::string& name) const;
    [[nodiscard]] Summary summary(const std::string& name) const;
    /// The summary of the rounds' ratios.
    [[nodiscard]] Summary ratio(const std::string& above, const std::string& below) const;
    /// Nanoseconds of the cache line's round trip between the rounds.
    [[nodiscard]] Summary cache_line() const;
    [[nodiscard]] int discarded() const noexcept { return discarded_; }
    /// Counts the rounds of `more`, of the same contenders, as its own.
    void add(const Results& more);

  private:
    friend class Rounds;
    std::vector<Contender> contenders_;
    std::map<std::string, std::vector<double>> values_;
    std::vector<double> cache_line_;
    int discarded_ = 0;
};

class Rounds {
  public:
    explicit Rounds(RoundOptions options = {}) : options_{std::move(options)} {}
    void add(Contender contender) { contenders_.push_back(std::move(contender)); }
    /// Runs them all. What a contender throws ends it and is passed on.
    [[nodiscard]] Results run();

  private:
    RoundOptions options_;
    std::vector<Contender> contenders_;
};

/// Which of the rounds count, by their cache-line times.
[[nodiscard]] std::vector<bool> rounds_that_count(const std::vector<double>& cache_line,
                                                  double outlier);

}  // namespace millrace::bench
