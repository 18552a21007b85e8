// `millrace demo`: the arguments; what it does lies in demo/.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_demo(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
