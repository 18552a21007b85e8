// The command that repeats the evaluation of work 002, chapter 4, as far as the store has its
// transports: `millrace bench kv`.
#pragma once

#include "framework/study.hpp"

namespace millrace::bench {

/// Its figures 4.1 to 4.3, 4.6 and 4.7 and table 4.3, over RC, and what it says about them.
[[nodiscard]] Study kv_study();

/// As run_study.
int run_kv(const StudyOptions& options);

}  // namespace millrace::bench
