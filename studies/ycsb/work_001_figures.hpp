// The evaluation of work 001, chapter 5, whose benchmark is YCSB: its figures 5.1, 5.2 and 5.4, its
// table 5.1, and what it says about them. Called by run_ycsb.hpp.
#pragma once

#include <vector>

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// `quick`: shorter runs.
[[nodiscard]] std::vector<StudyFigure> work_001_ycsb_figures(bool quick);
[[nodiscard]] std::vector<StudyFinding> work_001_ycsb_findings();

}  // namespace millrace::bench
