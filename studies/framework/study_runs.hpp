// Runs that tell several quantities at once: the first figure of a study that asks for one measures
// it, and the others take theirs from the same runs.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "study.hpp"

namespace millrace::bench {

template <class Result>
class StudyRuns {
  public:
    using Measure = std::function<Result(const std::string& mode, std::size_t x)>;
    explicit StudyRuns(Measure measure) : measure_{std::move(measure)} {}

    /// Run number `index` at `x`.
    const Result& at(const std::string& mode, std::size_t x, std::size_t index) {
        auto& runs = runs_[{mode, x}];
        while (runs.size() <= index) runs.push_back(measure_(mode, x));
        return runs[index];
    }

  private:
    Measure measure_;
    std::map<std::pair<std::string, std::size_t>, std::vector<Result>> runs_;
};

/// One quantity of the runs, as a curve. Its n-th value at a point is that of the n-th run there.
template <class Result>
StudySeries curve_of(std::string label, const std::shared_ptr<StudyRuns<Result>>& runs,
                     double Result::*quantity, std::vector<std::size_t> xs = {}) {
    auto asked = std::make_shared<std::map<std::pair<std::string, std::size_t>, std::size_t>>();
    return {std::move(label),
            [runs, quantity, asked](const std::string& mode, std::size_t x) {
                const std::size_t index = (*asked)[{mode, x}]++;
                return runs->at(mode, x, index).*quantity;
            },
            std::move(xs)};
}

/// Another quantity of the same: `quantity(run, x)` of runs at `place`, whatever the figure's x.
template <class Result, class Quantity>
StudySeries curve_at(std::string label, const std::shared_ptr<StudyRuns<Result>>& runs,
                     std::size_t place, Quantity quantity) {
    auto asked = std::make_shared<std::map<std::pair<std::string, std::size_t>, std::size_t>>();
    return {std::move(label), [=](const std::string& mode, std::size_t x) -> double {
                return std::invoke(quantity, runs->at(mode, place, (*asked)[{mode, x}]++), x);
            }};
}

}  // namespace millrace::bench
