// `millrace soft run`: runs an unmodified program on the soft device.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_soft(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
