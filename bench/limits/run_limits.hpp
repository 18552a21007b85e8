// The command that prints the limits: `millrace bench limits` is this.
#pragma once

#include <string>

#include "command_line/json_output.hpp"

namespace millrace::bench {

struct LimitOptions {
    bool brief = false;  ///< fewer sizes and repetitions
    int rounds = 11;     ///< that must count
    tools::JsonOutput json{};
    std::string only{};  ///< only limits whose name contains this text
};

/// Measures and prints. Returns the exit status: 2 if no limit has such a name. Throws base::Error.
int run_limits(const LimitOptions& options);

}  // namespace millrace::bench
