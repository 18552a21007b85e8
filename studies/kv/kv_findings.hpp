// What work 002 says about its figures, and when `millrace bench kv` agrees. Used by run_kv.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "run_kv.hpp"
#include "studies/framework/study.hpp"

namespace millrace::bench {

/// Those of them that are measured with threads that never yield: few clients, as every step of
/// connecting waits until the system has given each thread its processor.
[[nodiscard]] std::vector<std::size_t> crowds_that_spin(std::vector<std::size_t> crowds);

/// Those of chapter 4, of whatever server is measured.
[[nodiscard]] std::vector<StudyFinding> findings_of_chapter(const KvStudyOptions& chosen);

/// Of the default wait over each of these ways, which the work does not have.
[[nodiscard]] std::vector<StudyFinding> findings_of_default_wait(
    const KvStudyOptions& chosen, const std::vector<std::string>& ways);

}  // namespace millrace::bench
