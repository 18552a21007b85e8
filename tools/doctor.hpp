// `millrace doctor`: what of this machine's settings helps or hinders RDMA programs.
#pragma once

#include "command_line/command.hpp"

namespace millrace::tools {

void add_doctor(CLI::App& program, Action& chosen);

}  // namespace millrace::tools
