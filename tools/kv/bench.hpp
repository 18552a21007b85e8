// `millrace kv bench`: load for a server, and how it bore it.
#pragma once

#include <string>

#include "json_output.hpp"
#include "kv/load.hpp"
#include "millrace/message/server.hpp"

namespace millrace::tools {

struct KvBenchOptions {
    std::string server{};  ///< empty: one is started for the time of it
    std::string device{};
    std::string secret_file{};  ///< empty: no secret
    KvLoad load{};
    message::PostingHabits posting{};  ///< of that one and of the clients
    JsonOutput json{};
};

/// Exit status.
int run_kv_bench(const KvBenchOptions& options);

}  // namespace millrace::tools
