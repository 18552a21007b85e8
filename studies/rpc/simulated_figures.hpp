// What this machine has too few processors for: 90 requesters and up to 18 responders, each with a
// processor of its own, simulated by costs that this run measures. Used by run_rpc.cpp.
#pragma once

#include <vector>

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Figures "5, simulated" (which has what figure 5 measures, so that the two can be compared), "8,
/// simulated" and "table 2, simulated".
[[nodiscard]] std::vector<StudyFigure> simulated_figures();

/// What is said about them.
[[nodiscard]] std::vector<StudyFinding> simulated_findings();

}  // namespace millrace::bench
