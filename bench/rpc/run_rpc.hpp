// `millrace bench rpc`: the measurements of work 004 again, on the soft device.
#pragma once

#include "framework/study.hpp"

namespace millrace::bench {

[[nodiscard]] Study rpc_study();
int run_rpc(const StudyOptions& options);

}  // namespace millrace::bench
