// Chooses the mode of the devices that are opened while it lives (also by child processes).
#pragma once

#include <string>

#include "support/setting_scope.hpp"

namespace millrace::test {

class ModeScope : public SettingScope {
  public:
    explicit ModeScope(const std::string& mode) : SettingScope{"MILLRACE_SOFT_MODE", mode} {}
};

}  // namespace millrace::test
