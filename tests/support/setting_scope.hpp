// A setting of the environment while it lives, for this process and for children that it starts.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace millrace::test {

class SettingScope {
  public:
    SettingScope(const char* name, const std::string& value) : name_{name} {
        if (const char* before = std::getenv(name); before != nullptr) before_ = before;
        setenv(name, value.c_str(), 1);
    }
    ~SettingScope() {
        if (before_) {
            setenv(name_, before_->c_str(), 1);
        } else {
            unsetenv(name_);
        }
    }
    SettingScope(const SettingScope&) = delete;
    SettingScope& operator=(const SettingScope&) = delete;

  private:
    const char* name_;
    std::optional<std::string> before_;
};

}  // namespace millrace::test
