// A folder that a test has for itself, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace millrace::test {

class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = testing::TempDir() + "millrace-test-XXXXXX";
        if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error{"mkdtemp " + pattern};
        path_ = pattern;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// The path of what is called `name` in it.
    [[nodiscard]] std::string path(const std::string& name) const { return path_ + '/' + name; }
    /// All bytes of the file called `name`; none if it is not there.
    [[nodiscard]] std::string content(const std::string& name) const {
        std::ifstream file{path(name), std::ios::binary};
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }

  private:
    std::string path_;
};

}  // namespace millrace::test
