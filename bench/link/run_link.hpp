// The command that checks the link model: `millrace bench link`.
#pragma once

#include <string>

#include "command_line/json_output.hpp"

namespace millrace::bench {

struct LinkOptions {
    std::string mode{};  ///< only this one; empty: a range of latencies and rates
    bool brief = false;  ///< fewer of everything
    tools::JsonOutput json{};
};

/// Measures and prints. Exit status 0 if everything with more than 10 us of latency is within 5 %
/// of its setting, else 1. Throws base::Error.
int run_link(const LinkOptions& options);

}  // namespace millrace::bench
