// What work 004 says about its figures, and when `millrace bench rpc` agrees. Used by run_rpc.cpp.
#pragma once

#include <vector>

#include "studies/framework/study.hpp"

namespace millrace::bench {

[[nodiscard]] std::vector<StudyFinding> findings_of_work();

}  // namespace millrace::bench
