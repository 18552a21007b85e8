// How the `millrace` command is put together: one file per subcommand, each of which tells the
// parser of its arguments and what to do when it is chosen. main.cpp calls them all.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace millrace::tools {

/// What the chosen subcommand does once all arguments are known to be right. Returns the exit
/// status; what it throws is printed by main and becomes exit status 1.
using Action = std::function<int()>;

/// Every subcommand has one: adds itself to `program` and, when it is chosen, sets `chosen`.
/// Both outlive the parsing and the action.
using AddCommand = void(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
