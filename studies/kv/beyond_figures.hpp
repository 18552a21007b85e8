// Figures of `millrace bench kv` that work 002 does not have, as it leaves open what they show:
// what inlining brings, the two tables, losses, and what a client of
// each transport takes. Used by run_kv.cpp.
#pragma once

#include <vector>

#include "studies/framework/study.hpp"

namespace millrace::bench {

[[nodiscard]] std::vector<StudyFigure> figures_beyond_the_work(unsigned get_percent);

/// What is said about them, and measured.
[[nodiscard]] std::vector<StudyFinding> findings_beyond_the_work();

}  // namespace millrace::bench
