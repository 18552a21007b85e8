// Runs the command `millrace` to its end. For tests of programs that have MILLRACE_COMMAND, its
// path.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/child_process.hpp"

namespace millrace::test {

struct CommandOutcome {
    std::string text;  ///< standard output, and what the line joins to it
    Exit exit;
};

/// Runs `line` in a shell, where $0 is the command and $@ are `arguments`.
[[nodiscard]] inline CommandOutcome run_line(const std::string& line,
                                             const std::vector<std::string>& arguments = {},
                                             std::vector<std::string> environment = {}) {
    std::vector<std::string> command{"/bin/sh", "-c", line, MILLRACE_COMMAND};
    command.insert(command.end(), arguments.begin(), arguments.end());
    ChildProcess process = ChildProcess::start_program(command, std::move(environment));
    CommandOutcome outcome;
    outcome.text = process.read_all();
    outcome.exit = process.wait();
    return outcome;
}

/// Runs the command with `arguments`; its text are both outputs.
[[nodiscard]] inline CommandOutcome run_command(const std::vector<std::string>& arguments,
                                                std::vector<std::string> environment = {}) {
    return run_line("exec \"$0\" \"$@\" 2>&1 </dev/null", arguments, std::move(environment));
}

}  // namespace millrace::test
