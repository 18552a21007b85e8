// Chooses the mode of the devices that are opened while it lives (also by child processes).
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace millrace::test {

class ModeScope {
  public:
    explicit ModeScope(const std::string& mode) {
        if (const char* before = std::getenv(variable); before != nullptr) before_ = before;
        setenv(variable, mode.c_str(), 1);
    }
    ~ModeScope() {
        if (before_) {
            setenv(variable, before_->c_str(), 1);
        } else {
            unsetenv(variable);
        }
    }
    ModeScope(const ModeScope&) = delete;
    ModeScope& operator=(const ModeScope&) = delete;

  private:
    static constexpr const char* variable = "MILLRACE_SOFT_MODE";
    std::optional<std::string> before_;
};

}  // namespace millrace::test
