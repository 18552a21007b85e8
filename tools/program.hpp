// The `millrace` command as its parser knows it: all subcommands, and what a user who asks for
// something else is told. main.cpp parses and runs it.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "command.hpp"

namespace millrace::tools {

/// The parser with every subcommand. `chosen` outlives it.
[[nodiscard]] std::unique_ptr<CLI::App> make_program(Action& chosen);

/// The words of the command line in the order CLI::App::parse takes them (the last first).
[[nodiscard]] std::vector<std::string> words_of(int argc, char** argv);

/// Why the words were refused, naming the one that is wrong, and what to look at.
[[nodiscard]] std::string complaint(const CLI::App& program, const CLI::ParseError& error);

/// The answer to --help and --version, which the parser reports as errors with exit status 0.
[[nodiscard]] std::string answer(const CLI::App& program, const CLI::ParseError& error);

}  // namespace millrace::tools
