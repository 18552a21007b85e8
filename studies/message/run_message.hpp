// The command that repeats the evaluation of messages in work 001, chapter 4: `millrace bench
// message`.
#pragma once

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Its figures 4.2, 4.3, 4.6, 4.8 and 4.9 and what it says about them; what its limits left out;
/// and the ways of works 002 and 004.
[[nodiscard]] const Study& message_study();

/// As run_study.
int run_message(const StudyOptions& options);

}  // namespace millrace::bench
