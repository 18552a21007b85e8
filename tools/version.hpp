// What `millrace --version` says.
#pragma once

#include <string>

namespace millrace::tools {

/// Version, commit, compiler, and the device that programs get here by default.
[[nodiscard]] std::string version_text();

}  // namespace millrace::tools
