// The command that repeats the measurements of work 001, chapter 3: `millrace bench verbs`.
#pragma once

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Its figures 3.2 (quoted from elsewhere), 3.3, 3.4 and 3.6, and what it says about them.
[[nodiscard]] const Study& verbs_study();

/// As run_study.
int run_verbs(const StudyOptions& options);

}  // namespace millrace::bench
