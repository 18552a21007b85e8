// The command that repeats the evaluation of messages in work 001, chapter 4: `millrace bench
// message`.
#pragma once

#include "json_output.hpp"

namespace millrace::bench {

struct MessageOptions {
    bool quick = false;  ///< fewer clients and requests
    int rounds = 5;      ///< of each comparison
    tools::JsonOutput json{};
};

/// Measures and prints. Exit status 0. Throws base::Error.
int run_message(const MessageOptions& options);

}  // namespace millrace::bench
