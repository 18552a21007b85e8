// `millrace devices`: what verbs devices this machine has, the soft one included.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_devices(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
