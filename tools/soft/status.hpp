// `millrace soft status`: who takes part in the soft device's fabrics, with what. Called by
// soft.cpp.
#pragma once

#include <string>

#include "command_line/json_output.hpp"

namespace millrace::tools {

/// Prints what survey() sees. `fabric` empty: all. Returns the exit status.
int show_status(const std::string& fabric, const JsonOutput& json);

}  // namespace millrace::tools
