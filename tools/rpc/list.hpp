// `millrace rpc list`: a server's procedures and what it counted of them.
#pragma once

#include <chrono>
#include <string>

#include "command_line/json_output.hpp"

namespace millrace::tools {

struct RpcListOptions {
    std::string server{};
    std::string device{};       ///< empty: the default
    std::string secret_file{};  ///< empty: no secret
    std::chrono::nanoseconds timeout = std::chrono::seconds{5};
    JsonOutput json{};
};

/// Exit status: 0. Throws Error if there is no answer.
int run_rpc_list(const RpcListOptions& options);

}  // namespace millrace::tools
