// `millrace bench rpc`: the measurements of work 004 again, on the soft device.
#pragma once

#include <cstddef>

#include "studies/framework/study.hpp"

namespace millrace::bench {

/// `memory_bytes`: of the responses in the figure of section 4.2, where the work had several GB; at
/// most half of what this machine has free.
[[nodiscard]] Study rpc_study(std::size_t memory_bytes = std::size_t{64} << 20);
int run_rpc(const StudyOptions& options, std::size_t memory_bytes);

}  // namespace millrace::bench
