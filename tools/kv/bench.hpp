// `millrace kv bench`: load for a server, and how it bore it.
#pragma once

#include <string>

#include "command_line/json_output.hpp"
#include "millrace/message/server.hpp"
#include "workload/kv_load.hpp"

namespace millrace::tools {

struct KvBenchOptions {
    std::string server{};  ///< empty: one is started for the time of it
    std::string device{};
    std::string secret_file{};  ///< empty: no secret
    workload::KvLoad load{};
    std::string save{};                ///< file for every operation; empty: they are not kept
    message::PostingHabits posting{};  ///< of that one and of the clients
    JsonOutput json{};
};

/// Exit status.
int run_kv_bench(const KvBenchOptions& options);

}  // namespace millrace::tools
