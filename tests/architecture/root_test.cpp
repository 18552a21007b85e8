// The top of the house: what lies there was put there on purpose. A fuzzer's find, a core or a log
// that was committed by mistake is not.
#include <filesystem>
#include <fstream>
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
        "studies",
        "tests",
        "tools",
        "workload",
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

/// Programs of `folder` with more lines than a newcomer reads at once, and how many.
std::vector<std::string> long_programs_in(const fs::path& folder) {
    constexpr int most_lines = 60;
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator{folder}) {
        if (entry.path().extension() != ".cpp") continue;
        std::ifstream file{entry.path()};
        int lines = 0;
        for (std::string line; std::getline(file, line);) ++lines;
        if (lines > most_lines)
            found.push_back(entry.path().filename().string() + ": " + std::to_string(lines));
    }
    return found;
}

TEST(Examples, HaveAtMostSixtyLines) {
    EXPECT_THAT(long_programs_in(fs::path{MILLRACE_SOURCE_DIR} / "examples"), IsEmpty());
}

TEST(ExamplesCheck, ReportsALongProgram) {
    const fs::path folder = fs::path{testing::TempDir()} / "millrace-examples-check";
    fs::create_directories(folder);
    std::ofstream{folder / "short.cpp"} << std::string(60, '\n');
    std::ofstream{folder / "long.cpp"} << std::string(61, '\n');
    EXPECT_EQ(long_programs_in(folder), std::vector<std::string>{"long.cpp: 61"});
    fs::remove_all(folder);
}

TEST(RootCheck, ReportsAFuzzersFind) {
    const fs::path folder = fs::path{testing::TempDir()} / "millrace-root-check";
    fs::create_directories(folder / "src");
    fs::create_directories(folder / "crash-1234");
    EXPECT_EQ(unexpected_in(folder), std::vector<std::string>{"crash-1234"});
    fs::remove_all(folder);
}

}  // namespace
