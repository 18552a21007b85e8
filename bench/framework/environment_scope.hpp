// Sets a variable of the environment for the time of a measurement: the soft device reads its mode
// and its name there when a process opens it. Used by bench/link and bench/flow.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace millrace::bench {

/// Gives the variable its former value back in the end. Not for several threads.
class EnvironmentScope {
  public:
    EnvironmentScope(const char* variable, const std::string& value) : variable_{variable} {
        if (const char* before = std::getenv(variable); before != nullptr) before_ = before;
        setenv(variable, value.c_str(), 1);
    }
    ~EnvironmentScope() {
        if (before_) {
            setenv(variable_, before_->c_str(), 1);
        } else {
            unsetenv(variable_);
        }
    }
    EnvironmentScope(const EnvironmentScope&) = delete;
    EnvironmentScope& operator=(const EnvironmentScope&) = delete;

  private:
    const char* variable_;
    std::optional<std::string> before_;
};

}  // namespace millrace::bench
