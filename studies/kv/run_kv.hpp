// The command that repeats the evaluation of work 002, chapter 4: `millrace bench kv`.
#pragma once

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Its figures 4.1 to 4.8 and tables 4.1 to 4.3, and what it says about them. `get_percent`: of all
/// requests; the work says 95, and its program, by `rand() % 100 <= 5`, made 94.
[[nodiscard]] Study kv_study(unsigned get_percent);

/// As run_study.
int run_kv(const StudyOptions& options, unsigned get_percent);

}  // namespace millrace::bench
