// `millrace manual`: the man pages of the command and of each of its subcommands, made from what
// the parser knows. The build writes and installs them.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_manual(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
