// A bar whose figure is taken as it is, and not as a ratio to another one.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "bars.hpp"
#include "rounds.hpp"

namespace millrace::bench {

/// The median of what `run` gives is at most `limit`.
[[nodiscard]] inline Bar one_figure_of(std::string group, std::string name, double limit,
                                       std::string unit, std::function<double()> run) {
    return {.group = std::move(group),
            .name = std::move(name),
            .limit = limit,
            .sense = Sense::at_most,
            .unit = std::move(unit),
            .measure = [run = std::move(run)](const RoundOptions& options) {
                Rounds rounds{options};
                rounds.add({"ours", run});
                return rounds.run().summary("ours");
            }};
}
/// The same of the group "foundation".
[[nodiscard]] inline Bar one_figure(std::string name, double limit, std::string unit,
                                    std::function<double()> run) {
    return one_figure_of("foundation", std::move(name), limit, std::move(unit), std::move(run));
}

}  // namespace millrace::bench
