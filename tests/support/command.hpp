// Runs the command `millrace` to its end. For tests of programs that have MILLRACE_COMMAND, its
// path.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "support/child_process.hpp"

namespace millrace::test {

struct CommandOutcome {
    std::string text;  ///< standard output, and what the line joins to it
    Exit exit;
};

/// Runs `line` in a shell, where $0 is the command and $@ are `arguments`. The command takes the
/// terminal for a wide one, unless `environment` says otherwise: its lines are whole.
[[nodiscard]] inline CommandOutcome run_line(const std::string& line,
                                             const std::vector<std::string>& arguments = {},
                                             std::vector<std::string> environment = {}) {
    const auto says_width = [](const std::string& one) { return one.starts_with("COLUMNS="); };
    if (std::none_of(environment.begin(), environment.end(), says_width)) {
        environment.push_back("COLUMNS=1000");
    }
    std::vector<std::string> command{"/bin/sh", "-c", line, MILLRACE_COMMAND};
    command.insert(command.end(), arguments.begin(), arguments.end());
    ChildProcess process = ChildProcess::start_program(command, std::move(environment));
    CommandOutcome outcome;
    // A demo takes seconds where nobody else has the processors.
    outcome.text = process.read_all(std::chrono::seconds{100});
    outcome.exit = process.wait();
    return outcome;
}

/// Runs the command with `arguments`; its text are both outputs.
[[nodiscard]] inline CommandOutcome run_command(const std::vector<std::string>& arguments,
                                                std::vector<std::string> environment = {}) {
    return run_line("exec \"$0\" \"$@\" 2>&1 </dev/null", arguments, std::move(environment));
}

}  // namespace millrace::test
