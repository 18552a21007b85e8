// The command that repeats the measurements of work 003: `millrace bench stream`.
#pragma once

#include <optional>

#include "millrace/stream/mode.hpp"
#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Its five figures, small messages, and misaligned buffers, with what its protocol promises.
/// `only`: of mode dynamic this protocol alone; else both beside each other.
[[nodiscard]] Study stream_study(std::optional<stream::Protocol> only = {});

/// As run_study.
int run_stream(const StudyOptions& options, std::optional<stream::Protocol> only);

}  // namespace millrace::bench
