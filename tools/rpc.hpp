// `millrace rpc`: looks at servers of typed calls.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_rpc(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
