// The command that repeats the measurements of work 003: `millrace bench stream`.
#pragma once

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Its five figures, small messages, and misaligned buffers, with what its protocol promises.
[[nodiscard]] const Study& stream_study();

/// As run_study.
int run_stream(const StudyOptions& options);

}  // namespace millrace::bench
