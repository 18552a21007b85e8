// The subcommands of `millrace bench` that repeat the evaluations of the works. bench/main.cpp adds
// them.
#pragma once

#include "command_line/command.hpp"

namespace millrace::bench {

tools::AddCommand add_studies;

}  // namespace millrace::bench
