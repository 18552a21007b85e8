// `millrace completion`: a script that lets bash, zsh or fish complete the command's words, made
// from what the parser knows. The build writes and installs them.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_completion(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
