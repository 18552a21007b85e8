// `millrace kv`: a key-value server, and what its clients ask.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_kv(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
