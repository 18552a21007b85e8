// The `millrace` command as its parser knows it: all subcommands. main.cpp parses and runs it.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>

#include "command_line/command.hpp"

namespace millrace::tools {

/// The parser with every subcommand. `chosen` outlives it.
[[nodiscard]] std::unique_ptr<CLI::App> make_program(Action& chosen);

}  // namespace millrace::tools
