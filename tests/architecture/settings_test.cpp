// Every environment setting is documented: docs/settings.md names what the sources and scripts
// read.
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::add_matches;
using millrace::architecture::text_of;
using testing::IsEmpty;

std::set<std::string> settings_that_are_read() {
    const fs::path root = MILLRACE_SOURCE_DIR;
    // getenv("NAME") in sources; ${NAME:-default} in scripts.
    static const std::regex in_sources{R"rx(getenv\s*\(\s*"(MILLRACE_[A-Z_]+)")rx"};
    static const std::regex in_scripts{R"rx(\$\{(MILLRACE_[A-Z_]+):-)rx"};
    std::set<std::string> names;
    for (const char* const folder : {"include", "src", "tools", "bench", "studies", "workload"}) {
        for (const auto& entry : fs::recursive_directory_iterator{root / folder}) {
            if (entry.is_regular_file()) add_matches(text_of(entry.path()), in_sources, names);
        }
    }
    for (const char* const folder : {"scripts", ".ci"}) {
        for (const auto& entry : fs::recursive_directory_iterator{root / folder}) {
            if (entry.is_regular_file()) add_matches(text_of(entry.path()), in_scripts, names);
        }
    }
    return names;
}

TEST(Settings, AreFoundInSourcesAndScripts) {
    const auto names = settings_that_are_read();
    for (const char* const known : {"MILLRACE_FABRIC", "MILLRACE_TRACE", "MILLRACE_LONG_ROUNDS"}) {
        EXPECT_TRUE(names.contains(known)) << known;
    }
}

TEST(Settings, AreAllInTheDocumentation) {
    const std::string page = text_of(fs::path{MILLRACE_SOURCE_DIR} / "docs" / "settings.md");
    std::set<std::string> missing;
    for (const std::string& name : settings_that_are_read()) {
        // Those of the virtual machine are explained where they are read.
        const bool known =
            page.find("`" + name + "`") != std::string::npos ||
            (name.starts_with("MILLRACE_VM_") && page.find("`MILLRACE_VM_…`") != std::string::npos);
        if (!known) missing.insert(name);
    }
    EXPECT_THAT(missing, IsEmpty());
}

}  // namespace
