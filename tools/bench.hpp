// `millrace bench`: what this machine can do at best, and whether Millrace keeps its promises
// there. `millrace tune`: what does best on it. The program of the measurements does both.
#pragma once

#include "command_line/command.hpp"
#include "command_line/syntax.hpp"

namespace millrace::tools {

AddCommand add_bench;
AddCommand add_tune;

/// syntax_of(program) with the words of both, which the program of the measurements
/// tells if it is built.
[[nodiscard]] CommandSyntax whole_syntax(const CLI::App& program);

}  // namespace millrace::tools
