// The top of the house: what lies there was put there on purpose. A fuzzer's find, a core or a log
// that was committed by mistake is not.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

/// Hidden files belong to tools; `build` and `.cache` are what .gitignore names.
std::vector<std::string> unexpected_in(const fs::path& root) {
    static const std::set<std::string> expected{
        "CHANGELOG.md",
        "CMakeLists.txt",
        "CMakePresets.json",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "bench",
        "build",
        "cmake",
        "docs",
        "examples",
        "fuzz",
        "include",
        "models",
        "scripts",
        "src",
        "tests",
        "tools",
        "compile_commands.json",
    };
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator{root}) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with('.') && !expected.contains(name)) found.push_back(name);
    }
    return found;
}

TEST(Root, HoldsNothingUnexpected) { EXPECT_THAT(unexpected_in(MILLRACE_SOURCE_DIR), IsEmpty()); }

TEST(RootCheck, ReportsAFuzzersFind) {
    const fs::path folder = fs::path{testing::TempDir()} / "millrace-root-check";
    fs::create_directories(folder / "src");
    fs::create_directories(folder / "crash-1234");
    EXPECT_EQ(unexpected_in(folder), std::vector<std::string>{"crash-1234"});
    fs::remove_all(folder);
}

}  // namespace
